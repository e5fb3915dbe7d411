//! Messages that wait for a receive: eager ones with their data (bounded by the credit that each
//! sender has), requests of large ones as how to get them.

use slab::Slab;

use super::payload::Payload;

use ferrofabric_protocol::wire::data::Segment;

/// One waiting message.
pub(crate) struct HeldMessage {
    /// The peer it came from, by its place in the peer table.
    pub(crate) peer: u32,
    /// Name of the session it came on: a request can be met, and credit returned, only while that
    /// lives.
    pub(crate) session: u64,
    /// The message.
    pub(crate) body: Body,
}

/// The data that was kept of the message.
pub(crate) enum Body {
    /// The data.
    Eager(Payload),
    /// The first of the data: the rest is on its way.
    Arriving {
        /// Length of the whole, in bytes.
        total_bytes: usize,
        /// What is here.
        bytes: Vec<u8>,
    },
    /// Where the data is.
    Request {
        /// The sender's operation.
        op: u64,
        /// How the data comes.
        way: Way,
    },
}

/// How a large message gets here.
pub(crate) enum Way {
    /// We read it from these pieces of the sender's memory.
    Read(Vec<Segment>),
    /// The sender writes it, once it knows where.
    Written,
}

/// All waiting messages of an endpoint.
#[derive(Default)]
pub(crate) struct Held(Slab<HeldMessage>);

impl Held {
    /// Keeps a message; returns the token's value by which it is found again.
    pub(crate) fn keep(&mut self, message: HeldMessage) -> u64 {
        self.0.insert(message) as u64
    }

    /// Takes a message out.
    pub(crate) fn take(&mut self, token: u64) -> Option<HeldMessage> {
        self.0.try_remove(token as usize)
    }

    /// Looks at a message.
    pub(crate) fn message(&self, token: u64) -> Option<&HeldMessage> {
        self.0.get(token as usize)
    }

    /// Puts the next part, not the last, or the last, to a message that is arriving.
    pub(crate) fn append(&mut self, token: u64, part: &[u8], last: bool) {
        let message = self.0.get_mut(token as usize);
        let Some(Body::Arriving { bytes, .. }) = message.map(|message| &mut message.body) else {
            return;
        };
        bytes.extend_from_slice(part);
        if last {
            let whole = Payload::from(std::mem::take(bytes));
            if let Some(message) = self.0.get_mut(token as usize) {
                message.body = Body::Eager(whole);
            }
        }
    }

    /// Messages that wait.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
