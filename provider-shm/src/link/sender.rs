//! The sending side of a link: the sends that wait, and the messages under way.
//!
//! Sends are started in order: a message's first slot goes into the ring before that of the next
//! message. Bytes that do not fit there follow in pieces, which the pieces and first slots of other
//! messages may overtake; so neither a long message nor one without a receive delays later ones.

use std::collections::VecDeque;

use ferrofabric_contracts::buffers::{SendBuffers, gather};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, SendDone};
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::{IoBuf, MAX_REQUESTS, SendOp, total_len};

use super::close::CloseMessage;
use super::in_flight::InFlightMessages;
use super::sizes::LinkSizes;
use super::slots::{
    AnswerSlot, StartSlot, inline_bytes, publish_close, publish_control, publish_eager,
    publish_inline, publish_short, send_chunk,
};
use super::started::{IncompleteSend, StartOutcome};
use super::waker::PeerWaker;
use crate::copy::copy_soon;
use crate::outbox::{Outbox, OutgoingMessage};
use crate::paths::{self, MessagePath, MessagePaths};
use crate::pending::{PendingSend, has_room, injected};
use crate::ring::{CONTROL_SLOTS, LinkViolation, RingProducer};
use crate::stats::ShmStats;
use crate::wire::{READ, SHORT_BYTES, WANTS_DELIVERED};

/// Longest message that goes as one record: longer ones go in pieces, so that the receiver copies
/// one while the sender copies the next.
const RECORD_BYTES: usize = 8192;

/// Messages up to this number of bytes use the copy that finishes sooner, if the two sides take
/// turns.
const SOON_BYTES: usize = 4096;

/// Completion levels that need `DELIVERED` from the receiver: a match comes before delivery, and is
/// reported with it.
const DELIVERED_LEVELS: Flags = Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE);

/// The sending side.
pub(super) struct LinkSender {
    tx: RingProducer,
    sizes: LinkSizes,
    /// The addresses of messages are sent along, so that the peer can read them.
    offers_cma: bool,
    control: VecDeque<AnswerSlot>,
    pending: SendLine<PendingSend>,
    in_flight: InFlightMessages,
    /// Messages without bytes that were started since the peer requested envelopes only: the peer
    /// sends no `GO` for these.
    empty_envelopes: usize,
    /// The next message was given to the ring, and waits for room there.
    waits_for_room: bool,
    /// A record was sent since the last message came.
    sent_last: bool,
}

impl LinkSender {
    pub(super) fn new(tx: RingProducer, sizes: LinkSizes, offers_cma: bool) -> Self {
        Self {
            tx,
            sizes,
            offers_cma,
            control: VecDeque::new(),
            pending: SendLine::default(),
            in_flight: InFlightMessages::default(),
            empty_envelopes: 0,
            waits_for_room: false,
            sent_last: false,
        }
    }

    /// Whether something waits to be sent.
    #[inline(always)]
    pub(super) fn has_work(&self) -> bool {
        !(self.control.is_empty() && self.pending.is_empty() && !self.in_flight.has_work())
    }

    /// Whether no started message is incomplete, and no answer waits.
    pub(super) fn is_idle(&self) -> bool {
        self.control.is_empty() && self.in_flight.is_empty()
    }

    /// Whether no send waits to be started.
    pub(super) fn has_no_pending(&self) -> bool {
        self.pending.is_empty()
    }

    /// An item for each message that was injected and each answer, unless all of it is in the ring.
    pub(super) fn undelivered<'a>(&'a self, outbox: &'a Outbox) -> impl Iterator<Item = ()> + 'a {
        let answers = self.control.iter().map(|_| ());
        let waiting = injected(self.pending.iter()).map(|_| ());
        let in_flight = self.in_flight.undelivered(outbox).map(|_| ());
        answers.chain(waiting).chain(in_flight)
    }

    /// Whether a reply with one of these contexts is not all in the ring.
    #[cold]
    pub(super) fn has_reply(&self, contexts: &[u64], outbox: &Outbox) -> bool {
        let is_one =
            |waits: &PendingSend| waits.op.kind.is_reply() && contexts.contains(&waits.op.context);
        self.pending.iter().any(is_one) || self.in_flight.has_reply(contexts, outbox)
    }

    /// Answers that wait for room in the ring.
    pub(super) fn answers(&self) -> usize {
        self.control.len()
    }

    /// Slots sent so far, modulo 2³².
    pub(super) fn published(&self) -> u32 {
        self.tx.published()
    }

    /// As [`RingProducer::refresh_progress`].
    pub(super) fn refresh_progress(&mut self) -> bool {
        self.tx.refresh_progress()
    }

    /// Number of pieces of a message of `len` bytes.
    pub(super) fn pieces(&self, len: usize) -> usize {
        self.sizes.pieces(len)
    }

    /// The waiting sends, so that the caller can remove some.
    pub(super) fn pending_mut(&mut self) -> &mut SendLine<PendingSend> {
        &mut self.pending
    }

    /// A message has come.
    #[inline(always)]
    pub(super) fn message_has_come(&mut self) {
        self.sent_last = false;
    }

    /// Whether a message of this length answers one of ours, and is short enough for the copy that
    /// finishes sooner.
    #[inline]
    pub(super) fn takes_turns(&self, len: usize) -> bool {
        self.sent_last && len <= SOON_BYTES
    }

    /// Whether this message can go at once, into a slot that is known to be free.
    #[inline(always)]
    pub(super) fn takes_inline(&self, op: &SendOp, len: usize) -> bool {
        len <= inline_bytes(op)
            && !op.flags.intersects(DELIVERED_LEVELS.union(Flags::FENCE))
            && self.pending.is_empty()
            && self.tx.has_slot(CONTROL_SLOTS)
            && !self.tx.has_back_pressure()
    }

    /// Sends a message that `takes_inline` accepted.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads, and `len` bytes long together.
    #[inline(always)]
    pub(super) unsafe fn send_inline(&mut self, op: &SendOp, iov: &[IoBuf], len: usize) {
        // SAFETY: `takes_inline` has checked the slot and the length; the rest is the caller's
        // contract.
        unsafe { publish_inline(&mut self.tx, op, iov, len) };
    }

    /// Whether so many more answers to requests may wait. A peer has no more requests than
    /// `MAX_REQUESTS`, and its queries have answers, too.
    pub(super) fn has_room_for_answers(&self, count: usize) -> bool {
        const MOST: usize = 2 * MAX_REQUESTS;
        let waits = |send: &&PendingSend| send.op.kind.passes_fences();
        // The application's own sends, of which very many may wait, have another limit.
        count == 0 || self.pending.iter().filter(waits).count() + count <= MOST
    }

    /// Keeps a send until there is room; `Err` returns it if too many wait.
    ///
    /// # Safety
    ///
    /// As for [`PendingSend::new`].
    pub(super) unsafe fn enqueue(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        outbox: &mut Outbox,
    ) -> Result<(), ()> {
        if !has_room(&self.pending, op, self.sizes.queue) {
            return Err(());
        }
        if self.pending.capacity() == 0 {
            self.pending = outbox.take_room();
        }
        // SAFETY: the caller's contract.
        self.pending.push(unsafe { PendingSend::new(op, iov) });
        Ok(())
    }

    /// Starts a message: puts its first slot into the ring, with as much of its data as there is
    /// room for.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads until the operation completes; with `INJECT` until return.
    pub(super) unsafe fn start_send(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        waker: &PeerWaker,
        paths: &mut MessagePaths,
        stats: &mut ShmStats,
    ) -> Result<StartOutcome, LinkViolation> {
        if op.flags.contains(Flags::FENCE) && !self.in_flight.is_empty() {
            // The message keeps its place, and so do later ones.
            return Ok(StartOutcome::NoRoom);
        }
        if !self.tx.has_slot(CONTROL_SLOTS) {
            self.tx.refresh()?;
            if !self.tx.has_slot(CONTROL_SLOTS) {
                return Ok(StartOutcome::NoRoom);
            }
        }
        if self.tx.has_back_pressure() {
            self.tx.refresh()?;
        }
        let back_pressure = self.tx.has_back_pressure();
        if !back_pressure {
            self.empty_envelopes = 0;
        }
        let len = total_len(iov);
        let wants_delivered = op.flags.intersects(DELIVERED_LEVELS);
        let needs_id = wants_delivered
            || back_pressure
            || len >= paths::LEAST
            || self.sizes.before_go(len) != len;
        if needs_id && self.in_flight.len() + self.empty_envelopes >= self.sizes.under_way {
            return Ok(StartOutcome::NoRoom);
        }
        stats.sent += 1;
        stats.sent_bytes += len as u64;
        let waited_for_room = std::mem::take(&mut self.waits_for_room);
        if len >= paths::LEAST && !waited_for_room && self.is_to_be_read(op, iov, len, paths) {
            stats.sent_cma += 1;
            let offered = self.offer_read(op, iov[0].addr as u64, len);
            waker.wake_if_asleep(stats);
            return Ok(StartOutcome::Incomplete(offered));
        }
        if len <= inline_bytes(op) && !wants_delivered && !back_pressure {
            // SAFETY: the length fits, a slot is free; the buffers are the caller's contract.
            unsafe { self.send_inline(op, iov, len) };
            stats.sent_inline += 1;
            waker.wake_if_asleep(stats);
            return Ok(StartOutcome::Complete);
        }
        if len <= SHORT_BYTES && wants_delivered && !back_pressure {
            stats.sent_inline += 1;
            // SAFETY: the length fits, a slot is free; the buffers are the caller's contract.
            let short = unsafe { self.send_short(op, iov, len) };
            waker.wake_if_asleep(stats);
            return Ok(StartOutcome::Incomplete(short));
        }
        if len <= RECORD_BYTES
            && self.sizes.before_go(len) == len
            && !wants_delivered
            && !back_pressure
        {
            // SAFETY: the caller's contract.
            let sent = unsafe { self.send_record(op, iov, len)? };
            if sent == StartOutcome::NoRoom {
                self.waits_for_room = true;
                stats.sent -= 1;
                stats.sent_bytes -= len as u64;
            } else {
                stats.sent_eager += 1;
                waker.wake_if_asleep(stats);
            }
            return Ok(sent);
        }
        stats.sent_pipe += 1;
        self.empty_envelopes += usize::from(back_pressure && len == 0);
        // SAFETY: the caller's contract.
        unsafe { self.send_pieces(op, iov, len, waker, stats) }
    }

    /// Whether the peer is to read this message out of our memory.
    #[inline(never)]
    fn is_to_be_read(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
        paths: &mut MessagePaths,
    ) -> bool {
        self.offers_cma
            && iov.len() == 1
            && !op.flags.contains(Flags::INJECT)
            && paths.choose(len) == MessagePath::Cma
    }

    /// Offers a message to the peer, which reads it out of our memory from `address` on.
    fn offer_read(&mut self, op: &SendOp, address: u64, len: usize) -> IncompleteSend {
        let wants_delivered = match op.flags.intersects(DELIVERED_LEVELS) {
            true => WANTS_DELIVERED,
            false => 0,
        };
        let envelope = StartSlot {
            op,
            id: self.in_flight.next_id(),
            flags: READ | wants_delivered,
            len,
            before_go: 0,
            address,
        };
        envelope.publish(&mut self.tx);
        IncompleteSend {
            sent: 0,
            before_go: 0,
            len,
            read: true,
        }
    }

    /// # Safety
    ///
    /// As for [`publish_short`].
    #[inline]
    unsafe fn send_short(&mut self, op: &SendOp, iov: &[IoBuf], len: usize) -> IncompleteSend {
        let id = self.in_flight.next_id();
        // SAFETY: the caller's contract.
        unsafe { publish_short(&mut self.tx, (op, id), iov, len) };
        IncompleteSend {
            sent: len,
            before_go: len,
            len,
            read: false,
        }
    }

    /// # Safety
    ///
    /// As for [`Self::start_send`].
    #[inline]
    unsafe fn send_record(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
    ) -> Result<StartOutcome, LinkViolation> {
        let record = match self.tx.reserve(len) {
            Some(record) => record,
            None => {
                self.tx.refresh()?;
                match self.tx.reserve(len) {
                    Some(record) => record,
                    None => return Ok(StartOutcome::NoRoom),
                }
            }
        };
        let into = self.tx.record_ptr(record);
        let streams = std::mem::replace(&mut self.sent_last, true);
        let takes_turns = !streams && len <= SOON_BYTES;
        match (takes_turns, iov) {
            // SAFETY: the record has `len` bytes; the buffers are the caller's contract.
            (true, [one]) => unsafe { copy_soon(one.as_ptr(), into, len) },
            // SAFETY: as above.
            _ => unsafe { gather(iov, 0, len, into) },
        }
        publish_eager(&mut self.tx, op, record, len);
        if takes_turns {
            self.tx.expect(len);
        }
        Ok(StartOutcome::Complete)
    }

    /// # Safety
    ///
    /// As for [`Self::start_send`].
    unsafe fn send_pieces(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
        waker: &PeerWaker,
        stats: &mut ShmStats,
    ) -> Result<StartOutcome, LinkViolation> {
        // A receiver short of memory gets the envelope, and the data after its `GO`.
        let before_go = match self.tx.has_back_pressure() {
            true => 0,
            false => self.sizes.before_go(len),
        };
        let wants_delivered = op.flags.intersects(DELIVERED_LEVELS);
        let envelope = StartSlot {
            op,
            id: self.in_flight.next_id(),
            flags: if wants_delivered { WANTS_DELIVERED } else { 0 },
            len,
            before_go,
            address: 0,
        };
        let piece = match before_go {
            0 => None,
            _ => self.tx.reserve_some(self.sizes.piece(len).min(before_go)),
        };
        let mut sent = 0;
        match piece {
            Some((record, n)) => {
                // SAFETY: the record has `n` bytes; the buffers are the caller's contract.
                unsafe { gather(iov, 0, n, self.tx.record_ptr(record)) };
                envelope.publish_record(&mut self.tx, record, n);
                sent = n;
            }
            None => envelope.publish(&mut self.tx),
        }
        waker.wake_if_asleep(stats);
        let (id, piece) = (envelope.id, self.sizes.piece(len));
        while sent < before_go {
            // SAFETY: the caller's contract.
            match unsafe { send_chunk(&mut self.tx, id, iov, sent, before_go, piece)? } {
                0 => break,
                n => sent += n,
            }
        }
        waker.wake_if_asleep(stats);
        if sent == len && !wants_delivered {
            return Ok(StartOutcome::Complete);
        }
        Ok(StartOutcome::Incomplete(IncompleteSend {
            sent,
            before_go,
            len,
            read: false,
        }))
    }

    /// Keeps a message that was just started until all of it is in the ring, or delivered. Returns
    /// its id.
    pub(super) fn keep(
        &mut self,
        op: &SendOp,
        buffers: SendBuffers,
        incomplete: IncompleteSend,
        outbox: &mut Outbox,
    ) -> u32 {
        let IncompleteSend {
            sent,
            before_go,
            len,
            read,
        } = incomplete;
        let out = OutgoingMessage {
            done: SendDone::of(op, len),
            buffers,
            sent,
            until: before_go,
            go: before_go == len,
            read,
            wants_delivered: op.flags.intersects(DELIVERED_LEVELS),
        };
        self.in_flight.keep(out, outbox)
    }

    /// The messages under way.
    pub(super) fn in_flight(&mut self) -> &mut InFlightMessages {
        &mut self.in_flight
    }

    /// Starts the waiting sends, in order, while there is room. Returns how many.
    pub(super) fn push_pending<O: Owner>(
        &mut self,
        outbox: &mut Outbox,
        owner: &mut O,
        waker: &PeerWaker,
        paths: &mut MessagePaths,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let mut did = 0;
        while let Some(next) = self.pending.pop_front() {
            let op = next.op;
            // SAFETY: the caller of `enqueue` vouched for the buffers until the send completes; a
            // copy lives as long as `next`.
            match unsafe { self.start_send(&op, next.iov(), waker, paths, stats) } {
                Ok(StartOutcome::Complete) => {
                    owner.complete_send(&SendDone::of(&op, total_len(next.iov())));
                }
                Ok(StartOutcome::Incomplete(incomplete)) => {
                    self.keep(&op, next.into_buffers(), incomplete, outbox);
                }
                not_now => {
                    // The send waits on, or ends with the link.
                    self.pending.push_front(next);
                    not_now?;
                    break;
                }
            }
            did += 1;
        }
        Ok(did)
    }

    /// Returns the queue of waiting sends to the outbox, if it is empty.
    pub(super) fn give_back_room(&mut self, outbox: &mut Outbox) {
        if self.pending.is_empty() && self.pending.capacity() != 0 {
            outbox.give_back(std::mem::take(&mut self.pending));
        }
    }

    /// Gives memory back that a burst needed.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.control.shrink_to(entries);
        self.in_flight.shrink_to(entries);
    }

    /// Sends a control slot of the receiving side at once, if possible. Returns whether it waits.
    pub(super) fn answer(
        &mut self,
        control: AnswerSlot,
        advice: u64,
        waker: &PeerWaker,
        stats: &mut ShmStats,
    ) -> bool {
        if self.control.is_empty() && self.tx.has_slot(0) {
            publish_control(&mut self.tx, control, advice);
            waker.wake_if_asleep(stats);
            return false;
        }
        self.control.push_back(control);
        // The next push reports a violation by the peer.
        let _ = self.push_control(advice, waker, stats);
        true
    }

    /// Sends control slots that wait. Returns how many.
    pub(super) fn push_control(
        &mut self,
        advice: u64,
        waker: &PeerWaker,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let mut did = 0;
        while let Some(&control) = self.control.front() {
            if !self.has_control_slot()? {
                break;
            }
            publish_control(&mut self.tx, control, advice);
            self.control.pop_front();
            did += 1;
        }
        if did > 0 {
            waker.wake_if_asleep(stats);
        }
        Ok(did)
    }

    /// Sends pieces of long messages in turns. Returns how many.
    pub(super) fn stream<O: Owner>(
        &mut self,
        outbox: &mut Outbox,
        owner: &mut O,
        waker: &PeerWaker,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let did = (self.in_flight).stream(&mut self.tx, &self.sizes, outbox, owner)?;
        if did > 0 {
            waker.wake_if_asleep(stats);
        }
        Ok(did)
    }

    /// Sends a close message; false if there is no slot for it now.
    pub(super) fn send_close(&mut self, what: CloseMessage) -> Result<bool, LinkViolation> {
        let has_slot = self.has_control_slot()?;
        if has_slot {
            publish_close(&mut self.tx, what);
        }
        Ok(has_slot)
    }

    /// Whether any slot is free.
    fn has_control_slot(&mut self) -> Result<bool, LinkViolation> {
        if !self.tx.has_slot(0) {
            self.tx.refresh()?;
        }
        Ok(self.tx.has_slot(0))
    }

    /// The link fails: takes out all incomplete sends, oldest first.
    pub(super) fn take_unfinished(&mut self, outbox: &mut Outbox) -> Vec<SendDone> {
        let mut unfinished = self.in_flight.take_unfinished(outbox);
        unfinished.extend(self.pending.drain().map(|p| SendDone::of(&p.op, 0)));
        unfinished
    }
}
