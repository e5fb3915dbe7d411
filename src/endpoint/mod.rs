//! The endpoint that a Rust program holds.

mod back_pressure;
mod queue;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::Address;
use ferrofabric_contracts::atomics::AtomicOp;
use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_contracts::types::{FiAddr, RmaOp};
use ferrofabric_runtime::fabric::{Av, Domain};
use ferrofabric_runtime::owning::{AtomicElement, AtomicValues, Buffer, OwningEndpoint};

use crate::group_driver::{GroupDriver, RESERVED_TAG};
use crate::operation::{CompletedOperation, Inbound, Outbound};
use crate::operation_error::OperationError;
use crate::operation_id::{RecvId, SendId};
use crate::operation_output::OperationId;
use crate::peer_address::PeerAddress;

pub(crate) use back_pressure::Patience;

/// Why a tag is refused.
const RESERVED: &str = "the highest bit of a tag is that of collective operations here";

/// The time after which a flush looks for messages of groups.
const FLUSH_SLICE: Duration = Duration::from_millis(5);

/// Time limit of the flush when an endpoint is dropped.
pub const DROP_FLUSH: Duration = Duration::from_secs(1);

/// An endpoint for reliable messages to any number of peers (`FI_EP_RDM`), with an address vector
/// and a completion queue of its own.
///
/// Sends and receives take a [`Buffer`](crate::Buffer) and return at once; the buffer comes back
/// with the operation's completion. Completions are taken one by one ([`poll`](Self::poll),
/// [`wait`](Self::wait), [`completions`](Self::completions)) or for one operation
/// ([`wait_for`](Self::wait_for)), which keeps those of all others.
///
/// These calls also move the endpoint's messages on, unless it was opened with
/// [`Progress::Auto`](crate::info::Progress::Auto). A message to a new peer, and a long one, needs
/// several calls: [`flush`](Self::flush) before the thread computes, sleeps, or waits for another
/// endpoint. A call that waits sleeps, after the setting [`spin`](crate::config::Settings::spin).
///
/// # Back-pressure
///
/// A peer that receives nothing for a while takes only so many messages, and an endpoint has only
/// so many reads and atomic operations under way. A call that posts one more waits then: it drives
/// the endpoint, keeps the completions that it meets for later calls, in their order, and goes on
/// when the peer or the device has made capacity, or fails when the peer [is
/// gone](crate#peers-that-are-gone). Such calls are [`send`](Self::send), [`inject`](Self::inject)
/// and [`tinject`](Self::tinject), and those of [one-sided](Self#one-sided-operations) and
/// [atomic](Self#atomic-operations) operations. Each has a form with `try_` in its name, as
/// [`try_send`](Self::try_send), which does not wait: it is refused with `EAGAIN`.
/// [`prepare_wait_for_capacity`](Self::prepare_wait_for_capacity) is for programs that wait on the
/// descriptor.
///
/// A wait has no end while the peer lives and receives nothing, unless the endpoint was opened with
/// [`send_timeout`](crate::RdmEndpointBuilder::send_timeout). So two endpoints that only send to
/// each other wait for each other, and **a thread that owns both ends waits for itself**: it calls
/// `try_send` and takes the messages of the other end when that is refused.
///
/// ```
/// # use std::time::Duration;
/// # use ferrofabric::{Buffer, CompletedOperation, PathChoice, RdmEndpoint};
/// # let mut left = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// # let mut right = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
/// # let to_right = left.insert(right.address())?;
/// const MESSAGES: u32 = 10_000;
/// let (mut sent, mut received) = (0, 0);
/// right.recv(Buffer::new(4)?)?;
/// while received < MESSAGES {
///     while sent < MESSAGES {
///         match left.try_inject(to_right, &u32::to_le_bytes(sent)) {
///             Ok(()) => sent += 1,
///             Err(error) if error.is_again() => break,
///             Err(error) => return Err(error.into()),
///         }
///     }
///     left.poll()?;
///     if let Some(CompletedOperation::Received(_, message)) = right.poll()? {
///         assert_eq!(message.bytes(), u32::to_le_bytes(received));
///         received += 1;
///         right.recv(message.into_buffer())?;
///     }
/// }
/// # Ok::<(), ferrofabric::Error>(())
/// ```
///
/// # Close
///
/// The message of a completed send, or of an inject that returned, may still be under way: no peer
/// has it yet. [`close`](Self::close) waits until each message is where its peer finds it. Dropping
/// the endpoint does the same for [`DROP_FLUSH`] (1 s) at most. It then waits for what was injected
/// alone, as long as the setting [`close_timeout`](crate::config::Settings::close_timeout) says, and
/// loses the rest without an error: sends to peers that are not reached in that time, and long
/// messages for which the peer posts no receive in that time. If the process exits without either, by a signal or
/// [`std::process::exit`], it loses all messages that are still under way: call
/// [`flush`](Self::flush) first.
pub struct RdmEndpoint {
    inner: OwningEndpoint,
    domain: Arc<dyn Domain>,
    /// Completions that were taken during a wait for another operation.
    finished: VecDeque<CompletedOperation>,
    next_token: u64,
    /// The longest wait for capacity; `None`: for ever.
    send_timeout: Option<Duration>,
    /// Whether `drop` must flush: [`RdmEndpoint::close`] has not done so.
    flushes_at_drop: bool,
    collectives: Option<Box<GroupDriver>>,
}

impl RdmEndpoint {
    pub(crate) fn over(
        domain: Arc<dyn Domain>,
        mut inner: OwningEndpoint,
        with_collectives: bool,
        send_timeout: Option<Duration>,
    ) -> Result<Self> {
        // `as_fd` can not fail.
        inner.wait_fd()?;
        let collectives = with_collectives.then(|| Box::new(GroupDriver::new(&mut inner)));
        Ok(Self {
            inner,
            domain,
            finished: VecDeque::new(),
            next_token: 0,
            send_timeout,
            flushes_at_drop: true,
            collectives,
        })
    }

    /// Its address, which peers insert. As text (`to_string`) it can be passed on in a file, on a
    /// command line, or over any other connection.
    pub fn address(&self) -> Address {
        self.inner.address()
    }

    /// Inserts a peer into the address vector, by its [`address`](Self::address), or by the text of
    /// that.
    ///
    /// ```
    /// # use ferrofabric::{PathChoice, RdmEndpoint};
    /// # let endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
    /// # let peer = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
    /// let text = peer.address().to_string();
    /// assert_eq!(endpoint.insert(&text)?, endpoint.insert(peer.address())?);
    /// let error = endpoint.insert("localhost").unwrap_err();
    /// assert!(error.to_string().contains("an address looks like ferro://"));
    /// # Ok::<(), ferrofabric::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// `EINVAL` for text that is no address; the error describes a valid one. Else as
    /// [`Av::insert_all`].
    pub fn insert(&self, peer: impl PeerAddress) -> Result<FiAddr> {
        let address = peer.to_address()?;
        let format = self.domain.info().addr_format;
        let format = match address.has_format(format) {
            true => format,
            false => address.format(),
        };
        let bytes = address.to_bytes(format).map_err(|why| {
            Error::new(Errno::EINVAL, "insert", address.to_string()).mend(why.to_string())
        })?;
        self.inner.av().insert(&bytes)
    }

    /// Removes a peer from the address vector. Sends to it that are under way fail, and its later
    /// messages come from an unknown source.
    ///
    /// # Errors
    ///
    /// `EINVAL` if it is not in the address vector.
    pub fn remove(&self, peer: FiAddr) -> Result<()> {
        self.inner.av().remove(peer)
    }

    /// Sends a message. Waits until there is capacity for it: see [above](Self#back-pressure).
    ///
    /// # Errors
    ///
    /// The error contains the buffer. `EINVAL`: the length is beyond the buffer. `EMSGSIZE`: longer
    /// than the domain's limit, `ep.max_msg_size` of its [`info`](Domain::info). `EADDRNOTAVAIL`:
    /// no such peer. `ECONNRESET`, `ESHUTDOWN`, `EHOSTUNREACH`: the peer [is
    /// gone](crate#peers-that-are-gone), possibly while the call waited. `EAGAIN`
    /// ([`OperationError::is_again`]): there was no capacity in the time of
    /// [`send_timeout`](crate::RdmEndpointBuilder::send_timeout).
    pub fn send(
        &mut self,
        to: FiAddr,
        message: impl Into<Outbound>,
    ) -> Result<SendId, OperationError> {
        self.post_message(to, message.into(), Patience::Waits)
    }

    /// As [`send`](Self::send), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_send(
        &mut self,
        to: FiAddr,
        message: impl Into<Outbound>,
    ) -> Result<SendId, OperationError> {
        self.post_message(to, message.into(), Patience::Tries)
    }

    fn post_message(
        &mut self,
        to: FiAddr,
        message: Outbound,
        patience: Patience,
    ) -> Result<SendId, OperationError> {
        let (op, len) = (message.form.operation(to), message.form.len);
        if self.is_reserved(op.tag) {
            let refused = (OpError::Failed(Errno::EINVAL), message.buffer);
            return Err(OperationError::refused_send(to, len, refused).because(RESERVED));
        }
        let token = self.next_token;
        self.post(to, patience, message.buffer, |inner, buffer| {
            inner.post_send(buffer, len, token, op)
        })
        .map_err(|refused| OperationError::refused_send(to, len, refused))?;
        self.next_token += 1;
        Ok(SendId(token))
    }

    /// Sends a copy of a short message, without a completion: one that fails later is a
    /// [`CompletedOperation::Failed`]. The longest has `endpoint.domain().info().tx.inject_size`
    /// bytes: 4096 through shared memory, and fewer over some devices. Waits until there is
    /// capacity for it: see [above](Self#back-pressure).
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send). `EMSGSIZE`: longer than that.
    pub fn inject(&mut self, to: FiAddr, bytes: &[u8]) -> Result<(), OperationError> {
        self.post_inject(to, None, bytes, Patience::Waits)
    }

    /// As [`inject`](Self::inject), without a wait.
    ///
    /// # Errors
    ///
    /// As there. `EAGAIN` ([`OperationError::is_again`]): there is no capacity now.
    pub fn try_inject(&mut self, to: FiAddr, bytes: &[u8]) -> Result<(), OperationError> {
        self.post_inject(to, None, bytes, Patience::Tries)
    }

    /// As [`inject`](Self::inject), with a tag.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn tinject(&mut self, to: FiAddr, tag: u64, bytes: &[u8]) -> Result<(), OperationError> {
        self.post_inject(to, Some(tag), bytes, Patience::Waits)
    }

    /// As [`try_inject`](Self::try_inject), with a tag.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_tinject(
        &mut self,
        to: FiAddr,
        tag: u64,
        bytes: &[u8],
    ) -> Result<(), OperationError> {
        self.post_inject(to, Some(tag), bytes, Patience::Tries)
    }

    fn post_inject(
        &mut self,
        to: FiAddr,
        tag: Option<u64>,
        bytes: &[u8],
        patience: Patience,
    ) -> Result<(), OperationError> {
        if tag.is_some_and(|tag| self.is_reserved(tag)) {
            let refused = OpError::Failed(Errno::EINVAL);
            return Err(OperationError::refused_inject(to, refused).because(RESERVED));
        }
        self.post(to, patience, (), |inner, ()| {
            let injected = match tag {
                Some(tag) => inner.tinject(bytes, to, tag),
                None => inner.inject(bytes, to, None),
            };
            injected.map_err(|error| (error, ()))
        })
        .map_err(|(error, ())| OperationError::refused_inject(to, error))
    }

    /// Receives a message, into all memory of the buffer ([`Buffer::capacity`]). One that is longer
    /// ends the receive with `ETRUNC`: the buffer has its first bytes, and the others are lost.
    ///
    /// # Errors
    ///
    /// The error contains the buffer. `EBUSY`: the endpoint belongs to another thread.
    pub fn recv(&mut self, into: impl Into<Inbound>) -> Result<RecvId, OperationError> {
        let into = into.into();
        let mut op = into.operation();
        if self.is_reserved(op.tag) {
            let refused = (OpError::Failed(Errno::EINVAL), into.buffer);
            return Err(OperationError::refused_recv(op.src, refused).because(RESERVED));
        }
        if self.collectives.is_some() {
            op.ignore &= !RESERVED_TAG;
        }
        let token = self.next_token;
        (self.inner.post_recv(into.buffer, token, op))
            .map_err(|refused| OperationError::refused_recv(op.src, refused))?;
        self.next_token += 1;
        Ok(RecvId(token))
    }

    /// Posts a one-sided operation on the first `len` bytes of a buffer, and returns its number.
    pub(crate) fn post_one_sided(
        &mut self,
        op: RmaOp,
        buffer: Buffer,
        len: usize,
        patience: Patience,
    ) -> Result<u64, (OpError, Buffer)> {
        let token = self.next_token;
        self.post(op.dest, patience, buffer, |inner, buffer| {
            inner.post_rma(buffer, len, token, op)
        })?;
        self.next_token += 1;
        Ok(token)
    }

    /// Posts an atomic operation, and returns its number.
    pub(crate) fn post_atomic_op<T: AtomicElement>(
        &mut self,
        op: AtomicOp,
        values: AtomicValues<'_, T>,
        patience: Patience,
    ) -> Result<u64, OpError> {
        let token = self.next_token;
        self.post(op.dest, patience, (), |inner, ()| {
            let posted = inner.post_atomic(op, values, token);
            posted.map_err(|error| (error, ()))
        })
        .map_err(|(error, ())| error)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Whether a tag is one of collectives' messages.
    fn is_reserved(&self, tag: u64) -> bool {
        self.collectives.is_some() && tag & RESERVED_TAG != 0
    }

    /// Calls the collective operations, if the endpoint has them.
    pub(crate) fn with_collectives<T>(
        &mut self,
        call: impl FnOnce(&mut GroupDriver, &mut OwningEndpoint) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let collectives = self.collectives.as_mut().ok_or(Errno::ENOSYS)?;
        call(collectives, &mut self.inner)
    }

    /// Begins a collective operation, and returns its number.
    pub(crate) fn begin_collective(
        &mut self,
        call: impl FnOnce(&mut GroupDriver, &mut OwningEndpoint, u64) -> Result<(), Errno>,
    ) -> Result<u64, Errno> {
        let token = self.next_token;
        self.with_collectives(|collectives, inner| call(collectives, inner, token))?;
        self.next_token += 1;
        Ok(token)
    }

    /// Cancels a receive that no message has matched. It completes as cancelled
    /// ([`OperationError::is_canceled`]), with its buffer.
    ///
    /// # Errors
    ///
    /// `ENOENT`: a message has matched it, or it is complete.
    pub fn cancel(&mut self, receive: RecvId) -> Result<()> {
        let cancelled = self.inner.cancel(receive.0);
        cancelled
            .map_err(|error| Error::new(error.errno(), "cancel", format!("receive {}", receive.0)))
    }

    /// The next completed operation, if there is one.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the endpoint belongs to another thread. `ENOMEM`: completions were lost.
    pub fn poll(&mut self) -> Result<Option<CompletedOperation>> {
        if let Some(completed) = self.finished.pop_front() {
            return Ok(Some(completed));
        }
        self.poll_queue()
    }

    /// The next completed operation, within this time (`None`: for ever); `Ok(None)` after that
    /// time.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ferrofabric::{Buffer, CompletedOperation, MessageSource, PathChoice, RdmEndpoint};
    /// # let mut server = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
    /// # let to_itself = server.insert(server.address())?;
    /// # server.recv(Buffer::new(16)?)?;
    /// # server.inject(to_itself, b"echo")?;
    /// while let Some(completed) = server.wait(Some(Duration::from_secs(10)))? {
    ///     match completed {
    ///         CompletedOperation::Received(_, question) => {
    ///             let MessageSource::Known(peer) = *question.source() else { continue };
    ///             server.send(peer, question.into_buffer())?;
    ///         }
    ///         CompletedOperation::Sent(_, buffer) => {
    ///             server.recv(buffer)?;
    /// #           break;
    ///         }
    ///         CompletedOperation::Failed(error) => eprintln!("{error}"),
    ///         _ => println!("no one-sided operation was posted"),
    ///     }
    /// }
    /// # Ok::<(), ferrofabric::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`poll`](Self::poll).
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<CompletedOperation>> {
        if let Some(completed) = self.finished.pop_front() {
            return Ok(Some(completed));
        }
        self.wait_queue(timeout.and_then(deadline))
    }

    /// Waits for one operation, within this time (`None`: for ever), and returns its output: the
    /// [`ReceivedMessage`](crate::ReceivedMessage) of a receive, the [`Group`](crate::Group) of a
    /// join, the elements of an atomic or a collective operation, the buffer of all others.
    /// Completions of other operations meanwhile are kept for later calls.
    ///
    /// # Errors
    ///
    /// The error of the operation. `ETIMEDOUT` ([`OperationError::is_timeout`]): the operation goes
    /// on.
    /// `ENOENT`: its completion was taken already.
    pub fn wait_for<I: OperationId>(
        &mut self,
        operation: I,
        timeout: Option<Duration>,
    ) -> Result<I::Output, OperationError> {
        let token = operation.token();
        let deadline = timeout.and_then(deadline);
        if let Some(output) = self.take_finished(operation)? {
            return Ok(output);
        }
        loop {
            match self.wait_queue(deadline) {
                Ok(Some(completed)) if operation.names(&completed) => {
                    if let Some(output) = I::output(completed) {
                        return output;
                    }
                }
                Ok(Some(other)) => self.finished.push_back(other),
                Ok(None) => {
                    let why = "it goes on";
                    return Err(OperationError::not_waited(token, Errno::ETIMEDOUT, why));
                }
                Err(error) => return Err(OperationError::not_waited(token, error.errno(), "")),
            }
        }
    }

    /// The output of an operation that has ended while another was waited for; `None` while the
    /// operation goes on.
    pub(crate) fn take_finished<I: OperationId>(
        &mut self,
        operation: I,
    ) -> Result<Option<I::Output>, OperationError> {
        let token = operation.token();
        while let Some(ended) = self.take_ended_collective() {
            self.finished.push_back(ended);
        }
        let at = (self.finished.iter()).position(|one| operation.names(one));
        if let Some(completed) = at.and_then(|at| self.finished.remove(at)) {
            return I::output(completed).transpose();
        }
        let is_collective = |collectives: &GroupDriver| collectives.is_under_way(token);
        let collectives = self.collectives.as_deref();
        match self.inner.is_under_way(token) || collectives.is_some_and(is_collective) {
            true => Ok(None),
            false => {
                let why = "its completion was taken already";
                Err(OperationError::not_waited(token, Errno::ENOENT, why))
            }
        }
    }

    /// The first kept completion, except those of operations with these numbers.
    pub(crate) fn take_first_finished(
        &mut self,
        but: impl Fn(u64) -> bool,
    ) -> Option<CompletedOperation> {
        let is_free = |one: &CompletedOperation| !one.token().is_some_and(&but);
        let at = self.finished.iter().position(is_free)?;
        self.finished.remove(at)
    }

    /// Keeps all present completions. Returns whether there was one.
    pub(crate) fn collect(&mut self) -> Result<bool> {
        let mut any = false;
        while let Some(completed) = self.poll_queue()? {
            self.finished.push_back(completed);
            any = true;
        }
        Ok(any)
    }

    /// The operations that complete, one after the other; ends if none completes within this time
    /// (`None`: never). The iterator borrows the endpoint: a loop that sends or receives calls
    /// [`wait`](Self::wait) each time instead.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # use ferrofabric::{Buffer, CompletedOperation, PathChoice, RdmEndpoint};
    /// # let mut endpoint = RdmEndpoint::builder().path(PathChoice::Shm).open()?;
    /// # let to_itself = endpoint.insert(endpoint.address())?;
    /// for bytes in [b"one", b"two"] {
    ///     endpoint.recv(Buffer::new(16)?)?;
    ///     endpoint.inject(to_itself, bytes)?;
    /// }
    /// let mut received = 0;
    /// for completed in endpoint.completions(Some(Duration::from_millis(10))) {
    ///     match completed? {
    ///         CompletedOperation::Received(_, message) => received += message.bytes().len(),
    ///         CompletedOperation::Failed(error) => return Err(error.into()),
    ///         _ => {}
    ///     }
    /// }
    /// assert_eq!(received, 6);
    /// # Ok::<(), ferrofabric::Error>(())
    /// ```
    pub fn completions(&mut self, timeout: Option<Duration>) -> CompletionIter<'_> {
        CompletionIter {
            endpoint: self,
            timeout,
        }
    }

    /// Waits until closing the endpoint loses no message, within this time: see
    /// [above](Self#close). Completions are kept.
    ///
    /// # Errors
    ///
    /// `ETIMEDOUT`: a peer has not received its messages in time.
    pub fn flush(&mut self, timeout: Duration) -> Result<()> {
        let deadline = deadline(timeout);
        loop {
            let mut left = deadline.map(until);
            if self.collectives.is_some() {
                // A peer may wait for this side to discard the messages of a group that has failed.
                self.collect()?;
                left = left.into_iter().chain([FLUSH_SLICE]).min();
            }
            let is_over = || deadline.is_some_and(|at| Instant::now() >= at);
            let error = match self.inner.flush(left) {
                Ok(()) if !self.has_waiting_sends() => return Ok(()),
                Err(OpError::Failed(Errno::EINTR)) => continue,
                Ok(()) | Err(OpError::Again) => {
                    if !is_over() {
                        continue;
                    }
                    Errno::ETIMEDOUT
                }
                Err(OpError::Failed(errno)) => errno,
            };
            return Err(Error::new(error, "flush", "endpoint").mend(
                "a peer does not take what was sent to it: its messages are lost at the end",
            ));
        }
    }

    /// Whether closing the endpoint loses no message now; `None` if it would.
    pub(crate) fn is_flushed(&self) -> Option<Result<(), Errno>> {
        match self.inner.flush(Some(Duration::ZERO)) {
            Ok(()) if !self.has_waiting_sends() => Some(Ok(())),
            Ok(()) | Err(OpError::Again | OpError::Failed(Errno::EINTR)) => None,
            Err(OpError::Failed(errno)) => Some(Err(errno)),
        }
    }

    /// Closes the endpoint once it is flushed, within this time.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush); the endpoint is closed all the same.
    pub fn close(mut self, timeout: Duration) -> Result<()> {
        self.flushes_at_drop = false;
        let flushed = self.flush(timeout);
        if flushed.is_err() {
            // The time is over: no setting makes it longer.
            self.inner.lose_undelivered();
        }
        flushed
    }

    /// Prepares a wait on the descriptor of [`as_fd`](AsFd::as_fd), and returns whether the caller
    /// may wait. If not, there may be a completion already: [`poll`](Self::poll) first. Each wait
    /// needs a call.
    ///
    /// # Errors
    ///
    /// If a device can not be armed.
    pub fn prepare_wait(&mut self) -> Result<bool> {
        Ok(self.finished.is_empty() && self.may_sleep(false)?)
    }

    /// As [`prepare_wait`](Self::prepare_wait), after a call with `try_` in its name was refused
    /// with `EAGAIN`: the descriptor becomes readable also when there may be capacity for it. Make
    /// the call once more between this call and the wait, because capacity that came before this
    /// call is not reported.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn prepare_wait_for_capacity(&mut self) -> Result<bool> {
        Ok(self.finished.is_empty() && self.may_sleep(true)?)
    }

    /// As `prepare_wait`, even if completions of other operations are kept. The descriptor also
    /// tells of capacity, if that is waited for.
    pub(crate) fn may_sleep(&mut self, for_capacity: bool) -> Result<bool> {
        let collectives = self.collectives.as_ref();
        if collectives.is_some_and(|collectives| collectives.has_ended())
            || self.has_waiting_sends()
        {
            return Ok(false);
        }
        let armed = match for_capacity {
            true => self.inner.try_wait_for_capacity(),
            false => self.inner.try_wait(),
        };
        match armed {
            Ok(()) => Ok(true),
            Err(OpError::Again) => Ok(false),
            Err(OpError::Failed(errno)) => Err(Error::new(errno, "wait on", "endpoint")),
        }
    }

    /// Whether there was no room for a message of a collective operation.
    pub(crate) fn has_waiting_sends(&self) -> bool {
        let collectives = self.collectives.as_ref();
        collectives.is_some_and(|collectives| collectives.has_waiting_sends())
    }

    /// The domain, on which other objects may be opened.
    pub fn domain(&self) -> &Arc<dyn Domain> {
        &self.domain
    }

    /// The address vector.
    pub fn av(&self) -> &Arc<dyn Av> {
        self.inner.av()
    }

    /// Statistics of its transports, by name and number.
    ///
    /// # Errors
    ///
    /// `EBUSY`: the endpoint belongs to another thread.
    pub fn stats(&self) -> Result<Vec<(&'static str, u64)>> {
        let stats = self.inner.stats();
        stats.map_err(|error| Error::new(error.errno(), "read", "statistics"))
    }
}

impl AsFd for RdmEndpoint {
    /// Readable if there may be a completion, after each [`prepare_wait`](Self::prepare_wait) that
    /// returned true.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self.inner.wait_fd() {
            Ok(fd) => fd,
            Err(error) => unreachable!("it was opened with the endpoint: {error}"),
        }
    }
}

impl Drop for RdmEndpoint {
    fn drop(&mut self) {
        if self.flushes_at_drop {
            // The error has no taker here; the type's documentation names the loss.
            let _ = self.flush(DROP_FLUSH);
        }
    }
}

/// The completed operations of an endpoint: [`RdmEndpoint::completions`].
pub struct CompletionIter<'a> {
    endpoint: &'a mut RdmEndpoint,
    timeout: Option<Duration>,
}

impl Iterator for CompletionIter<'_> {
    type Item = Result<CompletedOperation>;

    fn next(&mut self) -> Option<Self::Item> {
        self.endpoint.wait(self.timeout).transpose()
    }
}

/// The end of a wait; never, if it is beyond the range of the clock.
fn deadline(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
