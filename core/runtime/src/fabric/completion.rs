//! Objects that report the end of operations: completion queues and counters.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::ObjectId;
use crate::wait::DomainWait;
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_system::wait::WaitFd;

/// A completion queue (fi_cq(3)). Reading it drives everything in its domain.
pub trait Cq: Send + Sync {
    /// Moves completions to `out`, at least one.
    ///
    /// # Errors
    ///
    /// `Again`: there is none. `EAVAIL`: an error is next, see [`read_error`](Self::read_error).
    /// `ENOMEM`: completions were lost, since there was no memory for them; all others have been
    /// read, and no more will come.
    fn read(&self, out: &mut [Completion]) -> Result<usize, OpError>;

    /// Takes the error that is next, if one is.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn read_error(&self) -> Result<Option<CqError>, OpError>;

    /// As `read`, and waits for a completion, at most for `timeout` (`None`: for ever).
    ///
    /// # Errors
    ///
    /// `Again`: none came in time, a thread called [`signal`](Self::signal), or a signal came to
    /// the thread while it slept. A signal that comes before, while the thread polls, runs its
    /// handler and does not end the wait: a handler that must end it calls
    /// [`signal`](Self::signal), or the application waits with a timeout.
    fn sread(&self, out: &mut [Completion], timeout: Option<Duration>) -> Result<usize, OpError> {
        self.sread_many(out, 1, timeout)
    }

    /// As `sread`, and waits until `least` completions are there (`FI_CQ_COND_THRESHOLD`), or an
    /// error among them. At the timeout, or at a signal, it takes those that are there.
    ///
    /// # Errors
    ///
    /// As `sread`.
    fn sread_many(
        &self,
        out: &mut [Completion],
        least: usize,
        timeout: Option<Duration>,
    ) -> Result<usize, OpError> {
        let mut wait = self.begin_wait(least, timeout)?;
        let read = loop {
            match self.look(&mut wait, out) {
                Ok(None) => {}
                Ok(Some(read)) => break Ok(read),
                Err(error) => break Err(error),
            }
            if let Err(error) = wait.sleep() {
                break Err(error);
            }
        };
        self.end_wait(&mut wait);
        read
    }

    /// Begins an `sread_many` whose caller sleeps by itself, on the descriptor of
    /// [`DomainWait::nap`]. The caller must end each wait with [`end_wait`](Self::end_wait).
    ///
    /// # Errors
    ///
    /// As `sread`.
    fn begin_wait(&self, least: usize, timeout: Option<Duration>) -> Result<DomainWait, OpError>;

    /// Checks whether a wait is over, and reads then. `None`: the caller must sleep, and check
    /// again.
    ///
    /// # Errors
    ///
    /// As `sread`.
    fn look(&self, wait: &mut DomainWait, out: &mut [Completion])
    -> Result<Option<usize>, OpError>;

    /// Frees the resources of a wait, whatever its result.
    fn end_wait(&self, wait: &mut DomainWait);

    /// Ends every `sread` that waits; if none does, the next one, or the next wait on the
    /// descriptor.
    fn signal(&self);

    /// A descriptor to wait on with poll(2) and its like (`FI_WAIT_FD`), after each
    /// [`try_wait`](Self::try_wait) that allows it: readable when there may be something to read
    /// from the queue.
    ///
    /// # Errors
    ///
    /// If no descriptor can be made.
    fn wait_fd(&self) -> Result<BorrowedFd<'_>>;

    /// Prepares a wait on the descriptor (fi_trywait(3)).
    ///
    /// # Errors
    ///
    /// `Again`: there is something to read, or a thread has called [`signal`](Self::signal): read
    /// first. `EINVAL`: the descriptor was never requested.
    fn try_wait(&self) -> Result<(), OpError>;

    /// As [`try_wait`](Self::try_wait), for a caller that was refused with `Again` by an endpoint
    /// of the domain: the descriptor becomes readable also when the endpoint may have capacity. The
    /// caller makes the refused call once more before it waits, because capacity that came before
    /// this call is not reported.
    ///
    /// # Errors
    ///
    /// As there. `Again`: the refused call may be accepted now. `ENOSYS`: a queue that is not of
    /// this crate.
    fn try_wait_for_capacity(&self) -> Result<(), OpError> {
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Prepares a wait on a descriptor of the caller's, which may wait for more objects: it becomes
    /// readable when there may be something to read from the queue.
    ///
    /// # Errors
    ///
    /// `Again`: there is something to read. `ENOSYS`: a queue that is not of this crate.
    fn watch(&self, descriptor: &WaitFd) -> Result<(), OpError> {
        let _ = descriptor;
        Err(OpError::Failed(Errno::ENOSYS))
    }

    /// Takes that back.
    fn unwatch(&self, descriptor: &WaitFd) {
        let _ = descriptor;
    }

    /// The identity of this object.
    fn id(&self) -> ObjectId;
}

/// A counter (fi_cntr(3)). Reading it drives everything in its domain.
pub trait Cntr: Send + Sync {
    /// Operations that succeeded, or the bytes that they have moved
    /// ([`CntrEvents`](super::CntrEvents)).
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn read(&self) -> Result<u64, OpError>;

    /// Operations that failed.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn read_errors(&self) -> Result<u64, OpError>;

    /// Adds to the value.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn add(&self, value: u64) -> Result<(), OpError>;

    /// Sets the value.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn set(&self, value: u64) -> Result<(), OpError>;

    /// Adds to the number of operations that failed.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn add_errors(&self, value: u64) -> Result<(), OpError>;

    /// Sets the number of operations that failed.
    ///
    /// # Errors
    ///
    /// As `read`.
    fn set_errors(&self, value: u64) -> Result<(), OpError>;

    /// Waits until the value is at least `threshold`, and returns it.
    ///
    /// # Errors
    ///
    /// `Again`: not in time. `EAVAIL`: an operation failed meanwhile. `EINTR`: a signal came to the
    /// thread.
    fn wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<u64, OpError> {
        let mut wait = self.begin_wait(threshold, timeout)?;
        let reached = loop {
            match self.look(&mut wait) {
                Ok(None) => {}
                Ok(Some(value)) => break Ok(value),
                Err(error) => break Err(error),
            }
            if let Err(error) = wait.sleep() {
                break Err(error);
            }
        };
        self.end_wait(&mut wait);
        reached
    }

    /// Begins a `wait` whose caller sleeps by itself, as [`Cq::begin_wait`].
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    fn begin_wait(&self, threshold: u64, timeout: Option<Duration>) -> Result<DomainWait, OpError>;

    /// Checks whether a wait is over, and returns the value then. `None`: the caller must sleep,
    /// and check again.
    ///
    /// # Errors
    ///
    /// As `wait`.
    fn look(&self, wait: &mut DomainWait) -> Result<Option<u64>, OpError>;

    /// Frees the resources of a wait, whatever its result.
    fn end_wait(&self, wait: &mut DomainWait);

    /// As [`Cq::wait_fd`]: readable when either number may have changed.
    ///
    /// # Errors
    ///
    /// As there.
    fn wait_fd(&self) -> Result<BorrowedFd<'_>>;

    /// As [`Cq::try_wait`].
    ///
    /// # Errors
    ///
    /// `Again`: a number has changed since the last read; returned once for each change. `EINVAL`:
    /// the descriptor was never requested.
    fn try_wait(&self) -> Result<(), OpError>;

    /// The identity of this object.
    fn id(&self) -> ObjectId;
}
