//! The content of a message's first slot.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched};
use ferrofabric_contracts::types::MsgKind;

use crate::ring::PublishedSlot;
use crate::wire::{DATA, TAGGED};

/// A message as it begins.
pub(super) struct Beginning {
    pub(super) kind: MsgKind,
    pub(super) arrived: Arrived,
    /// The bytes that came with its first slot, in shared memory.
    pub(super) from: *const u8,
    pub(super) len: usize,
    /// The description of the rest, unless the message is complete.
    pub(super) rest: Option<Rest>,
}

/// The rest of a message that needs several slots.
#[derive(Clone, Copy)]
pub(super) struct Rest {
    pub(super) id: u32,
    /// Length of the whole message, and of the part that comes before the first `GO`.
    pub(super) total: u64,
    pub(super) before_go: usize,
    /// Its address in the sender's memory, if it is to be read.
    pub(super) read_from: Option<u64>,
    /// Its sender awaits `DELIVERED`.
    pub(super) wants_delivered: bool,
}

/// A message and the receive that it has matched.
#[derive(Clone, Copy)]
pub(super) struct MatchedMessage {
    pub(super) kind: MsgKind,
    pub(super) matched: Matched,
    pub(super) arrived: Arrived,
}

/// A receive that waited for more of a message.
pub(crate) type Unfinished = (MsgKind, Matched, Arrived);

#[inline(always)]
pub(super) fn kind_and_flags(seen: PublishedSlot) -> (MsgKind, Flags) {
    let bits = seen.head.flags();
    (
        match bits & TAGGED != 0 {
            true => MsgKind::Tagged,
            false => MsgKind::Msg,
        },
        match bits & DATA != 0 {
            true => Flags::REMOTE_CQ_DATA,
            false => Flags::empty(),
        },
    )
}
