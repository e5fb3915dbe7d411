//! What happened in a run, as far as anybody could see it: for each receiver its calls in their
//! order, and what they and their completions said.

use ferrofabric_contracts::types::{FiAddr, MsgKind};

/// The number of an endpoint: a rank that closes and opens again has a new one.
pub type Node = usize;

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its number in the run, by which its content is known.
    pub number: usize,
    /// Its sender.
    pub from: Node,
    /// Tagged or not.
    pub kind: MsgKind,
    /// The tag, 0 of untagged ones.
    pub tag: u64,
    /// Bytes.
    pub len: usize,
    /// CQ data.
    pub data: Option<u64>,
    /// It may be lost: its send failed, or its sender closed before it was seen to succeed.
    pub may_be_lost: bool,
}

/// What a completion tells about the message it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Told {
    /// Source address.
    pub src: FiAddr,
    /// Tag.
    pub tag: u64,
    /// Bytes of the whole message.
    pub len: usize,
    /// CQ data.
    pub data: Option<u64>,
    /// The message's number, if its content says so.
    pub number: Option<usize>,
}

/// What became of a receive, or of a piece of a multi-receive.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A message, whole or truncated, so many bytes behind the start of the buffer.
    Message {
        /// What was said of it.
        told: Told,
        /// It had not enough room.
        truncated: bool,
        /// Where it lies in the buffer; the same for all that are not pieces.
        offset: usize,
    },
    /// It was taken back.
    Cancelled,
    /// It failed since its sender is gone.
    Broken,
}

/// A receive that was posted.
#[derive(Clone, Debug)]
pub struct Receive {
    /// Tagged or not.
    pub kind: MsgKind,
    /// The only sender, or any.
    pub src: FiAddr,
    /// Tag.
    pub tag: u64,
    /// Bits of it that do not count.
    pub ignore: u64,
    /// Bytes of the buffer.
    pub room: usize,
    /// It takes many messages.
    pub multi: bool,
    /// What completed, in that order.
    pub outcomes: Vec<Outcome>,
}

/// What happens to a message that a probe finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Stays,
    /// It is claimed, under this number.
    Claimed(u64),
    /// It is dropped.
    Dropped,
}

/// Something at a receiver, in the order in which it happened there.
#[derive(Clone, Debug)]
pub enum Event {
    /// A message was sent to it (a place in [`Receiver::messages`]).
    Sent(usize),
    /// Its sender was told that it stands in its receive's buffer, or was dropped
    /// (`FI_DELIVERY_COMPLETE`).
    Delivered(usize),
    /// A receive was posted (a place in [`Receiver::receives`]).
    Posted(usize),
    /// A receive was to be taken back.
    Cancel {
        /// Which.
        receive: usize,
        /// Whether the call said that it was there.
        found: bool,
    },
    /// Somebody looked for a message.
    Probed {
        /// Tagged or not.
        kind: MsgKind,
        /// The only sender, or any.
        src: FiAddr,
        /// Tag.
        tag: u64,
        /// Bits of it that do not count.
        ignore: u64,
        /// What happens to it.
        fate: Fate,
        /// What was said; nothing if there was none.
        found: Option<Told>,
    },
    /// A claimed message was asked for.
    Claimed {
        /// The claim.
        claim: u64,
        /// The receive that gets it (a place in [`Receiver::receives`]); none: it is dropped.
        receive: Option<usize>,
        /// What was said when it was dropped; nothing if there was none.
        found: Option<Told>,
    },
    /// The application has read the completion with this number of a receive.
    Completed {
        /// Which.
        receive: usize,
        /// The place in [`Receive::outcomes`].
        outcome: usize,
    },
    /// A sender is in the address vector from now on.
    Inserted(Node, FiAddr),
    /// It is not any more.
    Removed(Node),
    /// A sender has closed.
    SenderClosed(Node),
}

/// All about one receiver.
#[derive(Clone, Debug, Default)]
pub struct Receiver {
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Messages that were sent to it, in order.
    pub messages: Vec<Message>,
    /// Receives that it posted, in order.
    pub receives: Vec<Receive>,
    /// It was closed before the end: nobody knows what became of what was there.
    pub closed: bool,
}
