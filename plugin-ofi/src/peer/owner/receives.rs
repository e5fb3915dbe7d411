//! Messages and the ends of operations, from callbacks that have their owner.

use std::ffi::c_int;
use std::ptr::null_mut;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{AnyOwner, Arrived, Matched};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind};

use super::context::OperationContext;
use super::entries::{EndReport, EntryFields, EntryMessage, EntrySlot, NO_RECEIVE, SlotState};
use super::mailbox::EndedCall;
use super::objects::ObjectBlock;
use crate::abi::{fi_addr_t, fi_peer_match_attr, fi_peer_rx_entry};

/// The answer to a look for a receive: the result for C, and the entry.
pub(super) type EntryAnswer = (c_int, *mut fi_peer_rx_entry);

const FAILED_SEND: &str = "the provider of the shared memory failed to send it";
const FAILED_RECV: &str = "the provider of the shared memory failed to receive it";
const OTHER_LENGTH: &str = "the message has another length than its announcement";
const NO_MEMORY: &str = "there is no memory for a message to a list of buffers";
const GIVEN_BACK: &str = "the provider of the shared memory gave the receive back";

/// A message, as its announcement and its entry have it.
#[derive(Clone, Copy)]
pub(super) struct AnnouncedMessage {
    pub(super) kind: MsgKind,
    pub(super) arrived: Arrived,
    pub(super) number: fi_addr_t,
    pub(super) was_queued: bool,
}

impl AnnouncedMessage {
    #[inline]
    pub(super) fn of(kind: MsgKind, attr: &fi_peer_match_attr, src: FiAddr) -> Self {
        Self {
            kind,
            arrived: Arrived {
                src,
                tag: match kind {
                    MsgKind::Tagged => attr.tag,
                    _ => 0,
                },
                len: attr.msg_size as u64,
                data: 0,
                flags: Flags::empty(),
            },
            number: attr.addr,
            was_queued: false,
        }
    }

    #[inline]
    fn fields(&self, block: &ObjectBlock) -> EntryFields {
        EntryFields {
            srx: block.srx.get(),
            kind: self.kind,
            number: self.number,
            arrived: self.arrived,
            was_queued: self.was_queued,
        }
    }
}

/// A message has arrived: looks for its receive (`get_msg`, `get_tag`).
#[inline]
pub(super) fn arrive(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    kind: MsgKind,
    attr: &fi_peer_match_attr,
) -> EntryAnswer {
    let (slot, src) = {
        let mut tables = block.tables.borrow_mut();
        let Some(slot) = tables.take_slot(&block.chunks) else {
            return (-Errno::ENOMEM.0, null_mut());
        };
        tables.calls += 1;
        (slot, tables.source(attr.addr))
    };
    let message = AnnouncedMessage::of(kind, attr, src);
    let code = match &owner.arrive(kind, &message.arrived) {
        Some(matched) => {
            set_matched(block, owner, slot, &message, matched);
            0
        }
        None => {
            // SAFETY: the slot was taken for this message.
            unsafe { set_unexpected(block, slot, &message) };
            -Errno::ENOENT.0
        }
    };
    (code, slot.entry(block.chunks.link_bytes()))
}

/// A message in a slot has a receive, whose memory goes to the entry. The slot is the caller's.
#[inline]
pub(super) fn set_matched(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    message: &AnnouncedMessage,
    matched: &Matched,
) {
    let (len, fields) = (message.arrived.len, message.fields(block));
    // SAFETY: the caller has the slot, and C does not use its entry.
    unsafe {
        keep(slot, message, matched, EndReport::Result);
        if len > matched.buf.len as u64 || matched.piece.is_of_list() {
            fill_unusual(owner, slot, &fields, matched);
        } else {
            slot.fill_matched(&fields, matched.buf.part(0, len as usize));
        }
    }
    slot.set_state(SlotState::Matched);
}

/// A message in a slot has no receive.
///
/// # Safety
///
/// The caller has the slot for itself.
pub(super) unsafe fn set_unexpected(
    block: &'static ObjectBlock,
    slot: &'static EntrySlot,
    message: &AnnouncedMessage,
) {
    // SAFETY: as the caller says.
    unsafe {
        keep(slot, message, &NO_RECEIVE, EndReport::Nothing);
        slot.fill_unexpected(&message.fields(block));
    }
    slot.set_state(SlotState::Unexpected);
}

/// A queued message goes to memory of ours, and nothing of it is reported. `false`: there is no
/// memory, and nothing has changed.
pub(super) fn set_dropped(
    block: &'static ObjectBlock,
    slot: &'static EntrySlot,
    message: &AnnouncedMessage,
) -> bool {
    let Some(mut sink) = memory(message.arrived.len as usize) else {
        return false;
    };
    // SAFETY: the caller has the slot, and C does not use its entry.
    unsafe {
        keep(slot, message, &NO_RECEIVE, EndReport::Nothing);
        let to = IoBuf::new(sink.as_mut_ptr(), message.arrived.len as usize);
        slot.message().sink = sink;
        slot.fill_matched(&message.fields(block), to);
    }
    slot.set_state(SlotState::Matched);
    true
}

/// Writes down the fields that the end of a message needs.
///
/// # Safety
///
/// The caller has the slot for itself.
#[inline]
unsafe fn keep(slot: &EntrySlot, message: &AnnouncedMessage, matched: &Matched, report: EndReport) {
    // SAFETY: as the caller says.
    let held = unsafe { slot.message() };
    held.kind = message.kind;
    held.arrived = message.arrived;
    held.number = message.number;
    held.matched = *matched;
    held.report = report;
    held.is_unknown = false;
}

/// Fills the entry of a message that is longer than its receive, or goes to a list of buffers.
/// `shm` fails the sender, too, where an entry has less memory than the message needs: so it has
/// more.
///
/// # Safety
///
/// The caller has the slot, and C does not use its entry.
#[cold]
unsafe fn fill_unusual(
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    fields: &EntryFields,
    matched: &Matched,
) {
    let one = match matched.piece.is_of_list() {
        true => owner.in_one_piece(matched),
        false => Some(*matched),
    };
    let len = fields.arrived.len as usize;
    let to = one.map_or(IoBuf::EMPTY, |one| one.buf.part(0, len));
    let sink = match len - to.len {
        0 => None,
        rest => memory(rest),
    };
    // SAFETY: as the caller says; the owner has returned.
    unsafe {
        let held = slot.message();
        match one {
            Some(one) => held.matched = one,
            None => held.report = EndReport::Failed(Errno::ENOMEM),
        }
        match sink {
            Some(mut sink) => {
                let rest = IoBuf::new(sink.as_mut_ptr(), len - to.len);
                held.sink = sink;
                slot.fill_truncated(fields, to, rest);
            }
            None => slot.fill_matched(fields, to),
        }
    }
}

/// Memory whose bytes nobody reads.
fn memory(len: usize) -> Option<Vec<u8>> {
    let mut memory = Vec::new();
    memory.try_reserve_exact(len).ok()?;
    Some(memory)
}

/// An operation has ended (`write`, `writeerr`). Returns whether there is one of that context.
#[inline(always)]
pub(super) fn end(block: &'static ObjectBlock, owner: &mut dyn AnyOwner, call: &EndedCall) -> bool {
    let context = OperationContext(call.context);
    match context.is_of_send() {
        true => end_send(block, owner, context, call),
        false => end_receive(block, owner, context, call),
    }
}

#[inline(always)]
fn end_send(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    context: OperationContext,
    call: &EndedCall,
) -> bool {
    let ended = {
        let mut tables = block.tables.borrow_mut();
        let ended = tables.sends.end(context);
        tables.calls += usize::from(ended.is_some());
        ended
    };
    match &ended {
        None => {
            block.refuse();
            return false;
        }
        Some(send) if send.has_failed => {}
        Some(send) if call.errno == 0 => owner.complete_send(&send.done),
        Some(send) => {
            owner.fail_send(&send.done, Errno(call.errno), call.prov_errno, FAILED_SEND);
        }
    }
    true
}

#[inline(always)]
fn end_receive(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    context: OperationContext,
    call: &EndedCall,
) -> bool {
    let slot = block.chunks.slot_of(context);
    let Some(slot) = slot.filter(|slot| slot.is(SlotState::Matched)) else {
        block.refuse();
        return false;
    };
    slot.set_state(SlotState::Reported);
    // SAFETY: this thread drives the endpoint, and the slot was not free.
    let held = unsafe { slot.message() };
    if call.flags & Flags::REMOTE_CQ_DATA.bits() != 0 {
        // The announcement of a message that matches at once has no data.
        held.arrived.flags = Flags::REMOTE_CQ_DATA;
        held.arrived.data = call.data;
    }
    let held: &EntryMessage = held;
    let is_whole = call.errno == 0 && call.len as u64 == held.arrived.len;
    {
        let mut tables = block.tables.borrow_mut();
        tables.calls += 1;
        if is_whole && held.report == EndReport::Result {
            tables.received += 1;
            tables.received_bytes += held.arrived.len;
        }
    }
    match held.report {
        EndReport::Result if is_whole => {
            owner.complete_recv(held.kind, &held.matched, &held.arrived);
        }
        report => report_failure(owner, held, report, call),
    }
    true
}

#[cold]
fn report_failure(
    owner: &mut dyn AnyOwner,
    held: &EntryMessage,
    report: EndReport,
    call: &EndedCall,
) {
    let len = held.arrived.len;
    let (errno, olen, why) = match report {
        EndReport::Nothing => return,
        EndReport::Failed(errno) => (errno, len, NO_MEMORY),
        EndReport::Result if call.errno == Errno::ETRUNC.0 => {
            let room = held.matched.buf.len as u64;
            (Errno::ETRUNC, len.saturating_sub(room), FAILED_RECV)
        }
        EndReport::Result if call.errno != 0 => (Errno(call.errno), 0, FAILED_RECV),
        EndReport::Result => (Errno::EIO, 0, OTHER_LENGTH),
    };
    owner.fail_recv(held.kind, &held.matched, &held.arrived, errno, olen, why);
}

/// A message without a receive is to be queued (`queue_msg`, `queue_tag`).
pub(super) fn queue(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    kind: MsgKind,
) -> c_int {
    // SAFETY: this thread drives the endpoint, and nobody else changes a slot of this state while C
    // queues it.
    let is_of_kind = |slot: &EntrySlot| unsafe { slot.message() }.kind == kind;
    if !slot.is(SlotState::Unexpected)
        || !is_of_kind(slot)
        || !slot.leave_unexpected(SlotState::Queued)
    {
        block.refuse();
        return -Errno::EINVAL.0;
    }
    let arrived = enter_queue(block, slot);
    let token = block.tables.borrow().token(slot);
    owner.queue(kind, arrived, token);
    0
}

/// Counts a message that is in the queue from now on, with the data that C has written down.
pub(super) fn enter_queue(block: &'static ObjectBlock, slot: &'static EntrySlot) -> Arrived {
    // SAFETY: this thread drives the endpoint, and has just taken the slot.
    let held = unsafe { slot.message() };
    if let Some(data) = slot.cq_data() {
        held.arrived.flags = Flags::REMOTE_CQ_DATA;
        held.arrived.data = data;
    }
    held.is_unknown = !held.arrived.src.is_some();
    let mut tables = block.tables.borrow_mut();
    tables.calls += 1;
    tables.unexpected += 1;
    tables.unknown += usize::from(held.is_unknown);
    held.arrived
}

/// Counts a message that is in the queue no more, and returns it.
pub(super) fn leave_queue(block: &ObjectBlock, slot: &EntrySlot) -> AnnouncedMessage {
    // SAFETY: this thread drives the endpoint, and the slot is queued.
    let held = unsafe { slot.message() };
    if std::mem::take(&mut held.is_unknown) {
        block.tables.borrow_mut().unknown -= 1;
    }
    AnnouncedMessage {
        kind: held.kind,
        arrived: held.arrived,
        number: held.number,
        was_queued: true,
    }
}

/// C gives an entry back (`free_entry`). Returns whether it had it.
#[inline]
pub(super) fn free(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
) -> bool {
    if slot.is(SlotState::Reported) {
        release(block, slot);
        return true;
    }
    free_unusual(block, owner, slot)
}

#[cold]
fn free_unusual(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
) -> bool {
    match slot.state() {
        // `shm` closes an endpoint.
        SlotState::Matched => {
            let context = slot.context();
            give_up(owner, slot, Errno::ECANCELED, GIVEN_BACK);
            if slot.context() == context {
                release(block, slot);
            }
            true
        }
        // The message is lost: a receive that matches it later fails.
        SlotState::Queued => {
            leave_queue(block, slot);
            release(block, slot);
            true
        }
        SlotState::Discarded => {
            release(block, slot);
            true
        }
        SlotState::Unexpected if slot.leave_unexpected(SlotState::Reported) => {
            release(block, slot);
            true
        }
        _ => {
            block.refuse();
            false
        }
    }
}

/// Reports a receive as failed that C has not ended. Its entry waits to be freed.
pub(super) fn give_up(
    owner: &mut dyn AnyOwner,
    slot: &'static EntrySlot,
    errno: Errno,
    why: &'static str,
) {
    slot.set_state(SlotState::Reported);
    // SAFETY: this thread drives the endpoint, and the slot was not free.
    let held: &EntryMessage = unsafe { slot.message() };
    if held.report != EndReport::Nothing {
        owner.fail_recv(held.kind, &held.matched, &held.arrived, errno, 0, why);
    }
}

/// Reports all receives as failed that C has not ended and whose message is of that peer.
pub(super) fn fail_all_of(
    block: &'static ObjectBlock,
    owner: &mut dyn AnyOwner,
    peer: fi_addr_t,
    errno: Errno,
    why: &'static str,
) {
    for slot in block.chunks.all() {
        // SAFETY: this thread drives the endpoint, and the slot is matched.
        if slot.is(SlotState::Matched) && unsafe { slot.message() }.number == peer {
            give_up(owner, slot, errno, why);
        }
    }
}

/// Ends the use of a slot.
#[inline]
pub(super) fn release(block: &'static ObjectBlock, slot: &'static EntrySlot) {
    // SAFETY: this thread drives the endpoint, and has the slot.
    let held = unsafe { slot.message() };
    if held.sink.capacity() != 0 {
        held.sink = Vec::new();
    }
    let mut tables = block.tables.borrow_mut();
    tables.calls += 1;
    tables.put_slot(slot);
}
