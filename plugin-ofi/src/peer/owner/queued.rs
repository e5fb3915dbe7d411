//! Messages in the owner's queue: their sources, their start and their end.

use std::ffi::c_int;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::{AnyOwner, Start, Token};
use ferrofabric_contracts::types::{FiAddr, MsgKind};

use super::context::OperationContext;
use super::entries::{EntrySlot, SlotState};
use super::mailbox::SourceFn;
use super::objects::ObjectBlock;
use super::receives::{give_up, leave_queue, release, set_dropped, set_matched};
use super::scope::enter;
use crate::abi::{fi_ops_srx_peer, fi_peer_rx_entry};
use crate::memory::check_size;

type EntryFn = unsafe extern "C" fn(*mut fi_peer_rx_entry) -> c_int;

const LOST: &str = "the message was lost before its receive was posted";
const NOT_STARTED: &str = "the provider of the shared memory does not start the message";

/// A queued message has a receive: fills its entry and has C start it.
pub(super) fn start(block: &'static ObjectBlock, owner: &mut dyn AnyOwner, start: &Start) {
    let Some(slot) = queued(block, start.token) else {
        let (matched, arrived) = (&start.matched, &start.arrived);
        return owner.fail_recv(start.kind, matched, arrived, Errno::ECONNRESET, 0, LOST);
    };
    let mut message = leave_queue(block, slot);
    // Its source may be known since.
    message.arrived.src = start.arrived.src;
    set_matched(block, owner, slot, &message, &start.matched);
    start_entry(block, owner, slot, message.kind);
}

/// A queued message is dropped. Those that may come in pieces go to memory of ours: `shm` goes on
/// with pieces of a message that was to be discarded.
pub(super) fn discard(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    kind: MsgKind,
    token: Token,
    inject_size: usize,
) {
    let Some(slot) = queued(block, token) else {
        return;
    };
    let message = leave_queue(block, slot);
    if message.arrived.len > inject_size as u64 && set_dropped(block, slot, &message) {
        return start_entry(block, owner, slot, kind);
    }
    let context = slot.context();
    slot.set_state(SlotState::Discarded);
    let discard = peer_function(block, |ops| match kind {
        MsgKind::Tagged => ops.discard_tag,
        _ => ops.discard_msg,
    });
    if let Some(discard) = discard {
        call(block, owner, slot, discard);
    }
    if slot.context() == context && slot.is(SlotState::Discarded) {
        release(block, slot);
    }
}

/// The slot of a queued message.
fn queued(block: &ObjectBlock, token: Token) -> Option<&'static EntrySlot> {
    let slot = block.chunks.slot_of(OperationContext(token.value));
    slot.filter(|slot| slot.is(SlotState::Queued))
}

/// Has C fill the memory of an entry.
fn start_entry(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    kind: MsgKind,
) {
    let context = slot.context();
    let start = peer_function(block, |ops| match kind {
        MsgKind::Tagged => ops.start_tag,
        _ => ops.start_msg,
    });
    let result = match start {
        Some(start) => call(block, owner, slot, start),
        None => -Errno::ENOSYS.0,
    };
    // A message may be on its way for longer than the call.
    if result < 0 && slot.context() == context && slot.is(SlotState::Matched) {
        give_up(owner, slot, Errno(result.wrapping_neg()), NOT_STARTED);
        if start.is_none() {
            release(block, slot);
        }
    }
}

/// A function of the C provider.
fn peer_function(
    block: &ObjectBlock,
    pick: impl FnOnce(&fi_ops_srx_peer) -> Option<EntryFn>,
) -> Option<EntryFn> {
    // SAFETY: the C provider has set it when it opened its objects, to a table that begins with its
    // size (fi_peer(3)); before, it is NULL.
    unsafe {
        let ops: *const fi_ops_srx_peer = (&raw const (*block.srx.get()).peer_ops).read();
        check_size(ops).ok()?;
        pick(&*ops)
    }
}

fn call(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    function: EntryFn,
) -> c_int {
    let entry = slot.entry(block.chunks.link_bytes());
    // SAFETY: the entry is one that the C provider has queued, and passed back to it once.
    enter(block, owner, || unsafe { function(entry) })
}

/// The peer of a number is the source of its queued messages from now on.
pub(super) fn resolve(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    number: u64,
    src: FiAddr,
) {
    if block.tables.borrow().unknown == 0 || !src.is_some() {
        return;
    }
    let mut values = Vec::new();
    let transport = {
        let mut tables = block.tables.borrow_mut();
        for slot in unknown(block) {
            // SAFETY: this thread drives the endpoint, and the slot is queued.
            let held = unsafe { slot.message() };
            if held.number == number {
                held.is_unknown = false;
                held.arrived.src = src;
                tables.unknown -= 1;
                values.push(slot.context().0);
            }
        }
        tables.transport
    };
    // In one call, so that the queue sees to their order.
    if !values.is_empty() {
        values.sort_unstable();
        let is_found = |value| values.binary_search(&value).is_ok();
        owner.resolve(src, &mut |token| {
            token.transport == transport && is_found(token.value)
        });
    }
}

/// Looks for the sources of queued messages that have none (`foreach_unspec_addr`).
pub(super) fn resolve_by(block: &'static ObjectBlock, owner: &mut dyn AnyOwner, source: SourceFn) {
    if block.tables.borrow().unknown == 0 {
        return;
    }
    let mut found = Vec::new();
    for slot in unknown(block) {
        let context = slot.context();
        // SAFETY: an entry that the C provider has queued, for its own function.
        let number = unsafe { source(slot.entry(block.chunks.link_bytes())) };
        let src = block.tables.borrow().source(number);
        if slot.context() == context && slot.is(SlotState::Queued) {
            // SAFETY: this thread drives the endpoint, and the slot is queued.
            unsafe { slot.message() }.number = number;
            if src.is_some() && !found.contains(&(number, src)) {
                found.push((number, src));
            }
        }
    }
    for (number, src) in found {
        resolve(block, owner, number, src);
    }
}

/// The slots of queued messages of unknown sources. The caller drives the endpoint.
fn unknown(block: &'static ObjectBlock) -> impl Iterator<Item = &'static EntrySlot> {
    let is_unknown = |slot: &&EntrySlot| {
        // SAFETY: as the caller says, and the slot is queued.
        slot.is(SlotState::Queued) && unsafe { slot.message() }.is_unknown
    };
    block.chunks.all().filter(is_unknown)
}

/// Sets the address of the peer of a number. Queued messages of its former address have no source,
/// nor have those that C is receiving.
pub(super) fn set_source(block: &'static ObjectBlock, number: u64, src: FiAddr) {
    let mut tables = block.tables.borrow_mut();
    let before = tables.source(number);
    tables.set_source(number, src);
    if !before.is_some() || before == src {
        return;
    }
    for slot in block.chunks.all() {
        let is_queued = slot.is(SlotState::Queued);
        if !is_queued && !slot.is(SlotState::Matched) {
            continue;
        }
        // SAFETY: this thread drives the endpoint, and the slot is queued or matched.
        let held = unsafe { slot.message() };
        if !is_queued && held.number == number {
            held.arrived.src = FiAddr::NOTAVAIL;
        } else if held.number == number && !held.is_unknown {
            held.is_unknown = true;
            held.arrived.src = FiAddr::NOTAVAIL;
            tables.unknown += 1;
        }
    }
}
