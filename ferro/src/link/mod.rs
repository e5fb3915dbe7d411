//! An endpoint and the one peer that it talks to, for a single thread. Messages go out and come in
//! by the calls that transports have, as in programs of libfabric and MPI, and a partner that is
//! gone ends the wait for it.

#![allow(
    unsafe_code,
    reason = "operations use memory that the link keeps until they are over"
)]

pub(crate) mod atomics;
pub(crate) mod buffers;
mod outside;
pub(crate) mod region;
mod watch;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_shm::ShmProvider;

use crate::bound::{BoundEndpoint, Wait};
use crate::channel::Channel;
use crate::failure::{Failure, Result};
use crate::message::{Message, Outside};
use buffers::{Buffers, Slot};
use region::{LinkRegion, RegionMemory};
use watch::{CHECK_EVERY, STALLS_PER_CHECK, Watch};

/// The operations that a side serves its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// The device carries them out where there is one.
    ReadsAndWrites,
    /// The processor carries them out.
    Atomics,
}

/// The purpose of a message, which is the tag that it carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The measurement's own data.
    Data = 1,
    /// The acknowledgement of data.
    Ack = 2,
}

/// The context of an operation: whether it is a send, the [`Purpose`], the buffer, and of a receive
/// the number, from the lowest bit.
const IS_SEND: u64 = 1;
const PURPOSE_SHIFT: u32 = 1;
const SLOT_SHIFT: u32 = 2;
const NUMBER_SHIFT: u32 = SLOT_SHIFT + Slot::BITS;

/// Completions that are read at a time.
const READ_BATCH: usize = 16;

/// Something that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LinkEvent {
    /// A message has left, and what it was for, or a one-sided operation is over; its buffer is
    /// free.
    Sent(Slot, Purpose),
    /// A message has come.
    Received(Received),
}

/// A message that has come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// The purpose of the message.
    pub(crate) purpose: Purpose,
    /// The number that its receive was posted with. Messages match receives in order, but need not
    /// be complete in order.
    pub(crate) number: u64,
    /// Where it lies, from the start.
    pub(crate) slot: Slot,
    /// Its length in bytes.
    pub(crate) len: usize,
}

/// The link of an endpoint to the peer of an address, whose owner is at the other end of the
/// channel.
///
/// # Errors
///
/// When the address is none.
pub(crate) fn connect(
    bound: BoundEndpoint,
    mut channel: Channel,
    address: &[u8],
    block: bool,
    patience: Duration,
) -> Result<Link> {
    let (peer, carrier) = match bound.insert(address) {
        Ok(inserted) => inserted,
        Err(error) => {
            let why = format!("the address of the partner can not be used: {error}");
            let _ = channel.send(&Message::Failed { why: why.clone() });
            return Err(Failure::new(why));
        }
    };
    let domain = bound.domain.clone();
    Ok(Link {
        carrier,
        inject_bytes: domain.info().tx.inject_size,
        bound,
        buffers: Buffers::default(),
        domain,
        peer,
        block,
        more: Flags::empty(),
        batch: Batch::EMPTY,
        watch: Watch::new(channel, patience),
        outside: None,
        events: VecDeque::new(),
    })
}

/// Completions that were read at a time, of which some are still to be looked at.
struct Batch {
    read: [Completion; READ_BATCH],
    at: usize,
    end: usize,
}

impl Batch {
    const EMPTY: Self = Self {
        read: [Completion::BLANK; READ_BATCH],
        at: 0,
        end: 0,
    };
}

/// An endpoint and its peer.
pub(crate) struct Link {
    // The endpoint goes before the memory that its operations use, and the domain last.
    bound: BoundEndpoint,
    buffers: Buffers,
    domain: Arc<dyn Domain>,
    peer: FiAddr,
    /// Flags of the next sends.
    more: Flags,
    batch: Batch,
    watch: Watch,
    outside: Option<Outside>,
    block: bool,
    inject_bytes: usize,
    carrier: &'static str,
    /// Events of the time in which a send waited for room.
    events: VecDeque<LinkEvent>,
}

impl Link {
    /// The way to talk to the partner beside the messages.
    pub(crate) fn channel(&mut self) -> &mut Channel {
        &mut self.watch.channel
    }

    /// The transport of the messages: `verbs` or `shm`.
    pub(crate) fn carrier(&self) -> &'static str {
        self.carrier
    }

    /// The name of the domain.
    pub(crate) fn domain_name(&self) -> &str {
        &self.domain.info().domain.name
    }

    /// The transport of the messages, in words.
    pub(crate) fn route(&self) -> String {
        match (self.carrier, self.domain_name()) {
            ("shm", ShmProvider::DOMAIN) => "shared memory".to_owned(),
            ("shm", name) => format!("shared memory, paired with {name}"),
            (_, name) => format!("verbs device {name}"),
        }
    }

    /// A counter of its endpoint; 0 where its transports have none of that name.
    ///
    /// # Errors
    ///
    /// When another thread uses the domain.
    pub(crate) fn counter(&self, name: &str) -> Result<u64> {
        let all = self.bound.endpoint.stats()?;
        let found = all.iter().find(|(own, _)| *own == name);
        Ok(found.map_or(0, |(_, count)| *count))
    }

    /// Whether waits sleep.
    pub(crate) fn blocks(&self) -> bool {
        self.block
    }

    /// The longest message in bytes.
    pub(crate) fn max_bytes(&self) -> usize {
        self.domain.info().ep.max_msg_size
    }

    /// Gives the buffers back that there are, unless operations are under way.
    pub(crate) fn free_buffers(&mut self) {
        self.buffers.free();
    }

    /// Makes so many buffers of a length, side by side, registered where a device moves them.
    ///
    /// # Errors
    ///
    /// When there is no memory, or it can not be registered.
    pub(crate) fn buffers(&mut self, count: usize, len: usize) -> Result<Vec<Slot>> {
        let with = (self.carrier == "verbs").then_some(&*self.domain);
        self.buffers.make(count, len, with)
    }

    /// The bytes of a buffer.
    ///
    /// # Panics
    ///
    /// When an operation is under way on it.
    #[inline]
    pub(crate) fn bytes(&mut self, slot: Slot) -> &mut [u8] {
        self.buffers.bytes(slot)
    }

    /// Sets whether another send follows each send at once: a device then gets one doorbell for all
    /// of them.
    #[inline]
    pub(crate) fn set_more(&mut self, more: bool) {
        self.more = match more {
            true => Flags::MORE,
            false => Flags::empty(),
        };
    }

    /// Sends the first `len` bytes of a buffer. It is free at once, which is said, where the
    /// message was short enough to be copied, else with an [`LinkEvent::Sent`].
    ///
    /// # Errors
    ///
    /// When the message can not be sent, or the partner is gone.
    #[inline]
    pub(crate) fn send(&mut self, slot: Slot, len: usize, purpose: Purpose) -> Result<bool> {
        let is_copied = len <= self.inject_bytes;
        let place = self.buffers.place(slot);
        let message = [IoBuf::new(place.addr, len.min(place.len))];
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: self.peer,
            tag: purpose as u64,
            data: 0,
            desc: place.desc,
            context: context(slot, purpose) | IS_SEND,
            flags: self.more
                | match is_copied {
                    true => Flags::INJECT,
                    false => Flags::COMPLETION,
                },
        };
        loop {
            // SAFETY: the memory stays, and is not touched, while the place is busy.
            match unsafe { self.bound.endpoint.send(&op, &message) } {
                Ok(()) if is_copied => return Ok(true),
                Ok(()) => {
                    self.buffers.begin(slot);
                    return Ok(false);
                }
                Err(OpError::Again) => self.make_room()?,
                Err(error) => return Err(cannot("send", len, error)),
            }
        }
    }

    /// Posts a buffer to receive into, as receive number so-and-so.
    ///
    /// # Errors
    ///
    /// When it can not be posted.
    #[inline]
    pub(crate) fn post(&mut self, slot: Slot, purpose: Purpose, number: u64) -> Result<()> {
        let place = self.buffers.place(slot);
        let (buffer, len) = ([IoBuf::new(place.addr, place.len)], place.len);
        let op = RecvOp {
            kind: MsgKind::Tagged,
            src: self.peer,
            tag: purpose as u64,
            ignore: 0,
            desc: place.desc,
            context: context(slot, purpose) | (number << NUMBER_SHIFT),
            flags: Flags::COMPLETION,
        };
        loop {
            // SAFETY: as in `send`.
            match unsafe { self.bound.endpoint.recv(&op, &buffer) } {
                Ok(()) => {
                    self.buffers.begin(slot);
                    return Ok(());
                }
                Err(OpError::Again) => self.make_room()?,
                Err(error) => return Err(cannot("receive", len, error)),
            }
        }
    }

    /// Makes memory for the peer to read and write: zeros, but for the bytes that `fill` writes.
    /// `mapped`: such that a peer of this node can map it.
    ///
    /// # Errors
    ///
    /// When there is no memory, or it can not be registered.
    pub(crate) fn region(
        &self,
        bytes: usize,
        mapped: bool,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<LinkRegion> {
        LinkRegion::open(&*self.domain, RegionMemory::new(bytes, mapped)?, fill)
    }

    /// Writes the first `len` bytes of a buffer to a place of the peer's region, or reads them from
    /// there. A [`LinkEvent::Sent`] with [`Purpose::Data`] says that it is over.
    ///
    /// # Errors
    ///
    /// When the operation is refused, or the partner is gone.
    #[inline]
    pub(crate) fn rma(
        &mut self,
        kind: RmaKind,
        slot: Slot,
        len: usize,
        at: u64,
        level: Flags,
    ) -> Result<()> {
        self.begin_rma(kind, slot, len, at, Flags::COMPLETION | level)?;
        self.buffers.begin(slot);
        Ok(())
    }

    /// Writes the first `len` bytes of a buffer to the start of the peer's region, without a
    /// completion where they are short enough to be copied: then the buffer is free at once, which
    /// is said.
    ///
    /// # Errors
    ///
    /// As [`rma`](Self::rma).
    #[inline]
    pub(crate) fn write_unreported(
        &mut self,
        slot: Slot,
        len: usize,
        level: Flags,
    ) -> Result<bool> {
        let is_copied = len <= self.inject_bytes;
        match is_copied {
            true => self.begin_rma(RmaKind::Write, slot, len, 0, Flags::INJECT | level)?,
            false => self.rma(RmaKind::Write, slot, len, 0, level)?,
        }
        Ok(is_copied)
    }

    #[inline]
    fn begin_rma(
        &mut self,
        kind: RmaKind,
        slot: Slot,
        len: usize,
        at: u64,
        flags: Flags,
    ) -> Result<()> {
        let place = self.buffers.place(slot);
        let bytes = [IoBuf::new(place.addr, len.min(place.len))];
        let op = RmaOp {
            kind,
            dest: self.peer,
            key: region::KEY,
            place: at,
            data: 0,
            desc: place.desc,
            context: context(slot, Purpose::Data) | IS_SEND,
            flags,
        };
        loop {
            // SAFETY: as in `send`.
            match unsafe { self.bound.endpoint.rma(&op, &bytes) } {
                Ok(()) => return Ok(()),
                Err(OpError::Again) => self.make_room()?,
                Err(error) => return Err(cannot(rma_name(kind), len, error)),
            }
        }
    }

    /// An operation is over.
    #[inline(always)]
    fn event(&mut self, context: u64, len: usize) -> LinkEvent {
        let slot = Slot::of(context >> SLOT_SHIFT);
        self.buffers.end(slot);
        let purpose = match (context >> PURPOSE_SHIFT) & 1 {
            0 => Purpose::Data,
            _ => Purpose::Ack,
        };
        if context & IS_SEND != 0 {
            return LinkEvent::Sent(slot, purpose);
        }
        LinkEvent::Received(Received {
            purpose,
            number: context >> NUMBER_SHIFT,
            slot,
            len,
        })
    }

    /// The next event of the batch.
    #[inline(always)]
    fn next_of_batch(&mut self) -> Option<LinkEvent> {
        let Batch { read, at, end } = &mut self.batch;
        if at == end {
            return None;
        }
        let Completion { context, len, .. } = read[*at];
        *at += 1;
        Some(self.event(context, len))
    }

    /// Reads what is over, unless some of that is left. Returns whether there is anything. With
    /// `wait` it sleeps for it, for a while.
    #[inline]
    fn poll(&mut self, wait: bool) -> Result<bool> {
        let Batch { read, at, end } = &mut self.batch;
        if at == end {
            let found = match wait {
                false => self.bound.cq.read(read),
                true => self.bound.cq.sread(read, Some(CHECK_EVERY)),
            };
            match found {
                Ok(n) => (*at, *end) = (0, n),
                Err(OpError::Again) => return Ok(false),
                Err(error) => return Err(self.bound.failure(error, operation_name)),
            }
        }
        Ok(true)
    }

    /// Waits for the next event.
    ///
    /// # Errors
    ///
    /// When an operation failed, the partner is gone, or nothing came for too long.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> Result<LinkEvent> {
        loop {
            let there = match self.events.is_empty() {
                true => self.next_of_batch(),
                false => self.events.pop_front(),
            };
            if let Some(event) = there {
                return Ok(event);
            }
            self.wait()?;
        }
    }

    /// Waits until something has been read.
    #[inline(never)]
    fn wait(&mut self) -> Result<()> {
        let mut wait = Wait::default();
        while !self.poll(self.block)? {
            if wait.found_nothing(self.block) {
                self.watch.look_after(&mut wait)?;
            }
        }
        Ok(())
    }

    /// The next event, after one look at the queue; the peer is looked after as in
    /// [`next`](Self::next).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub(crate) fn poll_once(&mut self, wait: &mut Wait) -> Result<Option<LinkEvent>> {
        let event = self.look(false)?;
        if event.is_none() && wait.found_nothing(false) {
            self.watch.look_after(wait)?;
        }
        Ok(event)
    }

    /// The next event, for a side that serves its peer: that may take any time, as long as the
    /// partner is there. Where the device reads and writes the memory, nobody else is needed, and
    /// this side sleeps, as the server of perftest's programs does.
    ///
    /// # Errors
    ///
    /// When an operation failed, or the partner is gone.
    pub(crate) fn serve(&mut self, operations: Served) -> Result<Option<LinkEvent>> {
        let by_device = operations == Served::ReadsAndWrites && self.carrier == "verbs";
        let sleeps = self.block || by_device;
        let event = self.look(sleeps)?;
        if event.is_none() {
            match sleeps {
                true => self.watch.channel.check()?,
                false => self.watch.look_after_rarely()?,
            }
        }
        Ok(event)
    }

    /// The next event, after one look at the queue.
    #[inline]
    fn look(&mut self, wait: bool) -> Result<Option<LinkEvent>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        self.poll(wait)?;
        Ok(self.next_of_batch())
    }

    /// Keeps the next event, if there is one, for [`Link::next`]. Returns whether there is.
    fn put_aside(&mut self) -> Result<bool> {
        self.poll(false)?;
        let event = self.next_of_batch();
        self.events.extend(event);
        Ok(event.is_some())
    }

    /// Waits a step for room to send; events meanwhile are kept for [`Link::next`].
    #[cold]
    fn make_room(&mut self) -> Result<()> {
        let mut wait = Wait::default();
        for _ in 0..STALLS_PER_CHECK {
            if !self.put_aside()? {
                // Room may be there without a completion that says so: an inject has none.
                return self.watch.look_after_rarely();
            }
        }
        self.watch.look_after(&mut wait)
    }

    /// Waits for a message on the channel; the endpoint is driven meanwhile, for the partner may
    /// still need it.
    ///
    /// # Errors
    ///
    /// When the partner fails or is gone, or an operation that was still under way fails.
    pub(crate) fn message(&mut self) -> Result<Message> {
        let deadline = Instant::now() + self.watch.patience;
        loop {
            if let Some(message) = self.watch.channel.try_receive()? {
                return Ok(message);
            }
            if !self.put_aside()? {
                self.watch.channel.sleep(1)?;
            }
            if Instant::now() > deadline {
                return Err(Failure::new("the partner says nothing"));
            }
        }
    }
}

#[inline]
fn context(slot: Slot, purpose: Purpose) -> u64 {
    (u64::from(slot.number()) << SLOT_SHIFT) | ((purpose as u64 - 1) << PURPOSE_SHIFT)
}

fn rma_name(kind: RmaKind) -> &'static str {
    match kind {
        RmaKind::Read => "read",
        RmaKind::Write => "write",
    }
}

fn operation_name(failed: &CqError) -> &'static str {
    let completion = &failed.completion;
    if completion.flags.contains(Flags::ATOMIC) {
        return "atomic operation";
    }
    if completion.flags.contains(Flags::RMA) {
        return match completion.flags.contains(Flags::READ) {
            true => rma_name(RmaKind::Read),
            false => rma_name(RmaKind::Write),
        };
    }
    match completion.context & IS_SEND {
        0 => "receive",
        _ => "send",
    }
}

#[cold]
fn cannot(doing: &str, len: usize, error: OpError) -> Failure {
    Failure::new(format!("{doing} a message of {len} bytes: {error}"))
}
