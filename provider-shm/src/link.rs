//! A link: the state that an endpoint keeps of a peer with which it shares a segment.
//!
//! The components of a link have their own state: the sending side, the receiving side, the
//! handshake that closes the link, and the waker of the peer. The link passes slots between them,
//! and decides whether it has work. Invariant: a link with work is `busy`, so that progress calls
//! `push`.

mod close;
mod in_flight;
mod mapped;
mod pause;
mod receiver;
mod sender;
mod shortcut;
mod sizes;
mod slots;
mod started;
mod waker;

use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::peer::{Owner, PeerSrx, SendDone};
use ferrofabric_contracts::send_line::SendLine;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp};

use crate::config::Cma;
use crate::outbox::{KEPT_ENTRIES, Outbox};
use crate::paths::MessagePaths;
use crate::pending::PendingSend;
use crate::regions::BoardWatch;
use crate::ring::{LinkViolation, PublishedSlot, RingConsumer, RingProducer};
use crate::segment::{SegmentSide, ShmSegment};
use crate::service::{EndpointShared, NewLink};
use crate::stats::ShmStats;
use crate::status::Status;
use close::CloseHandshake;
use receiver::LinkReceiver;
use sender::LinkSender;
use shortcut::LinkShortcuts;
use started::StartOutcome;
use waker::PeerWaker;

pub(crate) use close::CloseMessage;
pub(crate) use sizes::{LinkSizes, Quota, SPARE_BUFFERS, SPARE_BYTES, Used};
pub(crate) use slots::AnswerSlot;

/// The result of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// Complete: all of the message is in the ring.
    Done,
    /// Under way, or waiting for room.
    Later,
    /// Refused: too many sends wait already.
    Again,
}

/// A peer with which there is a segment.
pub(crate) struct ShmLink {
    sender: LinkSender,
    receiver: LinkReceiver,
    close: CloseHandshake,
    waker: PeerWaker,
    /// The paths of large messages, of both directions.
    paths: MessagePaths,
    /// One-sided operations without the peer's help, where that is possible.
    shortcuts: Option<Box<LinkShortcuts>>,
    /// Holds up the close of regions while the peer is at work on them.
    _watch: Option<BoardWatch>,
    /// The peer, in the owner's address vector.
    addr: FiAddr,
    /// The peer, as the source of requests.
    requester: FiAddr,
    /// Requests of the peer whose replies were not sent yet.
    requests: usize,
    native: NativeAddr,
    /// There is a message to send, to read, or to answer: see `push`.
    busy: bool,
    /// Calls to progress since the last message.
    idle: u32,
}

impl ShmLink {
    /// Takes a link over from the service thread.
    pub(crate) fn new(new: NewLink, shared: &Arc<EndpointShared>, sizes: LinkSizes) -> Self {
        // SAFETY: the service thread uses the status words only, each link comes once, and the
        // waker keeps the segment.
        let rings = unsafe { new.segment.rings(new.side) };
        let waker = PeerWaker::new(&new, shared, false);
        Self::assemble(rings, new, waker, sizes)
    }

    /// A link of an endpoint with itself, in a segment of its own.
    pub(crate) fn loopback(
        segment: ShmSegment,
        native: NativeAddr,
        id: u64,
        shared: &Arc<EndpointShared>,
        sizes: LinkSizes,
    ) -> Self {
        // SAFETY: the segment was just made, and the waker keeps it.
        let rings = unsafe { segment.loopback() };
        let new = NewLink {
            native,
            id,
            segment: Arc::new(segment),
            side: SegmentSide::Initiator,
            cma: None,
            offers_cma: false,
            fence: false,
            regions: None,
            watch: None,
        };
        let waker = PeerWaker::new(&new, shared, true);
        Self::assemble(rings, new, waker, sizes)
    }

    fn assemble(
        (tx, rx): (RingProducer, RingConsumer),
        new: NewLink,
        waker: PeerWaker,
        sizes: LinkSizes,
    ) -> Self {
        Self {
            sender: LinkSender::new(tx, sizes, new.offers_cma),
            close: CloseHandshake::default(),
            waker,
            paths: MessagePaths::new(sizes.cma),
            shortcuts: (new.regions)
                .filter(|_| sizes.cma != Cma::Off)
                .map(|regions| LinkShortcuts::new(regions, sizes.cma)),
            receiver: LinkReceiver::new(rx, new.cma, sizes.quota),
            _watch: new.watch,
            addr: FiAddr::NOTAVAIL,
            requester: FiAddr::NOTAVAIL,
            requests: 0,
            native: new.native,
            busy: false,
            idle: 0,
        }
    }

    /// The id of the peer's endpoint.
    pub(crate) fn id(&self) -> u64 {
        self.waker.peer()
    }

    #[inline(always)]
    pub(crate) fn addr(&self) -> FiAddr {
        self.addr
    }

    pub(crate) fn set_addr(&mut self, addr: FiAddr) {
        self.addr = addr;
    }

    /// The peer, as the source of requests.
    #[inline(always)]
    pub(crate) fn requester(&self) -> FiAddr {
        self.requester
    }

    /// Number of requests of the peer whose replies were not sent yet.
    pub(crate) fn requests(&self) -> usize {
        self.requests
    }

    pub(crate) fn set_requester(&mut self, requester: FiAddr) {
        self.requester = requester;
    }

    #[inline(always)]
    pub(crate) fn native(&self) -> NativeAddr {
        self.native
    }

    pub(crate) fn segment(&self) -> &Arc<ShmSegment> {
        self.waker.segment()
    }

    /// The status word of our side.
    #[inline(always)]
    pub(crate) fn own_status(&self) -> &Status {
        self.waker.own_status()
    }

    /// Whether the peer has closed. If not, the bytes read from its memory before this call were
    /// still those of its message.
    pub(crate) fn has_peer_closed_by_now(&self) -> bool {
        self.waker.peer_status().has_closed_by_now()
    }

    /// Whether the link has work.
    #[inline(always)]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Calls to progress since the last message.
    pub(crate) fn idle_calls(&self) -> u32 {
        self.idle
    }

    /// Whether the link could do some of its work now.
    pub(crate) fn can_go_on(&mut self) -> bool {
        self.busy && (self.sender.refresh_progress() || self.receiver.has_reads())
    }

    /// Whether messages have started in either direction and are not complete.
    pub(crate) fn is_under_way(&self) -> bool {
        !(self.sender.is_idle() && self.receiver.is_idle())
    }

    /// Whether each message and answer of ours lies in the segment whole, or was read by the peer.
    pub(crate) fn is_drained(&self) -> bool {
        self.sender.is_idle() && self.sender.has_no_pending()
    }

    /// An item for each message that was injected and each answer, unless all of it is in the
    /// segment.
    pub(crate) fn undelivered<'a>(&'a self, outbox: &'a Outbox) -> impl Iterator<Item = ()> + 'a {
        self.sender.undelivered(outbox)
    }

    /// Whether a reply with one of these contexts is not all in the ring.
    pub(crate) fn has_reply(&self, contexts: &[u64], outbox: &Outbox) -> bool {
        self.sender.has_reply(contexts, outbox)
    }

    /// Whether the link could end: no message is under way, no send waits, no request waits for its
    /// reply, and no message for a receive. (The quota of those messages belongs to the link.)
    pub(crate) fn is_settled(&self) -> bool {
        !self.is_under_way()
            && self.sender.has_no_pending()
            && self.requests == 0
            && self.receiver.has_no_unexpected()
    }

    /// Slots that were sent and taken: any change means traffic.
    pub(crate) fn traffic(&self) -> (u32, u32) {
        (self.sender.published(), self.receiver.consumed())
    }

    /// Answers that wait for room in the ring, and bytes of unexpected messages.
    #[cfg(test)]
    pub(crate) fn burden(&self) -> (usize, usize) {
        (self.sender.answers(), self.receiver.unexpected_bytes())
    }
}

/// Sending.
impl ShmLink {
    /// Whether this message can go at once, into a slot that is known to be free.
    #[inline(always)]
    pub(crate) fn takes_inline(&self, op: &SendOp, len: usize) -> bool {
        self.sender.takes_inline(op, len)
    }

    /// Sends a message that `takes_inline` accepted.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads, and `len` bytes long together.
    #[inline(always)]
    pub(crate) unsafe fn send_inline(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
        stats: &mut ShmStats,
    ) {
        // SAFETY: the caller's contract.
        unsafe { self.sender.send_inline(op, iov, len) };
        self.waker.wake_if_asleep(stats);
    }

    /// Sends a message, or keeps it until there is room.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads until the operation completes; with `INJECT` until return.
    pub(crate) unsafe fn send(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        outbox: &mut Outbox,
        stats: &mut ShmStats,
    ) -> Result<SendOutcome, LinkViolation> {
        if self.sender.has_no_pending() && !self.close.has_requested() {
            let (sender, waker, paths) = (&mut self.sender, &self.waker, &mut self.paths);
            // SAFETY: the caller's contract.
            match unsafe { sender.start_send(op, iov, waker, paths, stats)? } {
                StartOutcome::Complete => return Ok(SendOutcome::Done),
                StartOutcome::Incomplete(incomplete) => {
                    // SAFETY: the caller's contract.
                    let buffers = unsafe { incomplete.buffers(op.flags, iov) };
                    let id = self.sender.keep(op, buffers, incomplete, outbox);
                    self.has_started(op.kind, id);
                    self.busy |= self.sender.has_work();
                    return Ok(SendOutcome::Later);
                }
                StartOutcome::NoRoom => {}
            }
        }
        stats.queued += 1;
        self.waits_in_line();
        // SAFETY: the caller's contract.
        if unsafe { self.sender.enqueue(op, iov, outbox) }.is_err() {
            return Ok(SendOutcome::Again);
        }
        self.busy = true;
        Ok(SendOutcome::Later)
    }

    /// Takes over the sends that waited for the link.
    pub(crate) fn take_over(&mut self, sends: SendLine<PendingSend>) {
        self.busy = !sends.is_empty();
        *self.sender.pending_mut() = sends;
    }

    /// The waiting sends, so that the caller can remove some.
    pub(crate) fn pending_mut(&mut self) -> &mut SendLine<PendingSend> {
        self.sender.pending_mut()
    }

    /// A part of a one-sided operation has come whole: in the last slot, or in several.
    ///
    /// # Errors
    ///
    /// As for [`Self::request_came`].
    #[inline(never)]
    pub(crate) fn part_came<O: Owner>(
        &mut self,
        (kind, tag): (MsgKind, u64),
        in_last_slot: bool,
        is_refused: bool,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        if kind.is_reply() {
            self.has_replied(tag, in_last_slot);
        }
        match kind.is_answered() {
            true => self.request_came(kind, is_refused, owner),
            false => Ok(()),
        }
    }

    /// A request of the peer, or a query, has come whole. It awaits its reply, or is refused, and
    /// the refusal is put in line.
    ///
    /// # Errors
    ///
    /// The peer takes none: more wait than it has requests.
    fn request_came<O: Owner>(
        &mut self,
        kind: MsgKind,
        is_refused: bool,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let mut refusals = owner.srx().take_refusals();
        if !self.sender.has_room_for_answers(refusals.len()) {
            // A peer may query beyond its requests, and can do without the answer.
            refusals.retain(|refusal| !refusal.kind.is_dispensable());
        }
        if !self.sender.has_room_for_answers(refusals.len()) {
            return Err(LinkViolation("it takes no answers"));
        }
        let awaits = kind.is_request() && !is_refused && refusals.is_empty();
        self.requests += usize::from(awaits);
        for refusal in refusals {
            // SAFETY: there are no buffers.
            let refusal = unsafe { PendingSend::new(&refusal, &[]) };
            self.pending_mut().push(refusal);
        }
        self.update_busy();
        Ok(())
    }

    /// The reply to a request was sent, or is in line.
    pub(crate) fn request_is_answered(&mut self) {
        self.requests = self.requests.saturating_sub(1);
    }

    fn update_busy(&mut self) {
        self.busy |= self.sender.has_work();
    }

    /// A `GO` has come for a message: its id, the length up to which to go on, and the receiver's
    /// advice.
    pub(crate) fn go<O: Owner>(
        &mut self,
        words: [u64; 3],
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        let went = (self.sender.in_flight()).go(words, &mut self.paths, outbox, owner);
        self.busy |= self.sender.has_work();
        went
    }

    /// A `DELIVERED` has come for a message.
    pub(crate) fn delivered<O: Owner>(
        &mut self,
        (id, refused): (u32, bool),
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), LinkViolation> {
        self.has_delivered(id);
        (self.sender.in_flight()).delivered((id, refused), outbox, owner)
    }

    /// Sends what waits: control first, then sends in order, then pieces of long messages in turns.
    /// Returns the number of slots sent.
    #[cold]
    #[inline(never)]
    pub(crate) fn push<O: Owner>(
        &mut self,
        outbox: &mut Outbox,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<usize, LinkViolation> {
        let (sender, waker, paths) = (&mut self.sender, &self.waker, &mut self.paths);
        let mut did = sender.push_control(paths.advice(), waker, stats)?;
        if !self.close.has_requested() {
            did += sender.push_pending(outbox, owner, waker, paths, stats)?;
        }
        sender.give_back_room(outbox);
        did += sender.stream(outbox, owner, waker, stats)?;
        self.busy = sender.has_work() || self.receiver.has_reads() || self.close.has_received();
        if !self.busy {
            // Has no effect while the tables are small.
            sender.shrink_to(KEPT_ENTRIES);
            self.receiver.shrink_to(KEPT_ENTRIES);
        }
        Ok(did)
    }

    /// The link fails: takes out all incomplete sends, oldest first.
    pub(crate) fn take_unfinished(&mut self, outbox: &mut Outbox) -> Vec<SendDone> {
        self.sender.take_unfinished(outbox)
    }
}

/// Receiving.
impl ShmLink {
    /// The receiving side.
    #[inline(always)]
    pub(crate) fn receiver(&mut self) -> &mut LinkReceiver {
        &mut self.receiver
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<PublishedSlot> {
        self.receiver.peek()
    }

    /// Prefetches a slot that will be read soon.
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        self.receiver.prefetch();
    }

    /// Consumes the slot of the last `peek`, and `record_bytes` of payload.
    #[inline(always)]
    pub(crate) fn consume(&mut self, record_bytes: usize, stats: &mut ShmStats) {
        if self.receiver.consume(record_bytes) {
            self.publish_tail(stats);
        }
    }

    /// Publishes the consumer's progress, and wakes the producer if it waits for room.
    #[inline(always)]
    fn publish_tail(&mut self, stats: &mut ShmStats) {
        self.receiver.publish_tail();
        self.waker.wake_if_waits_for_room(stats);
    }

    /// Publishes the consumer's progress, if that is not published yet.
    #[inline(always)]
    pub(crate) fn publish_rest(&mut self, stats: &mut ShmStats) {
        if self.receiver.has_unpublished_tail() {
            self.publish_tail(stats);
        }
    }

    /// A call to progress has found nothing.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self, stats: &mut ShmStats) {
        self.idle = self.idle.saturating_add(1);
        self.publish_rest(stats);
    }

    /// A call to progress has found messages.
    #[inline(always)]
    pub(crate) fn found_messages(&mut self) {
        self.idle = 0;
        self.sender.message_has_come();
    }

    /// Whether a message of this length answers one of ours, and is short enough for the copy that
    /// finishes sooner.
    #[inline]
    pub(crate) fn takes_turns(&self, len: usize) -> bool {
        self.sender.takes_turns(len)
    }

    /// Requests envelopes only, or lifts that request (`all_is_over`: the messages of all links
    /// exceed the endpoint's quota).
    pub(crate) fn update_back_pressure(&mut self, all_is_over: bool, stats: &mut ShmStats) {
        if self.receiver.update_back_pressure(all_is_over) {
            self.publish_tail(stats);
        }
    }

    /// Answers that the peer has not taken.
    pub(crate) fn answers(&self) -> usize {
        self.sender.answers()
    }

    /// Answers a message: at once if possible.
    pub(crate) fn answer(&mut self, control: AnswerSlot, stats: &mut ShmStats) {
        let advice = self.paths.advice();
        self.busy |= (self.sender).answer(control, advice, &self.waker, stats);
    }

    /// A message is to be read by CMA.
    pub(crate) fn read_later(&mut self, id: u32) {
        self.receiver.read_on(id);
        self.busy = true;
    }

    /// Whether the receiver reads messages that are offered for reading.
    pub(crate) fn reads(&self) -> bool {
        self.receiver.has_cma() && self.paths.reads()
    }

    /// Whether to time a message of this length, which comes through the ring.
    #[inline]
    pub(crate) fn times(&mut self, len: usize) -> bool {
        self.receiver.has_cma() && self.paths.times(len)
    }

    /// The choice of paths, with the receiver's measurements.
    #[inline]
    pub(crate) fn paths(&mut self) -> &mut MessagePaths {
        &mut self.paths
    }

    /// Number of pieces of a message of `len` bytes.
    pub(crate) fn pieces(&self, len: usize) -> usize {
        self.sender.pieces(len)
    }
}

/// Closing.
impl ShmLink {
    /// Whether our request to close is unanswered; until then no message is started.
    #[inline(always)]
    pub(crate) fn has_requested_close(&self) -> bool {
        self.close.has_requested()
    }

    /// Whether a close message of the peer waits to be handled.
    #[inline(always)]
    pub(crate) fn has_close_message(&self) -> bool {
        self.close.has_received()
    }

    /// Times that the peer refused to close the link, and the number from which the count began.
    pub(crate) fn refusals(&self) -> u32 {
        self.close.refusals()
    }

    pub(crate) fn count_refusals_from(&mut self, refusals: u32) {
        self.close.count_refusals_from(refusals);
    }

    /// A close message of the peer has come.
    pub(crate) fn receive_close(&mut self, what: CloseMessage) -> Result<(), LinkViolation> {
        self.close.receive(what)?;
        self.busy = true;
        Ok(())
    }

    /// Sends a close message; false if there is no slot for it now.
    pub(crate) fn send_close(
        &mut self,
        what: CloseMessage,
        stats: &mut ShmStats,
    ) -> Result<bool, LinkViolation> {
        let sent = self.sender.send_close(what)?;
        if sent {
            self.waker.wake_if_asleep(stats);
            self.close.sent(what);
        }
        Ok(sent)
    }
}

impl Drop for ShmLink {
    fn drop(&mut self) {
        self.waker.close();
    }
}
