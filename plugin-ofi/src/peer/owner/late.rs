//! Callbacks that have no owner: the records that they leave in the mailbox, and the work on these
//! records later.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{AnyOwner, Start};
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use super::entries::{EntrySlot, SlotState};
use super::mailbox::{EndedCall, LateCall, LateCalls, SourceFn};
use super::objects::{DueCall, ObjectBlock};
use super::queued::{resolve_by, start};
use super::receives::{AnnouncedMessage, EntryAnswer, end, enter_queue, free, set_unexpected};
use super::scope::with_owner;
use crate::abi::{fi_peer_match_attr, fi_peer_rx_entry};

/// Runs a callback without an owner, with the mailbox of its block locked. The result is
/// `-FI_EINVAL` if the endpoint is closed, or the callback refused.
fn with_mailbox(
    block: Option<&'static ObjectBlock>,
    callback: impl FnOnce(&'static ObjectBlock, &mut LateCalls) -> Option<c_int>,
) -> c_int {
    let Some(block) = block else {
        // Nobody's: counted where C is called just now.
        with_owner(Some, |block, _, _| block.refuse());
        return -Errno::EINVAL.0;
    };
    let mut locked = block.mailbox.lock();
    let result = match locked.is_open {
        true => callback(block, &mut locked),
        false => None,
    };
    drop(locked);
    match result {
        Some(result) => {
            block.late.fetch_add(1, Ordering::Relaxed);
            result
        }
        None => {
            block.refuse();
            -Errno::EINVAL.0
        }
    }
}

/// As [`arrive`](super::receives::arrive): the message has no receive yet.
#[cold]
pub(super) fn arrive_late(
    context: *mut c_void,
    kind: MsgKind,
    attr: &fi_peer_match_attr,
) -> EntryAnswer {
    let mut entry = null_mut();
    let code = with_mailbox(ObjectBlock::at(context), |block, locked| {
        if locked.spare.is_empty() {
            let Some(slots) = block.chunks.grow() else {
                return Some(-Errno::ENOMEM.0);
            };
            locked.spare.extend(slots.iter().rev());
        }
        let slot = locked.spare.pop()?;
        let message = AnnouncedMessage::of(kind, attr, FiAddr::NOTAVAIL);
        // SAFETY: the slot was taken with the mailbox locked.
        unsafe { set_unexpected(block, slot, &message) };
        entry = slot.entry(block.chunks.link_bytes());
        Some(-Errno::ENOENT.0)
    });
    (code, entry)
}

/// As [`queue`](super::receives::queue).
#[cold]
pub(super) fn queue_late(entry: *const fi_peer_rx_entry, kind: MsgKind) -> c_int {
    let (block, slot) = ObjectBlock::of_entry(entry).unzip();
    with_mailbox(block, |block, locked| {
        let slot = slot?;
        if !slot.leave_unexpected(SlotState::Left) {
            return None;
        }
        // SAFETY: this thread has just taken the slot to `Left`.
        if unsafe { slot.message() }.kind != kind {
            slot.set_state(SlotState::Unexpected);
            return None;
        }
        block.mailbox.leave(locked, LateCall::Queued(slot));
        Some(0)
    })
}

/// As [`free`].
#[cold]
pub(super) fn free_late(entry: *const fi_peer_rx_entry) {
    let (block, slot) = ObjectBlock::of_entry(entry).unzip();
    with_mailbox(block, |block, locked| {
        block.mailbox.leave(locked, LateCall::Freed(slot?));
        Some(0)
    });
}

/// As [`end`].
#[cold]
pub(super) fn end_late(context: *mut c_void, call: EndedCall) {
    with_mailbox(ObjectBlock::at(context), |block, locked| {
        block.mailbox.leave(locked, LateCall::Ended(call));
        Some(0)
    });
}

/// As [`resolve_by`].
#[cold]
pub(super) fn resolve_late(context: *mut c_void, source: SourceFn) {
    with_mailbox(ObjectBlock::at(context), |block, locked| {
        block.mailbox.leave(locked, LateCall::Resolve(source));
        Some(0)
    });
}

/// Does the work of the mailbox, but for calls into C, which become due. Returns how many calls had
/// an effect.
#[cold]
pub(super) fn drain_calls(block: &'static ObjectBlock, owner: &mut dyn AnyOwner) -> usize {
    let calls = block.mailbox.take();
    (calls.into_iter())
        .filter(|call| match call {
            LateCall::Queued(slot) => queue_left(block, owner, slot),
            LateCall::Ended(ended) => end(block, owner, ended),
            LateCall::Freed(slot) => free(block, owner, slot),
            LateCall::Resolve(source) => {
                let due = DueCall::Resolve(*source);
                block.tables.borrow_mut().due.push(due);
                true
            }
        })
        .count()
}

/// Does the work of the mailbox, with all calls into C that are due. Returns how many calls had an
/// effect.
pub(super) fn drain(block: &'static ObjectBlock, owner: &mut dyn AnyOwner) -> usize {
    let mut done = 0;
    if block.mailbox.has_calls() {
        done = drain_calls(block, owner);
    }
    loop {
        let due = std::mem::take(&mut block.tables.borrow_mut().due);
        if due.is_empty() {
            return done;
        }
        done += due.len();
        for call in due {
            match call {
                DueCall::Start(message) => start(block, owner, &message),
                DueCall::Resolve(source) => resolve_by(block, owner, source),
            }
        }
    }
}

/// A message that was queued without its owner: a receive may be there by now.
fn queue_left(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
) -> bool {
    if !slot.is(SlotState::Left) {
        block.refuse();
        return false;
    }
    slot.set_state(SlotState::Queued);
    // SAFETY: this thread drives the endpoint, and the record has handed it the slot.
    let held = unsafe { slot.message() };
    held.arrived.src = block.tables.borrow().source(held.number);
    let kind = held.kind;
    let arrived = enter_queue(block, slot);
    let token = block.tables.borrow().token(slot);
    match owner.arrive(kind, &arrived) {
        None => owner.queue(kind, arrived, token),
        Some(matched) => {
            let start = Start {
                kind,
                token,
                arrived,
                matched,
            };
            block.tables.borrow_mut().due.push(DueCall::Start(start));
        }
    }
    true
}
