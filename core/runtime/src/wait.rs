//! One thread's wait on a domain: its condition, the end of its spin phase, the set that it sleeps
//! on, and its deadline.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nix::sys::epoll::Epoll;

use super::empty_polls::EmptyPolls;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_system::wait::{Nap, NapOn, Woken, ms_until, sleep_on};

/// The condition that a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// At least `least` entries in a completion queue, or an error.
    Cq { index: usize, least: usize },
    /// A counter that has reached a value, or counted more errors than it had.
    Cntr {
        index: usize,
        threshold: u64,
        errors: u64,
    },
    /// A counter whose numbers differ from those that the application read last.
    Change(usize),
    /// An endpoint that can close without loss.
    Drained(usize),
    /// An endpoint that can close without the loss of what the application takes for sent.
    Delivered(usize),
    /// A step after which a send that was refused for want of capacity may be accepted.
    Capacity,
    /// That, or an entry in a completion queue.
    CapacityOrCq(usize),
}

/// A wait of one thread on a domain, between two checks of its condition.
///
/// It holds a descriptor and is registered with the domain: the object that it was begun on must
/// end it (`Cq::end_wait`, `Cntr::end_wait`).
#[derive(Debug)]
pub struct DomainWait {
    awaited: Awaited,
    deadline: Option<Instant>,
    spin_until: Instant,
    polls: EmptyPolls,
    /// The set that it sleeps on, made for the first sleep.
    epoll: Option<Epoll>,
    /// Its place among the sleepers, while it sleeps.
    waiter: Option<usize>,
    is_interrupted: bool,
    /// Number of signals to the queue before the wait began.
    pub(crate) signals_before: u64,
}

impl DomainWait {
    /// Begins a wait, which spins for a while first.
    pub(crate) fn begin(awaited: Awaited, timeout: Option<Duration>, spin: Duration) -> Self {
        Self {
            awaited,
            deadline: timeout.and_then(deadline),
            spin_until: Instant::now() + spin,
            polls: EmptyPolls::new(),
            epoll: None,
            waiter: None,
            is_interrupted: false,
            signals_before: 0,
        }
    }

    /// The descriptor to sleep on, after a check that found nothing.
    pub fn nap(&self) -> Option<Nap> {
        let set = self.epoll.as_ref()?.0.as_raw_fd();
        Some(Nap {
            on: NapOn::Set(set),
            timeout_ms: ms_until(self.deadline),
        })
    }

    pub(crate) fn awaited(&self) -> Awaited {
        self.awaited
    }

    /// A signal came to the thread: the next check is the last.
    pub fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    /// Sleeps, after a check that found nothing.
    ///
    /// # Errors
    ///
    /// If the kernel can not wait.
    pub fn sleep(&mut self) -> Result<(), OpError> {
        self.sleep_until(self.deadline)
    }

    /// As [`sleep`](Self::sleep), for this time at most.
    ///
    /// # Errors
    ///
    /// As there.
    pub(crate) fn sleep_at_most(&mut self, most: Duration) -> Result<(), OpError> {
        let until = [self.deadline, deadline(most)].into_iter().flatten().min();
        self.sleep_until(until)
    }

    fn sleep_until(&mut self, deadline: Option<Instant>) -> Result<(), OpError> {
        let Some(epoll) = &self.epoll else {
            return Ok(());
        };
        let slept = sleep_on(epoll, deadline).map_err(|e| OpError::Failed(e.errno()))?;
        if slept == Woken::Interrupted {
            self.interrupt();
        }
        Ok(())
    }

    /// The next step after a check that found nothing.
    ///
    /// # Errors
    ///
    /// The wait is over: `EINTR` after a signal to the thread, `Again` at the deadline.
    pub(crate) fn after_empty_look(&self) -> Result<WaitStep, OpError> {
        let now = Instant::now();
        if self.is_interrupted {
            return Err(OpError::Failed(Errno::EINTR));
        }
        if self.deadline.is_some_and(|at| now >= at) {
            return Err(OpError::Again);
        }
        Ok(if now < self.spin_until {
            WaitStep::Spin
        } else if self.epoll.is_none() {
            WaitStep::TakeSet
        } else {
            WaitStep::Sleep
        })
    }

    /// Counts a check while the wait spins, which may yield the processor.
    pub(crate) fn count_look(&self, moved: bool) {
        self.polls.count(moved);
    }

    /// The wait spins once more from now on.
    pub(crate) fn spin_again(&mut self, spin: Duration) {
        self.spin_until = Instant::now() + spin;
    }

    /// Gives the wait the set that it sleeps on.
    pub(crate) fn sleep_on(&mut self, set: Epoll) {
        self.epoll = Some(set);
    }

    /// The thread is among the sleepers, at this place.
    pub(crate) fn begin_sleep(&mut self, place: usize) {
        self.waiter = Some(place);
    }

    /// The thread sleeps no more. Returns its place among the sleepers, if it had one.
    pub(crate) fn end_sleep(&mut self) -> Option<usize> {
        self.waiter.take()
    }

    /// Returns the set.
    pub(crate) fn end(&mut self) -> Option<Epoll> {
        self.epoll.take()
    }
}

/// The next step of a wait after a check that found nothing.
pub(crate) enum WaitStep {
    /// It checks again at once.
    Spin,
    /// It needs a set to sleep on.
    TakeSet,
    /// It sleeps.
    Sleep,
}

/// The end of a wait; never, if it is beyond the range of the clock.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}
