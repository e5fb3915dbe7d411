//! The observable history of a run: for each receiver its calls in their order, and the results of
//! these calls and of their completions.

use ferrofabric_contracts::types::{FiAddr, MsgKind};

/// The number of an endpoint: a rank that closes and opens again has a new one.
pub type NodeNumber = usize;

/// A message that was sent.
#[derive(Clone, Debug)]
pub struct SentMessage {
    /// Its number in the run, by which its content is known.
    pub number: usize,
    /// Its sender.
    pub from: NodeNumber,
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
pub struct MessageFacts {
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
pub enum ReceiveOutcome {
    /// A message, whole or truncated, so many bytes behind the start of the buffer.
    Message {
        /// The description by the completion.
        told: MessageFacts,
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
pub struct ReceiveHistory {
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
    pub outcomes: Vec<ReceiveOutcome>,
}

/// The probe's effect on the message that it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeFate {
    /// It stays.
    Stays,
    /// It is claimed, under this number.
    Claimed(u64),
    /// It is dropped.
    Dropped,
}

/// Something at a receiver, in the order in which it happened there.
#[derive(Clone, Debug)]
pub enum ReceiverEvent {
    /// A message was sent to it (a place in [`ReceiverHistory::messages`]).
    Sent(usize),
    /// The sender's completion reported that the message stands in its receive's buffer, or was
    /// dropped (`FI_DELIVERY_COMPLETE`).
    Delivered(usize),
    /// A receive was posted (a place in [`ReceiverHistory::receives`]).
    Posted(usize),
    /// A receive was to be taken back.
    Cancel {
        /// The place in [`ReceiverHistory::receives`].
        receive: usize,
        /// Whether the call said that it was there. `None`: it says the same of one that is over.
        found: Option<bool>,
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
        fate: ProbeFate,
        /// The description of the message that was found, if there was one.
        found: Option<MessageFacts>,
    },
    /// The application received or dropped a claimed message.
    Claimed {
        /// The claim.
        claim: u64,
        /// The receive that gets the message (a place in [`ReceiverHistory::receives`]); none: the
        /// message is dropped.
        receive: Option<usize>,
        /// The description of the message when it was dropped; none if there was none.
        found: Option<MessageFacts>,
    },
    /// The application has read the completion with this number of a receive.
    Completed {
        /// The place in [`ReceiverHistory::receives`].
        receive: usize,
        /// The place in [`ReceiveHistory::outcomes`].
        outcome: usize,
    },
    /// A sender is in the address vector from now on.
    Inserted(NodeNumber, FiAddr),
    /// It is not any more.
    Removed(NodeNumber),
    /// A sender has closed.
    SenderClosed(NodeNumber),
}

/// All about one receiver.
#[derive(Clone, Debug, Default)]
pub struct ReceiverHistory {
    /// Events, in order.
    pub events: Vec<ReceiverEvent>,
    /// Messages that were sent to it, in order.
    pub messages: Vec<SentMessage>,
    /// Receives that it posted, in order.
    pub receives: Vec<ReceiveHistory>,
    /// The receiver was closed before the end, so the outcome of its open operations is unknown.
    pub closed: bool,
}
