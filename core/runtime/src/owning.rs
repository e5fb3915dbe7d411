//! The safe way to send and receive: an endpoint that owns the buffers of its operations while they
//! are under way, and returns them with the completion.

mod buffer;
mod completion;
mod elements;
mod one_sided;
mod shared_buffer;
mod shared_elements;

use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slab::Slab;

pub use buffer::Buffer;
pub use completion::{EndedOperation, OwnedCompletion};
pub use elements::{
    AtomicElement, AtomicInteger, ElementValues, FetchedValues, StdAtomicInteger, bytes_of,
    combine, elements_of,
};
pub use one_sided::AtomicValues;
pub use shared_buffer::SharedBuffer;
pub use shared_elements::SharedElements;

use crate::fabric::{Av, Cq, CqAttr, Domain, Endpoint, EndpointConfig};
use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, OpError, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};

struct InFlightOperation {
    buffer: Buffer,
    token: u64,
    peer: FiAddr,
}

#[inline]
fn send_op(kind: MsgKind, dest: FiAddr, data: Option<u64>) -> SendOp {
    SendOp {
        kind,
        dest,
        tag: 0,
        data: data.unwrap_or(0),
        desc: MrDesc::NONE,
        context: NO_SLOT,
        flags: match data {
            Some(_) => Flags::REMOTE_CQ_DATA,
            None => Flags::empty(),
        },
    }
}

#[inline]
fn recv_op(kind: MsgKind, src: FiAddr) -> RecvOp {
    RecvOp {
        kind,
        src,
        tag: 0,
        ignore: 0,
        desc: MrDesc::NONE,
        context: NO_SLOT,
        flags: Flags::empty(),
    }
}

const READ_BATCH: usize = 16;

/// The context of operations without a buffer.
const NO_SLOT: u64 = 0;

#[inline]
fn context_of(slot: usize) -> u64 {
    slot as u64 + 1
}

/// An endpoint with an address vector and a completion queue of its own.
pub struct OwningEndpoint {
    endpoint: ManuallyDrop<Arc<dyn Endpoint>>,
    cq: Arc<dyn Cq>,
    av: Arc<dyn Av>,
    in_flight: ManuallyDrop<Slab<InFlightOperation>>,
    /// Flags of each send.
    send_flags: Flags,
    batch: [Completion; READ_BATCH],
    batch_at: usize,
    batch_end: usize,
}

impl OwningEndpoint {
    /// Opens an endpoint on a domain. A message of an unknown source completes with no source,
    /// whether the domain has `FI_SOURCE_ERR` or not (that is [`EndpointConfig::source_err`]).
    ///
    /// # Errors
    ///
    /// As [`Domain::open_endpoint`].
    pub fn open(domain: &dyn Domain, av: &AvAttr) -> Result<Self> {
        Self::open_with(domain, av, |_| {})
    }

    /// As [`open`](Self::open), with attributes of the endpoint that `differ` changes.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn open_with(
        domain: &dyn Domain,
        av: &AvAttr,
        differ: impl FnOnce(&mut EndpointConfig),
    ) -> Result<Self> {
        let av = domain.open_av(av)?;
        let cq = domain.open_cq(&CqAttr::default())?;
        let mut config = EndpointConfig::new(&av, &cq);
        differ(&mut config);
        let endpoint = domain.open_endpoint(config)?;
        Ok(Self {
            endpoint: ManuallyDrop::new(endpoint),
            cq,
            av,
            in_flight: ManuallyDrop::new(Slab::new()),
            send_flags: Flags::empty(),
            batch: [Completion::BLANK; READ_BATCH],
            batch_at: 0,
            batch_end: 0,
        })
    }

    /// The endpoint's native address, which is all that a peer needs.
    pub fn name(&self) -> NativeAddr {
        self.endpoint.name()
    }

    /// Its address in the domain's format.
    pub fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Its address vector.
    pub fn av(&self) -> &Arc<dyn Av> {
        &self.av
    }

    /// The counters of its transports, by name.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    pub fn stats(&self) -> std::result::Result<Vec<(&'static str, u64)>, OpError> {
        self.endpoint.stats()
    }

    /// Whether an operation with this token is under way.
    pub fn is_under_way(&self, token: u64) -> bool {
        self.in_flight.iter().any(|(_, o)| o.token == token)
    }

    /// Operations under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Whether each send from now on is followed by another at once (fi_msg(3), `FI_MORE`): one
    /// doorbell of the device then covers them all, with the first send that no other follows.
    #[inline]
    pub fn set_more(&mut self, more: bool) {
        self.send_flags.set(Flags::MORE, more);
    }

    /// Whether the sends from now on complete when the message is in the buffer of its receive
    /// (`FI_DELIVERY_COMPLETE`). Injects have no completion.
    pub fn set_delivery_complete(&mut self, complete: bool) {
        self.send_flags.set(Flags::DELIVERY_COMPLETE, complete);
    }

    /// As [`Endpoint::flush`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn flush(&self, timeout: Option<Duration>) -> std::result::Result<(), OpError> {
        self.endpoint.flush(timeout)
    }

    /// As [`Endpoint::lose_undelivered`].
    pub fn lose_undelivered(&self) {
        self.endpoint.lose_undelivered();
    }

    /// As [`Cq::wait_fd`], of its completion queue.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn wait_fd(&self) -> Result<BorrowedFd<'_>> {
        self.cq.wait_fd()
    }

    /// As [`Cq::try_wait`], of its completion queue.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_wait(&self) -> std::result::Result<(), OpError> {
        match self.batch_at == self.batch_end {
            true => self.cq.try_wait(),
            false => Err(OpError::Again),
        }
    }

    /// As [`Cq::try_wait_for_capacity`], of its completion queue.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_wait_for_capacity(&self) -> std::result::Result<(), OpError> {
        match self.batch_at == self.batch_end {
            true => self.cq.try_wait_for_capacity(),
            false => Err(OpError::Again),
        }
    }

    /// Waits until a call that was refused with `Again` is accepted or fails, at most for `timeout`
    /// (`None`: for ever): `attempt` makes the call again, and returns whether that is so. Returns
    /// false at the timeout. Operations that end meanwhile stay in the completion queue.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::wait_for_capacity`], except `Again` and `EINTR`.
    #[cold]
    pub fn wait_for_capacity(
        &mut self,
        timeout: Option<Duration>,
        mut attempt: impl FnMut(&mut Self) -> bool,
    ) -> std::result::Result<bool, OpError> {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let endpoint = Arc::clone(&self.endpoint);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            match endpoint.wait_for_capacity(left, &mut || attempt(self)) {
                Ok(()) => return Ok(true),
                Err(OpError::Again) => return Ok(false),
                Err(OpError::Failed(Errno::EINTR)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends the first `len` bytes of a buffer with a tag.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`], and `EINVAL` for more bytes than the buffer has; the error contains
    /// the buffer.
    #[inline]
    pub fn tsend(
        &mut self,
        buffer: Buffer,
        len: usize,
        dest: FiAddr,
        tag: u64,
        token: u64,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        let op = SendOp {
            tag,
            ..send_op(MsgKind::Tagged, dest, None)
        };
        self.post_send(buffer, len, token, op)
    }

    /// Sends the first `len` bytes of a buffer without a tag, and with CQ data if there is any.
    ///
    /// # Errors
    ///
    /// As [`tsend`](Self::tsend).
    #[inline]
    pub fn send(
        &mut self,
        buffer: Buffer,
        len: usize,
        dest: FiAddr,
        data: Option<u64>,
        token: u64,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        self.post_send(buffer, len, token, send_op(MsgKind::Msg, dest, data))
    }

    /// Sends the first `len` bytes of a buffer with the attributes in `op`. The endpoint sets its
    /// context, descriptor and the flag `COMPLETION`.
    ///
    /// # Errors
    ///
    /// As [`tsend`](Self::tsend).
    #[inline]
    pub fn post_send(
        &mut self,
        buffer: Buffer,
        len: usize,
        token: u64,
        op: SendOp,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        if len > buffer.len() {
            return Err((OpError::Failed(Errno::EINVAL), buffer));
        }
        let io = buffer.io(len);
        let (slot, desc) = self.keep(buffer, token, op.dest);
        let op = SendOp {
            desc,
            context: context_of(slot),
            flags: op.flags | self.send_flags | Flags::COMPLETION,
            ..op
        };
        // SAFETY: `in_flight` keeps the buffer, untouched, until the completion of this slot.
        let posted = unsafe { self.endpoint.send(&op, &[io]) };
        self.posted(slot, posted)
    }

    /// Keeps a buffer for an operation. Returns the slot, and the descriptor of the memory.
    #[inline]
    fn keep(&mut self, buffer: Buffer, token: u64, peer: FiAddr) -> (usize, MrDesc) {
        let desc = buffer.desc();
        let operation = InFlightOperation {
            buffer,
            token,
            peer,
        };
        (self.in_flight.insert(operation), desc)
    }

    /// The operation of a slot is posted, or was refused: then its buffer is free.
    #[inline]
    fn posted(
        &mut self,
        slot: usize,
        posted: std::result::Result<(), OpError>,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        posted.map_err(|error| (error, self.in_flight.remove(slot).buffer))
    }

    /// Sends a copy of some bytes with a tag, with no completion.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`].
    #[inline]
    pub fn tinject(
        &self,
        bytes: &[u8],
        dest: FiAddr,
        tag: u64,
    ) -> std::result::Result<(), OpError> {
        let op = SendOp {
            tag,
            ..send_op(MsgKind::Tagged, dest, None)
        };
        self.post_inject(bytes, op)
    }

    /// Sends a copy of some bytes without a tag, and with CQ data if there is any, with no
    /// completion.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::send`].
    #[inline]
    pub fn inject(
        &self,
        bytes: &[u8],
        dest: FiAddr,
        data: Option<u64>,
    ) -> std::result::Result<(), OpError> {
        self.post_inject(bytes, send_op(MsgKind::Msg, dest, data))
    }

    #[inline]
    fn post_inject(&self, bytes: &[u8], op: SendOp) -> std::result::Result<(), OpError> {
        let op = SendOp {
            flags: op.flags | (self.send_flags - Flags::DELIVERY_COMPLETE) | Flags::INJECT,
            ..op
        };
        // SAFETY: with `INJECT` the bytes are needed until return only.
        unsafe {
            self.endpoint
                .send(&op, &[IoBuf::new(bytes.as_ptr(), bytes.len())])
        }
    }

    /// Receives a message whose tag is `tag` but for the bits of `ignore`, from `src` or from any
    /// peer.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::recv`]; the error contains the buffer.
    #[inline]
    pub fn trecv(
        &mut self,
        buffer: Buffer,
        src: FiAddr,
        tag: u64,
        ignore: u64,
        token: u64,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        let op = RecvOp {
            tag,
            ignore,
            ..recv_op(MsgKind::Tagged, src)
        };
        self.post_recv(buffer, token, op)
    }

    /// Receives a message without a tag, from `src` or from any peer.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::recv`]; the error contains the buffer.
    #[inline]
    pub fn recv(
        &mut self,
        buffer: Buffer,
        src: FiAddr,
        token: u64,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        self.post_recv(buffer, token, recv_op(MsgKind::Msg, src))
    }

    /// Receives one message with the attributes in `op`, except its flags, into all memory of the
    /// buffer. The endpoint sets context and descriptor.
    ///
    /// The buffer comes back with the length that it has: [`OwnedCompletion::received`] gives it
    /// that of the message.
    ///
    /// # Errors
    ///
    /// As [`trecv`](Self::trecv).
    #[inline]
    pub fn post_recv(
        &mut self,
        buffer: Buffer,
        token: u64,
        op: RecvOp,
    ) -> std::result::Result<(), (OpError, Buffer)> {
        let io = buffer.memory();
        let (slot, desc) = self.keep(buffer, token, op.src);
        let op = RecvOp {
            desc,
            context: context_of(slot),
            flags: Flags::COMPLETION,
            ..op
        };
        // SAFETY: `in_flight` keeps the buffer, untouched, until the completion of this slot.
        let posted = unsafe { self.endpoint.recv(&op, &[io]) };
        self.posted(slot, posted)
    }

    /// Cancels the receive with a token, unless its message has matched: it ends with `ECANCELED`.
    ///
    /// # Errors
    ///
    /// `ENOENT`: no operation has that token. Else as [`Endpoint::cancel`].
    pub fn cancel(&self, token: u64) -> std::result::Result<(), OpError> {
        let found = self.in_flight.iter().find(|(_, o)| o.token == token);
        let (slot, _) = found.ok_or(OpError::Failed(Errno::ENOENT))?;
        self.endpoint.cancel(context_of(slot))
    }

    /// Drives the endpoint and returns an operation of its own that has ended, if there is one.
    ///
    /// # Errors
    ///
    /// `EBUSY` if the domain belongs to another thread; the error of an inject that failed.
    #[inline]
    pub fn poll(&mut self) -> std::result::Result<Option<OwnedCompletion>, OpError> {
        loop {
            let Some(ended) = self.poll_any()? else {
                return Ok(None);
            };
            if let Some(done) = ended.operation()? {
                return Ok(Some(done));
            }
        }
    }

    /// As `poll`, and returns an inject that failed as an operation that has ended, and a peer's
    /// write with CQ data.
    ///
    /// # Errors
    ///
    /// `EBUSY` when the domain belongs to another thread.
    #[inline]
    pub fn poll_any(&mut self) -> std::result::Result<Option<EndedOperation>, OpError> {
        if self.batch_at == self.batch_end {
            let read = self.cq.read(&mut self.batch);
            return self.next_of_read(read);
        }
        Ok(self.next_of_batch())
    }

    /// As `poll`, and waits, at most for `timeout` (`None`: for ever). `Ok(None)`: none ended in
    /// time.
    ///
    /// # Errors
    ///
    /// As `poll`.
    pub fn wait(
        &mut self,
        timeout: Option<Duration>,
    ) -> std::result::Result<Option<OwnedCompletion>, OpError> {
        let begun = Instant::now();
        loop {
            let left = timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
            let Some(ended) = self.wait_any(left)? else {
                return Ok(None);
            };
            if let Some(done) = ended.operation()? {
                return Ok(Some(done));
            }
        }
    }

    /// As `poll_any`, and waits as `wait` does.
    ///
    /// # Errors
    ///
    /// As `poll_any`.
    pub fn wait_any(
        &mut self,
        timeout: Option<Duration>,
    ) -> std::result::Result<Option<EndedOperation>, OpError> {
        if self.batch_at != self.batch_end {
            return Ok(self.next_of_batch());
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let read = self.cq.sread(&mut self.batch, left);
            // A signal to the thread ends the read, too: also one that stops and continues the
            // process.
            if read != Err(OpError::Again) || left.is_some_and(|left| left.is_zero()) {
                return self.next_of_read(read);
            }
        }
    }

    #[inline]
    fn next_of_read(
        &mut self,
        read: std::result::Result<usize, OpError>,
    ) -> std::result::Result<Option<EndedOperation>, OpError> {
        match read {
            Ok(n) => (self.batch_at, self.batch_end) = (0, n),
            Err(OpError::Again) => return Ok(None),
            Err(e) => return self.poll_error(e).map(Some),
        }
        Ok(self.next_of_batch())
    }

    #[inline]
    fn next_of_batch(&mut self) -> Option<EndedOperation> {
        let completion = self.batch[self.batch_at];
        self.batch_at += 1;
        match self.take(completion.context) {
            Some(operation) => Some(EndedOperation::Operation(operation.ended(Ok(completion)))),
            None => one_sided::peer_write(completion),
        }
    }

    /// The operation of a context, none for an inject.
    #[inline]
    fn take(&mut self, context: u64) -> Option<InFlightOperation> {
        self.in_flight
            .try_remove((context as usize).wrapping_sub(1))
    }

    #[cold]
    fn poll_error(&mut self, error: OpError) -> std::result::Result<EndedOperation, OpError> {
        if error != OpError::Failed(Errno::EAVAIL) {
            return Err(error);
        }
        let failed = Box::new(self.cq.read_error()?.ok_or(OpError::Again)?);
        Ok(match self.take(failed.completion.context) {
            Some(operation) => EndedOperation::Operation(operation.ended(Err(failed))),
            None => EndedOperation::Inject(failed),
        })
    }
}

impl InFlightOperation {
    #[inline]
    fn ended(self, outcome: std::result::Result<Completion, Box<CqError>>) -> OwnedCompletion {
        let Self {
            buffer,
            token,
            peer,
        } = self;
        OwnedCompletion {
            token,
            peer,
            buffer,
            outcome,
        }
    }
}

impl Drop for OwningEndpoint {
    fn drop(&mut self) {
        // On a domain of another thread the endpoint closes later, and uses its buffers until then:
        // they are leaked.
        let closes_now = self.endpoint.cancel(u64::MAX) != Err(OpError::Failed(Errno::EBUSY));
        // SAFETY: neither is used again.
        unsafe {
            ManuallyDrop::drop(&mut self.endpoint);
            if closes_now {
                ManuallyDrop::drop(&mut self.in_flight);
            }
        }
    }
}
