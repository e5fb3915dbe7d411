//! The observable history of a run: for each receiver its calls in their order, and the results of
//! these calls and of their completions.

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

/// The description of a message by a completion.
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

/// The result of a receive, or of a piece of a multi-receive.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// A message, whole or truncated, so many bytes behind the start of the buffer.
    Message {
        /// The description by the completion.
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
    /// The results, in the order of their completions.
    pub outcomes: Vec<Outcome>,
}

/// The probe's effect on the message that it finds.
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
    /// The sender's completion reported that the message stands in its receive's buffer, or was
    /// dropped (`FI_DELIVERY_COMPLETE`).
    Delivered(usize),
    /// A receive was posted (a place in [`Receiver::receives`]).
    Posted(usize),
    /// A receive was to be taken back.
    Cancel {
        /// The place in [`Receiver::receives`].
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
        /// The probe's effect on the message.
        fate: Fate,
        /// The description of the message that was found, if there was one.
        found: Option<Told>,
    },
    /// The application received or dropped a claimed message.
    Claimed {
        /// The claim.
        claim: u64,
        /// The receive that gets it (a place in [`Receiver::receives`]); none: it is dropped.
        receive: Option<usize>,
        /// The description of the message when it was dropped; none if there was none.
        found: Option<Told>,
    },
    /// The application has read the completion with this number of a receive.
    Completed {
        /// The place in [`Receiver::receives`].
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
    /// Events, in order.
    pub events: Vec<Event>,
    /// Messages that were sent to it, in order.
    pub messages: Vec<Message>,
    /// Receives that it posted, in order.
    pub receives: Vec<Receive>,
    /// The receiver was closed before the end, so the outcome of its open operations is unknown.
    pub closed: bool,
}
