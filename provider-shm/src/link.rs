//! A link: what an endpoint keeps of a peer with which it shares a segment. This file has its shape and the sending side;
//! `receive` has the other one.
//!
//! Sends are announced in order: a message's first slot goes into the ring before the next one's. What does not fit there
//! follows in pieces, which the pieces and first slots of other messages may overtake; so neither a long message nor one that
//! nobody receives holds up those behind it.

mod farewell;
mod sizes;

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, SendDone};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp, total_len};
use slab::Slab;

use crate::cma::CmaPeer;
use crate::copy::{copy_short, copy_soon, gather};
use crate::incoming::IncomingTable;
use crate::outbox::{KEPT_ENTRIES, Outbox, Outgoing};
use crate::paths::{self, Path, Paths};
use crate::pending::{PendingSend, Source};
use crate::ring::{Broken, CONTROL_SLOTS, Head, Rx, Tx};
use crate::segment::{Segment, Side};
use crate::service::{NewLink, Shared};
use crate::stats::ShmStats;
use crate::status::{SLEEPS, Status, WANTS_ROOM, waker_fence};
use crate::wire::{
    CHUNK, DATA, DELIVERED, EAGER, GO, INLINE, INLINE_BYTES, INLINE_DATA_WORD, READ, START, TAGGED,
    TOLD, UNDER_WAY_MAX, pack,
};
pub(crate) use sizes::{Quota, Sizes, Used};

pub(crate) use farewell::Farewell;

/// Longest message that goes as one record: longer ones go in pieces, so that the receiver copies one while the sender
/// copies the next.
const RECORD_BYTES: usize = 8192;

/// Messages up to so many bytes are copied in the way that is over sooner, where the two sides take turns.
const SOON_BYTES: usize = 4096;

/// Bytes of one message that are sent before the next one in line gets its turn.
const TURN_BYTES: usize = 65_536;

/// Buffers of unexpected messages that an endpoint keeps for the next ones, and their size at most in bytes.
pub(crate) const SPARE_BUFFERS: usize = 64;
pub(crate) const SPARE_BYTES: usize = 4096;

/// Completion levels that the receiver has to tell of: matching comes before delivery, and is told with it.
const TELLS: Flags = Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE);

/// A slot that the receiving side of a message wants sent.
#[derive(Clone, Copy)]
pub(crate) enum Control {
    /// How far the message is wanted.
    Go { id: u32, until: u64 },
    /// It is delivered.
    Delivered { id: u32 },
}

/// What became of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Announced {
    /// It is done: all of it is in the ring.
    Done,
    /// It is under way, so far; its data is to be kept with [`Link::keep`].
    Started(Begun),
    /// There is no room to announce it.
    Full,
}

/// A message that is announced, but not all in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Begun {
    sent: usize,
    window: usize,
    len: usize,
    /// It was left to the peer to read.
    read: bool,
}

/// A peer with which there is a segment.
pub(crate) struct Link {
    pub(crate) tx: Tx,
    pub(crate) rx: Rx,
    /// The peer, in the owner's address vector.
    pub(crate) addr: FiAddr,
    /// There is something to send: see `push`.
    pub(crate) busy: bool,
    /// Whether the peer can not make the kernel run our half of its barrier.
    fence: bool,
    pub(crate) sizes: Sizes,
    /// Calls to progress since the last message.
    pub(crate) idle: u32,
    /// A record was sent since the last message.
    pub(crate) sent_last: bool,
    pub(crate) id: u64,
    side: Side,
    loopback: bool,
    /// We tell the peer where our messages lie, to be read.
    offers_cma: bool,
    pub(crate) segment: Arc<Segment>,
    shared: Arc<Shared>,
    /// We have asked for its end, and announce nothing until there is an answer.
    pub(crate) asked: bool,
    /// What the peer has said to its end, and was not dealt with.
    pub(crate) heard: Option<Farewell>,
    /// Times that it had the link stay, and how much patience we had with it from the start.
    pub(crate) stays: u32,
    pub(crate) control: VecDeque<Control>,
    pub(crate) pending: VecDeque<PendingSend>,
    /// By id, the keys of messages under way in the endpoint's outbox.
    outgoing: Slab<u32>,
    /// Those of them that have something to send now.
    streaming: VecDeque<u32>,
    pub(crate) incoming: IncomingTable,
    /// Those of them that are read by CMA.
    pub(crate) reading: VecDeque<u32>,
    pub(crate) cma: Option<CmaPeer>,
    pub(crate) paths: Paths,
    /// What unexpected messages of its take, whether it was asked for envelopes only, and what they
    /// took then.
    pub(crate) held: Used,
    pub(crate) pressed: bool,
    pub(crate) pressed_at: Used,
    /// Messages of no bytes that we announced since the peer asked for envelopes only: it does not ask for these.
    bare: usize,
    /// The next message has been given to the ring, and waits for room there.
    waits_for_room: bool,
    pub(crate) native: NativeAddr,
}

impl Link {
    /// Takes a link over from the service thread.
    pub(crate) fn new(new: NewLink, shared: &Arc<Shared>, sizes: Sizes) -> Self {
        // SAFETY: the service thread uses the status words only, each link comes once, and `segment` stays below.
        let (tx, rx) = unsafe { new.segment.rings(new.side) };
        Self::assemble(tx, rx, new, shared, sizes, false)
    }

    /// A link with oneself, in a segment of one's own.
    pub(crate) fn loopback(
        segment: Segment,
        native: NativeAddr,
        id: u64,
        shared: &Arc<Shared>,
        sizes: Sizes,
    ) -> Self {
        // SAFETY: the segment was just made, and `segment` stays below.
        let (tx, rx) = unsafe { segment.loopback() };
        let new = NewLink {
            native,
            id,
            segment: Arc::new(segment),
            side: Side::Initiator,
            cma: None,
            offers_cma: false,
            fence: false,
        };
        Self::assemble(tx, rx, new, shared, sizes, true)
    }

    fn assemble(
        tx: Tx,
        rx: Rx,
        new: NewLink,
        shared: &Arc<Shared>,
        sizes: Sizes,
        loopback: bool,
    ) -> Self {
        Self {
            tx,
            rx,
            addr: FiAddr::NOTAVAIL,
            busy: false,
            fence: new.fence,
            sizes,
            idle: 0,
            sent_last: false,
            id: new.id,
            side: new.side,
            loopback,
            offers_cma: new.offers_cma,
            segment: new.segment,
            shared: Arc::clone(shared),
            asked: false,
            heard: None,
            stays: 0,
            control: VecDeque::new(),
            pending: VecDeque::new(),
            outgoing: Slab::new(),
            streaming: VecDeque::new(),
            incoming: IncomingTable::default(),
            reading: VecDeque::new(),
            cma: new.cma,
            paths: Paths::new(sizes.cma),
            held: Used::default(),
            bare: 0,
            waits_for_room: false,
            pressed: false,
            pressed_at: Used::default(),
            native: new.native,
        }
    }

    /// Our status word.
    #[inline(always)]
    pub(crate) fn own_status(&self) -> &Status {
        self.segment.status(self.side)
    }

    #[inline(always)]
    pub(crate) fn peer_status(&self) -> &Status {
        self.segment.status(match (self.side, self.loopback) {
            (Side::Initiator, false) => Side::Acceptor,
            _ => Side::Initiator,
        })
    }

    /// Wakes the peer if it sleeps, after something was published for it.
    #[inline(always)]
    pub(crate) fn nudge(&self, stats: &mut ShmStats) {
        waker_fence(self.fence);
        if self.peer_status().load() & SLEEPS != 0 {
            self.wake(stats);
        }
    }

    #[cold]
    fn wake(&self, stats: &mut ShmStats) {
        if self.peer_status().take_wish() {
            stats.doorbells += 1;
            self.shared.ring(self.id);
        }
    }

    /// Tells the producer how far we are, and wakes it if it sleeps for that.
    #[inline(always)]
    pub(crate) fn tell(&mut self, stats: &mut ShmStats) {
        self.rx.publish_tail();
        waker_fence(self.fence);
        if self.peer_status().load() & WANTS_ROOM != 0 {
            self.wake(stats);
        }
    }

    /// Whether this message can go at once, into a slot that is known to be free.
    #[inline(always)]
    pub(crate) fn takes_inline(&self, op: &SendOp, len: usize) -> bool {
        let most = match op.flags.contains(Flags::REMOTE_CQ_DATA) {
            true => INLINE_BYTES - 8,
            false => INLINE_BYTES,
        };
        len <= most
            && !op.flags.intersects(TELLS.union(Flags::FENCE))
            && self.pending.is_empty()
            && self.tx.has_slot(CONTROL_SLOTS)
            && !self.tx.is_pressed()
    }

    /// Sends a message for which `takes_inline` said so.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads, and `len` bytes long together.
    #[inline(always)]
    pub(crate) unsafe fn send_inline(&mut self, op: &SendOp, iov: &[IoBuf], len: usize) {
        let head = Head::new(INLINE, head_flags(op), len as u32);
        self.tx.publish(head, |body| {
            // SAFETY: the body has a tag's word, then `INLINE_BYTES`, of which the data word is beyond `len` (both by
            // `takes_inline`); the buffers are the caller's promise.
            unsafe {
                *body = op.tag;
                if op.flags.contains(Flags::REMOTE_CQ_DATA) {
                    *body.add(INLINE_DATA_WORD) = op.data;
                }
                let to = body.add(1).cast::<u8>();
                match iov {
                    [one] => copy_short(one.as_ptr(), to, len),
                    _ => {
                        gather(iov, 0, to, len);
                    }
                }
            }
        });
    }

    /// Keeps a send until there is room; `Err` gives it back when too many wait.
    ///
    /// # Safety
    ///
    /// As for [`PendingSend::new`].
    pub(crate) unsafe fn enqueue(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        outbox: &mut Outbox,
    ) -> Result<(), ()> {
        if self.pending.len() >= self.sizes.queue {
            return Err(());
        }
        if self.pending.capacity() == 0 {
            self.pending = std::mem::take(&mut outbox.spare);
        }
        // SAFETY: the caller's promise.
        self.pending.push_back(unsafe { PendingSend::new(op, iov) });
        self.busy = true;
        Ok(())
    }

    /// Announces a message, with as much of it as has room.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads until the operation completes; with `INJECT` until return.
    pub(crate) unsafe fn announce(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        stats: &mut ShmStats,
    ) -> Result<Announced, Broken> {
        if op.flags.contains(Flags::FENCE) && !self.outgoing.is_empty() {
            // It keeps its place, and those behind it theirs.
            return Ok(Announced::Full);
        }
        if !self.tx.has_slot(CONTROL_SLOTS) {
            self.tx.refresh()?;
            if !self.tx.has_slot(CONTROL_SLOTS) {
                return Ok(Announced::Full);
            }
        }
        if self.tx.is_pressed() {
            self.tx.refresh()?;
        }
        let pressed = self.tx.is_pressed();
        if !pressed {
            self.bare = 0;
        }
        let len = total_len(iov);
        let told = op.flags.intersects(TELLS);
        let needs_id = told || pressed || len >= paths::LEAST || self.sizes.window(len) != len;
        if needs_id && self.outgoing.len() + self.bare >= UNDER_WAY_MAX {
            return Ok(Announced::Full);
        }
        stats.sent += 1;
        stats.sent_bytes += len as u64;
        let inline = match op.flags.contains(Flags::REMOTE_CQ_DATA) {
            true => INLINE_BYTES - 8,
            false => INLINE_BYTES,
        };
        let has_its_way = std::mem::take(&mut self.waits_for_room);
        if len >= paths::LEAST && !has_its_way && self.leaves_to_read(op, iov, len) {
            stats.sent_cma += 1;
            self.start_read(op, iov[0].addr as u64, len, stats);
            return Ok(Announced::Started(Begun {
                sent: 0,
                window: 0,
                len,
                read: true,
            }));
        }
        if len <= inline && !told && !pressed {
            // SAFETY: the length fits, a slot is free; the buffers are the caller's promise.
            unsafe { self.send_inline(op, iov, len) };
            stats.sent_inline += 1;
            self.nudge(stats);
            return Ok(Announced::Done);
        }
        if len <= RECORD_BYTES && self.sizes.window(len) == len && !told && !pressed {
            // SAFETY: the caller's promise.
            let sent = unsafe { self.send_record(op, iov, len)? };
            if sent == Announced::Full {
                self.waits_for_room = true;
                stats.sent -= 1;
                stats.sent_bytes -= len as u64;
            } else {
                stats.sent_eager += 1;
                self.nudge(stats);
            }
            return Ok(sent);
        }
        stats.sent_pipe += 1;
        self.bare += usize::from(pressed && len == 0);
        // SAFETY: the caller's promise.
        unsafe { self.send_start(op, iov, len, stats) }
    }

    /// Whether the peer is to read this message out of our memory.
    #[inline(never)]
    fn leaves_to_read(&mut self, op: &SendOp, iov: &[IoBuf], len: usize) -> bool {
        self.offers_cma
            && iov.len() == 1
            && !op.flags.contains(Flags::INJECT)
            && self.paths.choose(len) == Path::Cma
    }

    /// Announces a message that the peer reads out of our memory, from `addr` on.
    fn start_read(&mut self, op: &SendOp, addr: u64, len: usize, stats: &mut ShmStats) {
        let id = self.outgoing.vacant_key() as u32;
        let flags = match op.flags.intersects(TELLS) {
            true => head_flags(op) | READ | TOLD,
            false => head_flags(op) | READ,
        };
        let words = [op.tag, pack(id, 0), len as u64, op.data, 0, addr];
        self.tx.publish(Head::new(START, flags, 0), write(words));
        self.nudge(stats);
    }

    /// Whether a message of this length that has come is an answer, and short enough to be copied in the way that is over sooner.
    #[inline]
    pub(crate) fn takes_turns(&self, len: usize) -> bool {
        self.sent_last && len <= SOON_BYTES
    }

    /// # Safety
    ///
    /// As for [`Self::announce`].
    #[inline]
    unsafe fn send_record(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
    ) -> Result<Announced, Broken> {
        let record = match self.tx.reserve(len) {
            Some(record) => record,
            None => {
                self.tx.refresh()?;
                match self.tx.reserve(len) {
                    Some(record) => record,
                    None => return Ok(Announced::Full),
                }
            }
        };
        let into = self.tx.record_ptr(record);
        let streams = std::mem::replace(&mut self.sent_last, true);
        let takes_turns = !streams && len <= SOON_BYTES;
        match (takes_turns, iov) {
            // SAFETY: the record has `len` bytes; the buffers are the caller's promise.
            (true, [one]) => unsafe { copy_soon(one.as_ptr(), into, len) },
            // SAFETY: as above.
            _ => drop(unsafe { gather(iov, 0, into, len) }),
        }
        let head = Head::new(EAGER, head_flags(op), len as u32);
        self.tx.publish_record(head, record, |body| {
            // SAFETY: a body has these words.
            unsafe {
                *body = op.tag;
                *body.add(1) = u64::from(record.offset);
                *body.add(2) = op.data;
            }
        });
        if takes_turns {
            self.tx.expect(len);
        }
        Ok(Announced::Done)
    }

    /// # Safety
    ///
    /// As for [`Self::announce`].
    unsafe fn send_start(
        &mut self,
        op: &SendOp,
        iov: &[IoBuf],
        len: usize,
        stats: &mut ShmStats,
    ) -> Result<Announced, Broken> {
        // A receiver short of memory gets the envelope, and the rest when it asks for it.
        let window = match self.tx.is_pressed() {
            true => 0,
            false => self.sizes.window(len),
        };
        let told = op.flags.intersects(TELLS);
        let flags = match told {
            true => head_flags(op) | TOLD,
            false => head_flags(op),
        };
        let id = self.outgoing.vacant_key() as u32;
        let piece = match window {
            0 => None,
            _ => self.tx.reserve_some(self.sizes.piece(len).min(window)),
        };
        let body = |offset: u32| {
            [
                op.tag,
                pack(id, offset),
                len as u64,
                op.data,
                window as u64,
                0,
            ]
        };
        let mut sent = 0;
        match piece {
            Some((record, n)) => {
                // SAFETY: the record has `n` bytes; the buffers are the caller's promise.
                unsafe { gather(iov, 0, self.tx.record_ptr(record), n) };
                let head = Head::new(START, flags, n as u32);
                self.tx
                    .publish_record(head, record, write(body(record.offset)));
                sent = n;
            }
            None => {
                let head = Head::new(START, flags, 0);
                self.tx.publish(head, write(body(0)));
            }
        }
        self.nudge(stats);
        while sent < window {
            // SAFETY: the caller's promise.
            match unsafe { send_chunk(&mut self.tx, id, iov, sent, window, self.sizes.piece(len))? }
            {
                0 => break,
                n => sent += n,
            }
        }
        self.nudge(stats);
        if sent == len && !told {
            return Ok(Announced::Done);
        }
        Ok(Announced::Started(Begun {
            sent,
            window,
            len,
            read: false,
        }))
    }

    /// Keeps what was just announced until all of it is in the ring, or delivered.
    pub(crate) fn keep(&mut self, op: &SendOp, source: Source, begun: Begun, outbox: &mut Outbox) {
        let Begun {
            sent,
            window,
            len,
            read,
        } = begun;
        let key = outbox.outgoing.insert(Outgoing {
            done: SendDone::of(op, len),
            source,
            sent,
            until: window,
            go: window == len,
            read,
            told: op.flags.intersects(TELLS),
        });
        // It gets the id that `send_start` announced: the vacant one.
        let id = self.outgoing.insert(key as u32);
        if sent < window {
            self.streaming.push_back(id as u32);
            self.busy = true;
        }
    }

    /// The receiver says how far it wants a message through the ring, and what it would rather read from now on.
    pub(crate) fn go<O: Owner>(
        &mut self,
        id: u32,
        until: u64,
        advice: u64,
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let Some(out) = self.under_way(id, outbox).filter(|out| !out.go) else {
            return Err(Broken("it asked for a message that is not there"));
        };
        if until > total_len(out.source.iov()) as u64 {
            return Err(Broken("it asked for more than a message has"));
        }
        match (out.read, until) {
            (true, 0) => self.paths.was_read(),
            (true, _) => self.paths.refused(),
            _ => {}
        }
        self.paths.follow(advice);
        let streams = out.sent < out.until;
        out.go = true;
        out.until = out.until.max(until as usize);
        if out.sent == out.until {
            self.sent_whole(id, outbox, owner);
        } else if !streams {
            self.streaming.push_back(id);
            self.busy = true;
        }
        Ok(())
    }

    /// The message under way that has this id.
    #[inline]
    fn under_way<'a>(&self, id: u32, outbox: &'a mut Outbox) -> Option<&'a mut Outgoing> {
        outbox
            .outgoing
            .get_mut(*self.outgoing.get(id as usize)? as usize)
    }

    /// All of a message that is wanted is in the ring.
    fn sent_whole<O: Owner>(&mut self, id: u32, outbox: &mut Outbox, owner: &mut O) {
        if self.under_way(id, outbox).is_some_and(|out| !out.told) {
            self.land(id, outbox, owner);
        }
    }

    /// A message under way is done.
    fn land<O: Owner>(&mut self, id: u32, outbox: &mut Outbox, owner: &mut O) {
        let key = self.outgoing.remove(id as usize);
        if self.outgoing.is_empty() && self.outgoing.capacity() > KEPT_ENTRIES {
            self.outgoing = Slab::new();
        }
        let out = outbox.outgoing.remove(key as usize);
        owner.complete_send(&out.done);
    }

    /// The receiver says that a message is delivered.
    pub(crate) fn delivered<O: Owner>(
        &mut self,
        id: u32,
        outbox: &mut Outbox,
        owner: &mut O,
    ) -> Result<(), Broken> {
        let done = |out: &&mut Outgoing| out.told && out.go && out.sent == out.until;
        if self.under_way(id, outbox).filter(done).is_none() {
            return Err(Broken("it told of a message that it can not have"));
        }
        self.land(id, outbox, owner);
        Ok(())
    }

    /// Sends what waits: control first, then sends in order, then pieces of long messages in turns. Returns how many
    /// things it did.
    #[cold]
    #[inline(never)]
    pub(crate) fn push<O: Owner>(
        &mut self,
        outbox: &mut Outbox,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<usize, Broken> {
        let mut did = self.push_control(stats)?;
        while !self.asked {
            let Some(next) = self.pending.pop_front() else {
                break;
            };
            let op = next.op;
            // SAFETY: who queued it vouched for the buffers until it completes; a copy lives as long as `next`.
            match unsafe { self.announce(&op, next.iov(), stats) } {
                Ok(Announced::Done) => {
                    owner.complete_send(&SendDone::of(&op, total_len(next.iov())));
                }
                Ok(Announced::Started(begun)) => self.keep(&op, next.into_source(), begun, outbox),
                not_now => {
                    // It waits on, or ends with the link.
                    self.pending.push_front(next);
                    not_now?;
                    break;
                }
            }
            did += 1;
        }
        if self.pending.is_empty() && self.pending.capacity() != 0 {
            outbox.give_back(std::mem::take(&mut self.pending));
        }
        did += self.stream(outbox, owner, stats)?;
        self.busy = !(self.control.is_empty()
            && self.pending.is_empty()
            && self.streaming.is_empty()
            && self.reading.is_empty()
            && self.heard.is_none());
        if !self.busy {
            // Does nothing while they are small.
            self.control.shrink_to(KEPT_ENTRIES);
            self.streaming.shrink_to(KEPT_ENTRIES);
            self.reading.shrink_to(KEPT_ENTRIES);
        }
        Ok(did)
    }

    /// Sends control slots that wait.
    pub(crate) fn push_control(&mut self, stats: &mut ShmStats) -> Result<usize, Broken> {
        let (mut did, advice) = (0, self.paths.advice());
        while let Some(&control) = self.control.front() {
            if !self.tx.has_slot(0) {
                self.tx.refresh()?;
                if !self.tx.has_slot(0) {
                    break;
                }
            }
            let (kind, id, until) = match control {
                Control::Go { id, until } => (GO, id, until),
                Control::Delivered { id } => (DELIVERED, id, 0),
            };
            self.tx.publish(Head::new(kind, 0, 0), |body| {
                // SAFETY: a body has these words.
                unsafe {
                    *body = u64::from(id);
                    *body.add(1) = until;
                    *body.add(2) = advice;
                }
            });
            self.control.pop_front();
            did += 1;
        }
        if did > 0 {
            self.nudge(stats);
        }
        Ok(did)
    }

    fn stream<O: Owner>(
        &mut self,
        outbox: &mut Outbox,
        owner: &mut O,
        stats: &mut ShmStats,
    ) -> Result<usize, Broken> {
        let mut did = 0;
        while let Some(&id) = self.streaming.front() {
            let out = &mut outbox.outgoing[self.outgoing[id as usize] as usize];
            let turn = out.until.min(out.sent + TURN_BYTES);
            let mut full = false;
            while out.sent < turn && !full {
                // SAFETY: who sent the message vouched for its buffers until it completes; a copy is ours.
                let n = unsafe {
                    send_chunk(
                        &mut self.tx,
                        id,
                        out.source.iov(),
                        out.sent,
                        out.until,
                        self.sizes.piece(total_len(out.source.iov())),
                    )?
                };
                full = n == 0;
                out.sent += n;
                did += usize::from(!full);
            }
            if out.sent == out.until {
                self.streaming.pop_front();
                if out.go {
                    self.sent_whole(id, outbox, owner);
                }
            } else if full {
                break;
            } else {
                self.streaming.rotate_left(1);
            }
        }
        if did > 0 {
            self.nudge(stats);
        }
        Ok(did)
    }

    /// All sends that are not done, oldest first, when the link fails.
    pub(crate) fn take_unfinished(&mut self, outbox: &mut Outbox) -> Vec<SendDone> {
        let mut announced: Vec<_> = std::mem::take(&mut self.outgoing)
            .into_iter()
            .map(|(_, key)| outbox.outgoing.remove(key as usize).done)
            .collect();
        announced.extend(self.pending.drain(..).map(|p| SendDone::of(&p.op, 0)));
        announced
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A child that inherited the link is not the one that ends it.
        if self.shared.is_ours() {
            self.own_status().close();
        }
    }
}

/// Sends the next piece of a message; returns its length, 0 when there is no room.
///
/// # Safety
///
/// The buffers are valid for reads.
unsafe fn send_chunk(
    tx: &mut Tx,
    id: u32,
    iov: &[IoBuf],
    sent: usize,
    until: usize,
    most: usize,
) -> Result<usize, Broken> {
    let want = most.min(until - sent);
    let room = |tx: &Tx| match tx.has_slot(CONTROL_SLOTS) {
        true => tx.reserve_some(want),
        false => None,
    };
    let (record, n) = match room(tx) {
        Some(found) => found,
        None => {
            tx.refresh()?;
            match room(tx) {
                Some(found) => found,
                None => return Ok(0),
            }
        }
    };
    // SAFETY: the record has `n` bytes; the buffers are the caller's promise.
    unsafe { gather(iov, sent, tx.record_ptr(record), n) };
    tx.publish_record(Head::new(CHUNK, 0, n as u32), record, |body| {
        // SAFETY: a body has this word.
        unsafe { *body = pack(id, record.offset) };
    });
    Ok(n)
}

/// Writes the first words of a slot's body.
#[inline(always)]
fn write(words: [u64; 6]) -> impl FnOnce(*mut u64) {
    move |body| {
        for (i, word) in words.into_iter().enumerate() {
            // SAFETY: a body has seven words.
            unsafe { *body.add(i) = word };
        }
    }
}

#[inline(always)]
fn head_flags(op: &SendOp) -> u8 {
    let tagged = match op.kind {
        MsgKind::Tagged => TAGGED,
        MsgKind::Msg => 0,
    };
    match op.flags.contains(Flags::REMOTE_CQ_DATA) {
        true => tagged | DATA,
        false => tagged,
    }
}
