//! The content of a message's first slot.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Arrived, Matched};
use ferrofabric_contracts::types::{FiAddr, MsgKind, RemoteKind};

use crate::link::ShmLink;
use crate::ring::PublishedSlot;
use crate::wire::{DATA, PART_MASK, PART_SHIFT, TAGGED};

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

/// The kind of a message, its source and its flags.
#[inline(always)]
pub(super) fn kind_of(seen: PublishedSlot, link: &ShmLink) -> (MsgKind, FiAddr, Flags) {
    let bits = seen.head.flags();
    let (kind, src) = match bits & (TAGGED | (PART_MASK << PART_SHIFT)) {
        0 => (MsgKind::Msg, link.addr()),
        TAGGED => (MsgKind::Tagged, link.addr()),
        other => part_of(other, link),
    };
    let flags = match bits & DATA != 0 {
        true => Flags::REMOTE_CQ_DATA,
        false => Flags::empty(),
    };
    (kind, src, flags)
}

/// The kind and the source of a message whose flags have the number of a part. A number that is
/// none is taken for a message.
#[cold]
fn part_of(bits: u8, link: &ShmLink) -> (MsgKind, FiAddr) {
    let part = RemoteKind::from_number(bits >> PART_SHIFT);
    let kind = part.map_or(MsgKind::Msg, MsgKind::Remote);
    match kind.is_request() {
        true => (kind, link.requester()),
        false => (kind, link.addr()),
    }
}
