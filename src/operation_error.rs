//! The error of an operation.

use std::fmt;

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::CqError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion};

use crate::operation_id::{AtomicId, CollectiveId, JoinId, ReadId, RecvId, SendId, WriteId};

/// An operation that was refused, that failed, or that did not end in time.
///
/// It has the peer, and the buffer if there is one, which the caller may use again. `?` converts it
/// into [`Error`].
pub struct OperationError {
    operation: FailedOperation,
    peer: Option<FiAddr>,
    errno: Errno,
    why: &'static str,
    buffer: Option<Buffer>,
}

/// The operation, with its number if it was posted.
#[derive(Clone, Copy, Debug)]
enum FailedOperation {
    Send(PostedOrNot<SendId>),
    Recv(Option<RecvId>),
    Read(PostedOrNot<ReadId>),
    Write(PostedOrNot<WriteId>),
    Atomic(PostedOrNot<AtomicId>),
    Inject,
    /// One that waited for capacity.
    Post,
    Join(Option<JoinId>),
    Collective(Option<CollectiveId>),
    Wait(u64),
}

/// An operation that was posted, by its number, or one that was refused, by its length.
#[derive(Clone, Copy, Debug)]
enum PostedOrNot<I> {
    Posted(I),
    Refused(usize),
}

impl<I> PostedOrNot<I> {
    fn id(self) -> Option<I> {
        match self {
            Self::Posted(id) => Some(id),
            Self::Refused(_) => None,
        }
    }

    fn len(self) -> Option<usize> {
        match self {
            Self::Posted(_) => None,
            Self::Refused(len) => Some(len),
        }
    }
}

impl OperationError {
    pub(crate) fn refused_send(
        peer: FiAddr,
        bytes: usize,
        (error, buffer): (OpError, Buffer),
    ) -> Self {
        let why = match error {
            OpError::Again => BACK_PRESSURE,
            OpError::Failed(_) if bytes > buffer.len() => "the buffer has fewer bytes than that",
            OpError::Failed(_) => "",
        };
        Self {
            operation: FailedOperation::Send(PostedOrNot::Refused(bytes)),
            peer: Some(peer),
            errno: error.errno(),
            why,
            buffer: Some(buffer),
        }
    }

    pub(crate) fn refused_read(
        peer: FiAddr,
        bytes: usize,
        (error, buffer): (OpError, Buffer),
    ) -> Self {
        Self {
            operation: FailedOperation::Read(PostedOrNot::Refused(bytes)),
            ..Self::refused_send(peer, bytes, (error, buffer))
        }
    }

    pub(crate) fn refused_write(
        peer: FiAddr,
        bytes: usize,
        (error, buffer): (OpError, Buffer),
    ) -> Self {
        Self {
            operation: FailedOperation::Write(PostedOrNot::Refused(bytes)),
            ..Self::refused_send(peer, bytes, (error, buffer))
        }
    }

    /// A write of more bytes than the peer's region has.
    pub(crate) fn beyond_region(peer: FiAddr, buffer: Buffer) -> Self {
        Self {
            operation: FailedOperation::Write(PostedOrNot::Refused(buffer.len())),
            peer: Some(peer),
            errno: Errno::EINVAL,
            why: "the region has fewer bytes than that",
            buffer: Some(buffer),
        }
    }

    pub(crate) fn refused_atomic(
        peer: FiAddr,
        bytes: usize,
        error: OpError,
        why: &'static str,
    ) -> Self {
        Self {
            operation: FailedOperation::Atomic(PostedOrNot::Refused(bytes)),
            why: match error {
                OpError::Again => BACK_PRESSURE,
                OpError::Failed(_) => why,
            },
            peer: Some(peer),
            errno: error.errno(),
            buffer: None,
        }
    }

    pub(crate) fn refused_recv(peer: FiAddr, (error, buffer): (OpError, Buffer)) -> Self {
        Self {
            operation: FailedOperation::Recv(None),
            peer: known(peer),
            errno: error.errno(),
            why: "",
            buffer: Some(buffer),
        }
    }

    pub(crate) fn refused_inject(peer: FiAddr, error: OpError) -> Self {
        Self {
            operation: FailedOperation::Inject,
            peer: Some(peer),
            errno: error.errno(),
            why: match error {
                OpError::Again => BACK_PRESSURE,
                OpError::Failed(_) => "",
            },
            buffer: None,
        }
    }

    pub(crate) fn failed_inject(failed: &CqError) -> Self {
        Self {
            operation: FailedOperation::Inject,
            peer: known(failed.completion.src),
            errno: failed.errno,
            why: failed.why,
            buffer: None,
        }
    }

    pub(crate) fn failed(done: OwnedCompletion, failed: &CqError) -> Self {
        let (is, token) = (failed.completion.flags, done.token);
        let is_atomic = is.contains(Flags::ATOMIC);
        Self {
            operation: match () {
                () if is.contains(Flags::RECV) => FailedOperation::Recv(Some(RecvId(token))),
                () if is_atomic => FailedOperation::Atomic(PostedOrNot::Posted(AtomicId(token))),
                () if is.contains(Flags::READ) => {
                    FailedOperation::Read(PostedOrNot::Posted(ReadId(token)))
                }
                () if is.contains(Flags::WRITE) => {
                    FailedOperation::Write(PostedOrNot::Posted(WriteId(token)))
                }
                () => FailedOperation::Send(PostedOrNot::Posted(SendId(token))),
            },
            peer: known(done.peer).or(known(failed.completion.src)),
            errno: failed.errno,
            why: failed.why,
            buffer: match failed.errno {
                _ if is_atomic => None,
                Errno::ETRUNC if is.contains(Flags::RECV) => {
                    Some(done.received(failed.completion.len))
                }
                _ => Some(done.buffer),
            },
        }
    }

    /// A join that was refused (`None`), or that has failed.
    pub(crate) fn of_join(id: Option<JoinId>, errno: Errno, why: &'static str) -> Self {
        Self::without_buffer(FailedOperation::Join(id), errno, why)
    }

    /// A collective operation that was refused (`None`), or that has failed.
    pub(crate) fn of_collective(id: Option<CollectiveId>, errno: Errno, why: &'static str) -> Self {
        Self::without_buffer(FailedOperation::Collective(id), errno, why)
    }

    fn without_buffer(operation: FailedOperation, errno: Errno, why: &'static str) -> Self {
        Self {
            operation,
            peer: None,
            errno,
            why,
            buffer: None,
        }
    }

    /// A wait for capacity ended with an error of the endpoint.
    pub(crate) fn not_posted(errno: Errno) -> Self {
        Self::without_buffer(FailedOperation::Post, errno, "")
    }

    /// A wait for an operation ended before the operation.
    pub(crate) fn not_waited(token: u64, errno: Errno, why: &'static str) -> Self {
        Self::without_buffer(FailedOperation::Wait(token), errno, why)
    }

    /// With a reason that the caller has.
    pub(crate) fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    pub(crate) fn token(&self) -> Option<u64> {
        match self.operation {
            FailedOperation::Send(of) => of.id().map(|id| id.0),
            FailedOperation::Recv(id) => id.map(|id| id.0),
            FailedOperation::Read(of) => of.id().map(|id| id.0),
            FailedOperation::Write(of) => of.id().map(|id| id.0),
            FailedOperation::Atomic(of) => of.id().map(|id| id.0),
            FailedOperation::Join(id) => id.map(|id| id.0),
            FailedOperation::Collective(id) => id.map(|id| id.0),
            FailedOperation::Inject | FailedOperation::Post | FailedOperation::Wait(_) => None,
        }
    }

    /// The send, if it is a send that was posted.
    pub fn send_id(&self) -> Option<SendId> {
        match self.operation {
            FailedOperation::Send(of) => of.id(),
            _ => None,
        }
    }

    /// The receive, if it is a receive that was posted.
    pub fn recv_id(&self) -> Option<RecvId> {
        match self.operation {
            FailedOperation::Recv(id) => id,
            _ => None,
        }
    }

    /// The read, if it is a read that was posted.
    pub fn read_id(&self) -> Option<ReadId> {
        match self.operation {
            FailedOperation::Read(of) => of.id(),
            _ => None,
        }
    }

    /// The write, if it is a write that was posted.
    pub fn write_id(&self) -> Option<WriteId> {
        match self.operation {
            FailedOperation::Write(of) => of.id(),
            _ => None,
        }
    }

    /// The atomic operation, if it is one that was posted.
    pub fn atomic_id(&self) -> Option<AtomicId> {
        match self.operation {
            FailedOperation::Atomic(of) => of.id(),
            _ => None,
        }
    }

    /// The join, if it is one that has begun.
    pub fn join_id(&self) -> Option<JoinId> {
        match self.operation {
            FailedOperation::Join(id) => id,
            _ => None,
        }
    }

    /// The collective operation, if it is one that has begun.
    pub fn collective_id(&self) -> Option<CollectiveId> {
        match self.operation {
            FailedOperation::Collective(id) => id,
            _ => None,
        }
    }

    /// The peer; `None` for a receive from any source that no message has matched, for a message of
    /// an unknown source, for a collective operation, and for a wait that ran into its time limit.
    pub fn peer(&self) -> Option<FiAddr> {
        self.peer
    }

    /// The number of the error: [of a peer that is gone](crate#peers-that-are-gone), or one that
    /// the call names which posted the operation.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// [Back-pressure](crate::RdmEndpoint#back-pressure): nothing was posted. The call was one with
    /// `try_` in its name, or the endpoint's
    /// [`send_timeout`](crate::RdmEndpointBuilder::send_timeout) is over.
    pub fn is_again(&self) -> bool {
        self.errno == Errno::EAGAIN
    }

    /// The wait timed out; the operation goes on, and the application may wait for it again.
    pub fn is_timeout(&self) -> bool {
        matches!(self.operation, FailedOperation::Wait(_)) && self.errno == Errno::ETIMEDOUT
    }

    /// The receive was cancelled.
    pub fn is_canceled(&self) -> bool {
        self.errno == Errno::ECANCELED
    }

    /// The operation's buffer; none of an inject or an atomic operation, and none while the
    /// operation goes on. It has the length with which the operation was posted. That of a receive
    /// whose message was too long has the bytes of the message that it has room for.
    pub fn into_buffer(self) -> Option<Buffer> {
        self.buffer
    }

    fn to_error(&self) -> Error {
        let with = |preposition: &str| match self.peer {
            Some(peer) => format!(" {preposition} {peer:?}"),
            None => String::new(),
        };
        let (doing, object) = match self.operation {
            FailedOperation::Send(of) => ("send", with_length("a message", of.len(), with("to"))),
            FailedOperation::Recv(_) => ("receive", format!("a message{}", with("from"))),
            FailedOperation::Read(of) => ("read", with_length(REGION, of.len(), with("of"))),
            FailedOperation::Write(of) => ("write", with_length(REGION, of.len(), with("of"))),
            FailedOperation::Atomic(of) => ("change", with_length(REGION, of.len(), with("of"))),
            FailedOperation::Inject => ("inject", format!("a message{}", with("to"))),
            FailedOperation::Post => ("post", "an operation".to_owned()),
            FailedOperation::Join(_) => ("join", "a group".to_owned()),
            FailedOperation::Collective(_) => ("complete", "a collective operation".to_owned()),
            FailedOperation::Wait(token) => ("wait for", format!("operation {token}")),
        };
        let error = Error::new(self.errno, doing, object);
        match self.why {
            "" => error,
            why => error.mend(why),
        }
    }
}

const BACK_PRESSURE: &str = "the peer takes no more now: `send` and its like wait until it does, \
                             `try_send` and its like are to be called again";

const REGION: &str = "a region";

/// The object of an operation: by its length, where that is known, with the peer.
fn with_length(object: &str, len: Option<usize>, peer: String) -> String {
    match len {
        Some(bytes) => format!("{bytes} bytes{peer}"),
        None => format!("{object}{peer}"),
    }
}

fn known(peer: FiAddr) -> Option<FiAddr> {
    peer.is_some().then_some(peer)
}

impl fmt::Display for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_error().fmt(f)
    }
}

/// The sentence that `Display` prints, for a `main` that returns the error.
impl fmt::Debug for OperationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for OperationError {}

impl From<OperationError> for Error {
    fn from(error: OperationError) -> Self {
        error.to_error()
    }
}
