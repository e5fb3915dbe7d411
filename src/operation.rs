//! The messages and buffers of operations, and their completions.

use std::fmt;

use ferrofabric_contracts::addr::Address;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::owning::{AtomicElement, Buffer, FetchedValues};

use crate::group::Group;
use crate::operation_error::OperationError;
use crate::operation_id::{AtomicId, CollectiveId, JoinId, ReadId, RecvId, SendId, WriteId};

/// A message to send: the bytes of a buffer, all of them unless [`len`](Self::len) sets a length,
/// without a tag unless it gets one.
///
/// ```
/// # use ferrofabric::{Buffer, Outbound};
/// let greeting = Outbound::from(Buffer::copy_of(b"hello, world")?).len(5).tag(7);
/// # let _ = greeting;
/// # Ok::<(), ferrofabric::Error>(())
/// ```
#[derive(Debug)]
pub struct Outbound {
    pub(crate) buffer: Buffer,
    pub(crate) form: OutboundForm,
}

/// A message to send, without its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OutboundForm {
    pub(crate) len: usize,
    tag: Option<u64>,
    data: Option<u64>,
}

impl From<Buffer> for Outbound {
    fn from(buffer: Buffer) -> Self {
        let form = OutboundForm {
            len: buffer.len(),
            tag: None,
            data: None,
        };
        Self { buffer, form }
    }
}

impl Outbound {
    /// Sends the first `len` bytes alone. The send is refused if the buffer has fewer.
    #[must_use]
    pub fn len(self, len: usize) -> Self {
        let form = OutboundForm { len, ..self.form };
        Self { form, ..self }
    }

    /// With a tag.
    #[must_use]
    pub fn tag(self, tag: u64) -> Self {
        let form = OutboundForm {
            tag: Some(tag),
            ..self.form
        };
        Self { form, ..self }
    }

    /// With CQ data: a number for the receiver's completion (`FI_REMOTE_CQ_DATA`).
    #[must_use]
    pub fn data(self, data: u64) -> Self {
        let form = OutboundForm {
            data: Some(data),
            ..self.form
        };
        Self { form, ..self }
    }
}

impl OutboundForm {
    pub(crate) fn operation(self, dest: FiAddr) -> SendOp {
        SendOp {
            kind: kind_of(self.tag),
            dest,
            tag: self.tag.unwrap_or(0),
            data: self.data.unwrap_or(0),
            desc: MrDesc::NONE,
            context: 0,
            flags: match self.data {
                Some(_) => Flags::REMOTE_CQ_DATA,
                None => Flags::empty(),
            },
        }
    }
}

/// Room for a message to receive, as much as the buffer's memory has ([`Buffer::capacity`]):
/// without a tag and from any source, by default.
///
/// ```
/// # use ferrofabric::{Buffer, FiAddr, Inbound};
/// # fn example(peer: FiAddr) -> Result<(), ferrofabric::Error> {
/// let answer = Inbound::from(Buffer::new(4096)?).source(peer).tag(7);
/// # let _ = answer;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Inbound {
    pub(crate) buffer: Buffer,
    source: FiAddr,
    tag: Option<u64>,
    ignore: u64,
}

impl From<Buffer> for Inbound {
    fn from(buffer: Buffer) -> Self {
        Self {
            buffer,
            source: FiAddr::UNSPEC,
            tag: None,
            ignore: 0,
        }
    }
}

impl Inbound {
    /// Takes messages of one peer only.
    #[must_use]
    pub fn source(self, peer: FiAddr) -> Self {
        Self {
            source: peer,
            ..self
        }
    }

    /// Takes messages with this tag. (Messages with a tag never match receives without one, nor the
    /// reverse.)
    #[must_use]
    pub fn tag(self, tag: u64) -> Self {
        Self {
            tag: Some(tag),
            ..self
        }
    }

    /// Also takes messages whose tag differs in these bits.
    #[must_use]
    pub fn ignore(self, bits: u64) -> Self {
        Self {
            tag: self.tag.or(Some(0)),
            ignore: bits,
            ..self
        }
    }

    pub(crate) fn operation(&self) -> RecvOp {
        RecvOp {
            kind: kind_of(self.tag),
            src: self.source,
            tag: self.tag.unwrap_or(0),
            ignore: self.ignore,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        }
    }
}

fn kind_of(tag: Option<u64>) -> MsgKind {
    match tag {
        Some(_) => MsgKind::Tagged,
        None => MsgKind::Msg,
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub enum CompletedOperation {
    /// A send, whose buffer may be used again.
    Sent(SendId, Buffer),
    /// A receive, with its message.
    Received(RecvId, ReceivedMessage),
    /// A read of a peer's memory, with the buffer that starts with its bytes. Its length is the one
    /// that the read was posted with, or that of the bytes if they are more.
    Read(ReadId, Buffer),
    /// A write, whose bytes are in the peer's memory; the buffer may be used again.
    Wrote(WriteId, Buffer),
    /// An atomic operation that was carried out, with the elements that came back: none, if it
    /// fetches none.
    Atomic(AtomicId, FetchedElements),
    /// A join that is complete, with the group.
    Joined(JoinId, Group),
    /// A collective operation that is complete, with the elements that it has for this member: none
    /// of a barrier.
    Collective(CollectiveId, FetchedElements),
    /// A peer's write with CQ data to a region of this domain: no operation of this endpoint.
    PeerWrote(PeerWrite),
    /// An operation that failed, possibly an inject.
    Failed(OperationError),
}

impl CompletedOperation {
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Sent(id, _) => Some(id.0),
            Self::Received(id, _) => Some(id.0),
            Self::Read(id, _) => Some(id.0),
            Self::Wrote(id, _) => Some(id.0),
            Self::Atomic(id, _) => Some(id.0),
            Self::Joined(id, _) => Some(id.0),
            Self::Collective(id, _) => Some(id.0),
            Self::PeerWrote(_) => None,
            Self::Failed(error) => error.token(),
        }
    }
}

/// The elements that came back from an atomic or a collective operation.
#[derive(Debug)]
pub struct FetchedElements(FetchedMemory);

#[derive(Debug)]
enum FetchedMemory {
    OfAtomic(Buffer),
    OfCollective(Vec<u8>),
}

impl FetchedElements {
    pub(crate) fn of_atomic(buffer: Buffer) -> Self {
        Self(FetchedMemory::OfAtomic(buffer))
    }

    pub(crate) fn of_collective(bytes: Vec<u8>) -> Self {
        Self(FetchedMemory::OfCollective(bytes))
    }

    /// The elements, of the type that the operation had.
    pub fn to_vec<T: AtomicElement>(&self) -> Vec<T> {
        self.to_values()
    }

    pub(crate) fn to_values<V: FetchedValues>(&self) -> V {
        match &self.0 {
            FetchedMemory::OfAtomic(buffer) => V::of_memory(buffer),
            FetchedMemory::OfCollective(bytes) => V::of_memory(bytes),
        }
    }
}

/// The sender of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSource {
    /// A peer that is in the address vector.
    Known(FiAddr),
    /// An unknown source: one that is not in the address vector. Its address, to be inserted;
    /// `None` if the endpoint was opened without such addresses
    /// ([`unknown_sources`](crate::RdmEndpointBuilder::unknown_sources)).
    Unknown(Option<Address>),
}

/// A peer's write with CQ data to a region of this domain. Its bytes are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWrite {
    /// The number of bytes.
    pub len: usize,
    /// The CQ data. The place of the bytes does not come with it.
    pub data: u64,
    /// The peer.
    pub source: MessageSource,
}

/// A message that was received.
pub struct ReceivedMessage {
    /// Its length is the message's.
    pub(crate) buffer: Buffer,
    pub(crate) tag: Option<u64>,
    pub(crate) data: Option<u64>,
    pub(crate) source: MessageSource,
}

impl ReceivedMessage {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Its tag, if it has one.
    pub fn tag(&self) -> Option<u64> {
        self.tag
    }

    /// Its CQ data, if it has any.
    pub fn data(&self) -> Option<u64> {
        self.data
    }

    /// The peer that sent it.
    pub fn source(&self) -> &MessageSource {
        &self.source
    }

    /// The buffer, with the message's bytes and their length: sending it sends the message. The
    /// next receive into it takes messages up to its [capacity](Buffer::capacity) again.
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl fmt::Debug for ReceivedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivedMessage")
            .field("len", &self.buffer.len())
            .field("tag", &self.tag)
            .field("data", &self.data)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}
