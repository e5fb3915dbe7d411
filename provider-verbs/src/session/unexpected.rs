//! Unexpected messages: eager ones with their data (bounded by the credit of each sender),
//! rendezvous messages as the method that gets their data.

use slab::Slab;

use super::payload::UnexpectedData;

use ferrofabric_protocol::wire::data::{MemorySegment, RendezvousRequest};

/// An unexpected message.
pub(crate) struct RdmUnexpectedMessage {
    /// Its peer, by the index in the peer table.
    pub(crate) peer: u32,
    /// The name of its session: a request to send can be matched, and credit returned, only while
    /// that session lives.
    pub(crate) session: u64,
    /// The message.
    pub(crate) body: UnexpectedBody,
}

// A peer makes this side keep a million envelopes.
const _: () = assert!(size_of::<RdmUnexpectedMessage>() <= 96);

/// The data that was kept of the message.
pub(crate) enum UnexpectedBody {
    /// The data.
    Eager(UnexpectedData),
    /// The first fragments of the data: the others are under way.
    Arriving {
        /// Length of the whole, in bytes.
        total_bytes: usize,
        /// The data that has arrived.
        bytes: Vec<u8>,
    },
    /// A request to send.
    Request {
        /// The ID of the sender's operation.
        op: u64,
        /// How the data comes.
        method: TransferMethod,
    },
    /// The envelope of a message that waits at its sender.
    Envelope {
        /// The ID of the sender's operation.
        op: u64,
    },
}

/// How the data of a rendezvous message is moved.
pub(crate) enum TransferMethod {
    /// This side reads it from these pieces of the sender's memory.
    Read(Vec<MemorySegment>),
    /// The sender writes it, once it has a buffer for it.
    Written,
}

impl TransferMethod {
    /// That of a request to send.
    pub(crate) fn of(request: &RendezvousRequest<'_>) -> Self {
        match request.sender_writes {
            true => Self::Written,
            false => Self::Read(request.segments().collect()),
        }
    }
}

/// All unexpected messages of an endpoint.
#[derive(Default)]
pub(crate) struct RdmUnexpectedMessages(Slab<RdmUnexpectedMessage>);

impl RdmUnexpectedMessages {
    /// Keeps a message; returns the value of its token.
    #[inline]
    pub(crate) fn keep(&mut self, message: RdmUnexpectedMessage) -> u64 {
        self.0.insert(message) as u64
    }

    /// Takes a message out.
    #[inline]
    pub(crate) fn take(&mut self, token: u64) -> Option<RdmUnexpectedMessage> {
        self.0.try_remove(token as usize)
    }

    /// A message, to be read.
    pub(crate) fn message(&self, token: u64) -> Option<&RdmUnexpectedMessage> {
        self.0.get(token as usize)
    }

    /// Appends the next fragment to an arriving message; `last` if it is the last one.
    pub(crate) fn append(&mut self, token: u64, part: &[u8], last: bool) {
        let message = self.0.get_mut(token as usize);
        let Some(UnexpectedBody::Arriving { bytes, .. }) = message.map(|message| &mut message.body)
        else {
            return;
        };
        bytes.extend_from_slice(part);
        if last {
            let whole = UnexpectedData::from(std::mem::take(bytes));
            if let Some(message) = self.0.get_mut(token as usize) {
                message.body = UnexpectedBody::Eager(whole);
            }
        }
    }

    /// Messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
