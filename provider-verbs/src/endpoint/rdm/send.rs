//! Sending: at once when the lane has room, else in line.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::{Owner, SendDone};
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, SendOp, total_len};
use ferrofabric_protocol::credit::Admission;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{
    Envelope, Header, MAX_HEADER_BYTES, MAX_NOTICE_BYTES, MAX_RTS_BYTES, MAX_SEGMENTS, Segment,
    renew_credit,
};
use ferrofabric_verbs_sys::ibv_sge;

use super::parts::InParts;
use super::{Counters, MAX_PENDING, RdmTransport};
use crate::device::Mtu;
use crate::gather::{Readable, entry};
use crate::mr::Access;
use crate::post::{SendChain, SendFlags, inline_sge};
use crate::registration::{Region, Registrations};
use crate::session::{
    Kept, KeptKind, Lane, Link, Notice, Pending, Place, Records, Registered, RendezvousSend,
    SessionState, Wqe, WqeKind,
};
use crate::slots::SlotPool;
use crate::tuning::Tuning;

/// Completion levels that only the receiver can tell of: such messages go as requests, which it ends.
pub(super) const TELLS: Flags = Flags::DELIVERY_COMPLETE.union(Flags::MATCH_COMPLETE);

/// How posting a message went, short of success.
pub(super) enum Stop {
    /// No room now; what makes some lists the lane.
    Wait,
    /// Nothing is left of what all lanes share.
    Short,
    /// The message itself can not be sent.
    Refused(Errno, &'static str),
    /// The lane is dead. The message was entered, and ends with the lane.
    Broken,
}

impl RdmTransport {
    #[cold]
    pub(super) fn add_route(&mut self, addr: FiAddr, name: &NativeAddr) -> Result<u32, OpError> {
        if name.verbs.is_none() {
            return Err(OpError::Failed(Errno::EHOSTUNREACH));
        }
        Ok(self.peers.route(addr, name))
    }

    #[inline]
    pub(super) fn send_to(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        let peer = self.peers.at(at);
        if let Link::Up(session) = peer.link {
            if peer.pending.is_empty() {
                if self.poster.holds_back() {
                    self.make_way_for(session);
                }
                let Some(lane) = self.lanes.of(session) else {
                    return self.send_datagrams(session, at, op, iov);
                };
                {
                    let fenced = op.flags.contains(Flags::FENCE) && lane.session.has_unfinished();
                    if lane.open && !fenced {
                        let more = op.flags.contains(Flags::MORE);
                        match self.poster.message(lane, op, iov, None, more) {
                            Ok(()) => return Ok(()),
                            Err(Stop::Wait | Stop::Short) => {}
                            Err(Stop::Refused(errno, _)) => return Err(OpError::Failed(errno)),
                            Err(Stop::Broken) => {
                                self.lane_broke(session);
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        self.post_held_back();
        self.line_up(at, op, iov)
    }

    /// Puts a message in line, if there is room there.
    #[inline(never)]
    pub(super) fn line_up(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        if self.queue_is_dead() {
            return Err(OpError::Failed(Errno::EIO));
        }
        if self.peers.at(at).pending.len() >= MAX_PENDING {
            return Err(OpError::Again);
        }
        self.enqueue(at, op, iov)
    }

    /// Posts the messages that were held back for more to come.
    #[inline]
    pub(super) fn post_held_back(&mut self) {
        self.poster.more_follow = false;
        if self.poster.holds_back() {
            self.post_chain();
        }
    }

    #[inline(never)]
    fn post_chain(&mut self) {
        let session = self.poster.chain_of;
        if let Some(lane) = self.lanes.of(session) {
            if self.poster.post_chain(lane).is_err() {
                self.lane_broke(session);
            }
        }
    }

    /// Before a message for a lane: posts what is held back, unless the message can go behind it.
    #[inline(never)]
    fn make_way_for(&mut self, session: SessionId) {
        let fits = self.poster.chain_of == session && !self.poster.chain.is_full();
        let longest = MAX_RTS_BYTES.max(self.poster.tuning.inline_bytes);
        let stay = |lane: &mut Lane| lane.records.has_room(longest);
        if fits && self.lanes.of(session).is_some_and(stay) {
            return;
        }
        self.post_held_back();
        if let Some(lane) = self.lanes.of(session) {
            lane.records.make_room(longest);
        }
    }

    /// Puts a message in line for its peer's lane, and asks for the lane if there is none.
    #[cold]
    pub(super) fn enqueue(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        let peer = self.peers.at(at);
        if peer.closed.is_some() {
            return Err(OpError::Failed(Errno::ESHUTDOWN));
        }
        peer.pending.push_back(Pending::new(op, iov));
        match peer.link {
            Link::Idle => self.reconnect_if_wanted(at),
            Link::Connecting | Link::Resuming(_) => {}
            Link::Up(session) => self.list(session),
        }
        Ok(())
    }

    /// Posts what waits for a lane, with few doorbells. Says how many.
    pub(super) fn run_pending<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let done = self.chain_pending(session, owner);
        self.post_held_back();
        done
    }

    fn chain_pending<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let mut done = 0;
        loop {
            if self.poster.holds_back() {
                self.make_way_for(session);
            }
            let Some(lane) = self.lanes.of(session) else {
                return done;
            };
            if !lane.open {
                return done;
            }
            let peer = self.peers.at(lane.peer);
            let Some(pending) = peer.pending.pop_front() else {
                return done;
            };
            let more = !peer.pending.is_empty();
            if pending.op.flags.contains(Flags::FENCE) && lane.session.has_unfinished() {
                // It keeps its place until the last of those ends, which lists the lane.
                peer.pending.push_front(pending);
                return done;
            }
            let poster = &mut self.poster;
            let posted =
                pending.with_buffers(|op, iov, copy| poster.message(lane, op, iov, copy, more));
            match posted {
                Ok(()) => done += 1,
                Err(stop @ (Stop::Wait | Stop::Short)) => {
                    peer.pending.push_front(pending);
                    if matches!(stop, Stop::Short) {
                        self.stall(session);
                    }
                    return done;
                }
                Err(Stop::Refused(errno, why)) => {
                    owner.fail_send(&pending.done(), errno, 0, why);
                    done += 1;
                }
                Err(Stop::Broken) => {
                    self.lane_broke(session);
                    return done;
                }
            }
        }
    }

    /// Posts the notices that wait for a lane.
    pub(super) fn run_notices(&mut self, session: SessionId) -> usize {
        let Some(lane) = self.lanes.of(session) else {
            return 0;
        };
        if !lane.open {
            return 0;
        }
        match self.poster.notices(lane) {
            Ok(done) => done,
            Err(Stop::Short) => {
                self.stall(session);
                0
            }
            Err(_) => {
                self.lane_broke(session);
                1
            }
        }
    }
}

impl RdmTransport {
    /// Posts again what was under way on a lane that broke. A message that we write may have its end among it: what is lost
    /// of the writes goes first.
    pub(super) fn run_replay(&mut self, session: SessionId) -> usize {
        let mut done = self.run_writes(session);
        loop {
            let Some(lane) = self.lanes.of(session) else {
                return done;
            };
            if !lane.is_usable() || lane.session.writes.has_lost() {
                return done;
            }
            let Some(kept) = lane.session.replay.pop_front() else {
                lane.reconsider();
                return done;
            };
            match self.poster.again(lane, kept) {
                Ok(()) => done += 1,
                Err(Stop::Broken) => {
                    self.lane_broke(session);
                    return done;
                }
                Err(Stop::Short) => {
                    self.stall(session);
                    return done;
                }
                Err(_) => return done,
            }
        }
    }
}

/// Posts to lanes: what all lanes share for that.
pub(super) struct Poster {
    pub(super) bounces: SlotPool,
    pub(super) tuning: Tuning,
    /// What the device puts into a frame of the network at most.
    pub(super) mtu: Mtu,
    /// What is to be posted to the lane of `chain_of`. Between calls it is empty, but for messages that were sent with `MORE`.
    pub(super) chain: SendChain<2>,
    pub(super) chain_of: SessionId,
    /// Messages are held back until [`Poster::post_chain`]: others follow at once.
    pub(super) more_follow: bool,
    /// Work requests under way, of all lanes, with those held back.
    pub(super) outstanding: usize,
    /// Sends that want no completion are to be told of soon all the same.
    pub(super) counts_sends: bool,
    pub(super) counters: Counters,
    pub(super) registrations: Registrations,
}

impl Poster {
    /// Posts a message: eagerly if it is small and the peer has room for it, else as a request. `copy` is what `iov`
    /// points to, if that is ours. If `more` follow, it may be held back for them.
    #[inline]
    fn message(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        more: bool,
    ) -> Result<(), Stop> {
        self.more_follow = more;
        if !lane.has_room() {
            return Err(Stop::Wait);
        }
        if self.is_scarce() && !self.has_share(lane) {
            return Err(Stop::Short);
        }
        let len = iov.total_len();
        let eager_bytes = self
            .tuning
            .eager_bytes
            .min(lane.packet_bytes.saturating_sub(MAX_HEADER_BYTES));
        if len <= eager_bytes && !op.flags.intersects(TELLS) {
            let fits_inline = len + MAX_HEADER_BYTES <= self.tuning.inline_bytes;
            let slot = match fits_inline {
                true => None,
                false => Some(self.bounces.take().ok_or(Stop::Short)?),
            };
            if lane.session.numbers.send_credit.admit(len as u32) == Admission::Eager {
                return self.eager(lane, op, iov, len, slot);
            }
            if let Some(slot) = slot {
                self.bounces.give(slot);
            }
        } else if len <= self.tuning.parts_bytes && !op.flags.intersects(TELLS) {
            if let InParts::Posted = self.in_parts(lane, op, iov, len)? {
                return Ok(());
            }
        }
        self.request(lane, op, iov, copy)
    }

    #[inline]
    pub(super) fn eager(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: Readable<'_>,
        len: usize,
        slot: Option<u32>,
    ) -> Result<(), Stop> {
        let header = Self::stamp(lane)?;
        let kind = WqeKind::Message(SendDone::of(op, len));
        self.counters.eager_sent += 1;
        self.counters.bytes_sent += len as u64;
        let Some(slot) = slot else {
            let entry = write_whole(&header, op, iov, len, &mut lane.records);
            let place = Place::Record(lane.records.enter(entry.length as usize));
            return self.inline(lane, entry, kind, Some(header.sequence), place);
        };
        let mut head = [0; MAX_HEADER_BYTES];
        let head_len = header.write_eager(&envelope(op), len as u32, &mut head);
        let at = self.bounces.address(slot);
        // SAFETY: the slot holds the largest header and message, and is ours until its request is over.
        unsafe { at.copy_from_nonoverlapping(head.as_ptr(), head_len) };
        let place = match self.described(op, iov) {
            Some(Registered { buf, region }) => {
                lane.described.push_back(region);
                Place::Split {
                    slot,
                    head: head_len as u32,
                    rest: buf,
                }
            }
            None => {
                // SAFETY: as above; the message behind the header fits as well.
                unsafe { iov.gather(at.wrapping_add(head_len)) };
                Place::Bounce {
                    slot,
                    len: (head_len + len) as u32,
                }
            }
        };
        self.bounced(lane, kind, header.sequence, place)
    }

    /// The one buffer of a message, if the application has registered it.
    #[inline]
    pub(super) fn described(&self, op: &SendOp, iov: Readable<'_>) -> Option<Registered> {
        let [buf] = *iov.list() else { return None };
        let region = (self.registrations).described(op.desc, buf, Access::empty())?;
        Some(Registered { buf, region })
    }

    /// Posts a packet that lies in a bounce buffer, or starts there.
    #[inline]
    pub(super) fn bounced(
        &mut self,
        lane: &mut Lane,
        kind: WqeKind,
        sequence: u32,
        place: Place,
    ) -> Result<(), Stop> {
        let lkey = self.bounces.lkey();
        let mut flags = self.flags(&kind);
        // Buffers come back with the completions: some have to be asked for before all lanes together have taken the last.
        if self.bounces.available() < self.bounces.count() / 2 {
            flags |= SendFlags::SIGNALED;
        }
        let of_slot = |slot, len| entry(self.bounces.address(slot) as u64, len as usize, lkey);
        match place {
            Place::Split { slot, head, rest } => {
                // Its region was entered just now.
                let lkey = lane.described.back().map_or(0, |region| region.lkey());
                let rest = entry(rest.addr as u64, rest.len, lkey);
                let entries = [of_slot(slot, head), rest];
                self.post(lane, entries, flags, kind, place, Some(sequence))
            }
            Place::Bounce { slot, len } => {
                let entries = [of_slot(slot, len)];
                self.post(lane, entries, flags, kind, place, Some(sequence))
            }
            Place::Nowhere | Place::Record(_) => Ok(()),
        }
    }

    /// Tells the peer of a message that it is to read, or to say where to write it.
    #[cold]
    fn request(
        &mut self,
        lane: &mut Lane,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
    ) -> Result<(), Stop> {
        let mut bytes = [0; MAX_RTS_BYTES];
        let (len, header) = self.announce(&mut lane.session, op, iov, copy, &mut bytes)?;
        self.notice(lane, &bytes[..len], WqeKind::Notice, header)
    }

    /// Enters a message that the peer is to read, or to say where to write it, and writes the packet that tells of it.
    pub(super) fn announce(
        &mut self,
        session: &mut SessionState,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        bytes: &mut [u8; MAX_RTS_BYTES],
    ) -> Result<(usize, Header), Stop> {
        if session.sends.is_full() {
            // The peer is to take some first. Nothing is registered for it until then.
            return Err(Stop::Wait);
        }
        let mut kept = None;
        let mut owned = [IoBuf::EMPTY];
        let iov = if op.flags.contains(Flags::INJECT) && !iov.list().is_empty() {
            let bytes: Box<[u8]> = copy.map_or_else(|| iov.to_bytes(), Into::into);
            owned[0] = IoBuf::new(bytes.as_ptr(), bytes.len());
            kept = Some(bytes);
            &owned[..]
        } else {
            iov.list()
        };
        let desc = if kept.is_some() { 0 } else { op.desc };
        let writes = self.tuning.sender_writes;
        let mut regions = Vec::new();
        let mut segments = Vec::with_capacity(iov.len());
        let access = match writes {
            true => Access::empty(),
            false => Access::REMOTE_READ,
        };
        for buf in iov.iter().filter(|buf| buf.len != 0) {
            let region = match self.registrations.described(desc, *buf, access) {
                Some(region) => region,
                None => {
                    let at = buf.as_mut_ptr();
                    // SAFETY: the buffer stays until the operation completes, and we give the
                    // region back before that.
                    let region = unsafe { self.registrations.region(at, buf.len, access) };
                    region.map_err(refused)?
                }
            };
            let key = if writes { region.lkey() } else { region.rkey() };
            regions.push(region);
            segments.push(Segment {
                address: buf.addr as u64,
                length_bytes: buf.len as u64,
                rkey: key,
            });
        }
        if !writes && segments.len() > MAX_SEGMENTS {
            return Err(Stop::Refused(
                Errno::EINVAL,
                "the message lies in too many pieces",
            ));
        }
        let total = total_len(iov) as u64;
        if !session.numbers.may_stamp() {
            return Err(Stop::Wait);
        }
        let send = RendezvousSend {
            done: SendDone::of(op, total as usize),
            local: writes.then(|| segments.clone()),
            total_bytes: total,
            regions,
            _copy: kept,
        };
        let number = session.sends.insert(send).map_err(|_| Stop::Wait)?;
        let header = session.numbers.stamp().ok_or(Stop::Wait)?;
        let envelope = envelope(op);
        let written = match writes {
            true => Ok(header.write_offer(&envelope, number, total, bytes)),
            false => header.write_rts(&envelope, number, &segments, bytes),
        };
        // Counted above, and no segment is empty.
        let len = written.unwrap_or(0);
        self.counters.rendezvous_sent += 1;
        self.counters.bytes_sent += total;
        Ok((len, header))
    }

    fn notices(&mut self, lane: &mut Lane) -> Result<usize, Stop> {
        let mut done = 0;
        while lane.has_reserved_room() {
            let mut bytes = [0; MAX_NOTICE_BYTES];
            if let Some(notice) = lane.session.notices.front().copied() {
                if self.is_scarce() && !self.has_share(lane) {
                    return Err(Stop::Short);
                }
                let header = Self::stamp(lane)?;
                lane.session.notices.pop_front();
                let mut kind = WqeKind::Notice;
                let len = match notice {
                    Notice::Fin(op, status) => header.write_fin(op, status, &mut bytes),
                    Notice::Cts(grant) => header.write_cts(&grant, &mut bytes),
                    Notice::Done(transfer) => {
                        let writing = lane.session.writes.owner(transfer);
                        let receive = writing.map_or(0, |writing| writing.grant.receive);
                        kind = WqeKind::Done(transfer);
                        header.write_done(receive, &mut bytes)
                    }
                };
                self.notice(lane, &bytes[..len], kind, header)?;
            } else if lane.session.numbers.receive_credit.owes() {
                if self.is_scarce() && !self.has_share(lane) {
                    return Err(Stop::Short);
                }
                let header = lane.session.numbers.stamp_credit();
                let len = header.write_credit(&mut bytes);
                let entry = inline_sge(&bytes[..len]);
                self.inline(lane, entry, WqeKind::Notice, None, Place::Nowhere)?;
            } else {
                break;
            }
            done += 1;
        }
        Ok(done)
    }

    /// Posts a credit packet and asks for its acknowledgement, which only a living queue pair gives.
    pub(super) fn probe(&mut self, lane: &mut Lane) -> Result<(), Stop> {
        if self.is_full() {
            return Ok(());
        }
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = lane.session.numbers.stamp_credit().write_credit(&mut bytes);
        let entries = [inline_sge(&bytes[..len])];
        let flags = SendFlags::SIGNALED | SendFlags::INLINE;
        self.post(lane, entries, flags, WqeKind::Notice, Place::Nowhere, None)
    }

    /// Posts a small numbered packet of ours.
    fn notice(
        &mut self,
        lane: &mut Lane,
        bytes: &[u8],
        kind: WqeKind,
        header: Header,
    ) -> Result<(), Stop> {
        let room = lane.records.room(bytes.len());
        room.copy_from_slice(bytes);
        let entry = inline_sge(room);
        let place = Place::Record(lane.records.enter(bytes.len()));
        self.inline(lane, entry, kind, Some(header.sequence), place)
    }

    /// Posts a packet that travels in the work request.
    #[inline(always)]
    fn inline(
        &mut self,
        lane: &mut Lane,
        entry: ibv_sge,
        kind: WqeKind,
        sequence: Option<u32>,
        place: Place,
    ) -> Result<(), Stop> {
        let flags = self.flags(&kind) | SendFlags::INLINE;
        self.post(lane, [entry], flags, kind, place, sequence)
    }

    /// What is to be kept of a request that was flushed, should its packet have to be sent again.
    #[cold]
    pub(super) fn kept(
        &self,
        records: &Records,
        described: &mut VecDeque<Arc<Region>>,
        wqe: Wqe,
    ) -> Option<Kept> {
        let slot_bytes = |slot: u32, len: u32| -> Box<[u8]> {
            // SAFETY: the slot holds so much, and is ours as long as the request is entered.
            unsafe { std::slice::from_raw_parts(self.bounces.address(slot), len as usize) }.into()
        };
        let (bytes, rest): (Box<[u8]>, _) = match wqe.packet {
            Place::Nowhere => return None,
            Place::Record(record) => (records.bytes(record).into(), None),
            Place::Bounce { slot, len } => (slot_bytes(slot, len), None),
            Place::Split { slot, head, rest } => {
                let region = described.pop_front();
                let rest = region.map(|region| Registered { buf: rest, region });
                (slot_bytes(slot, head), rest)
            }
        };
        let kind = match wqe.kind {
            WqeKind::Message(done) => KeptKind::Message(done),
            WqeKind::Done(transfer) => KeptKind::Done(transfer),
            _ => KeptKind::Notice,
        };
        Some(Kept {
            sequence: wqe.sequence?,
            kind,
            bytes: bytes.into(),
            rest,
        })
    }

    /// Posts a packet again, or puts it back.
    #[cold]
    fn again(&mut self, lane: &mut Lane, kept: Kept) -> Result<(), Stop> {
        let fits_inline = kept.rest.is_none() && kept.bytes.len() <= self.tuning.inline_bytes;
        let stop = match lane.has_reserved_room() {
            false => Some(Stop::Wait),
            true if self.is_scarce() && !self.has_share(lane) => Some(Stop::Short),
            true => None,
        };
        let slot = match fits_inline || stop.is_some() {
            true => None,
            false => self.bounces.take(),
        };
        let stop = stop.or((!fits_inline && slot.is_none()).then_some(Stop::Short));
        if let Some(stop) = stop {
            lane.session.replay.push_front(kept);
            return Err(stop);
        }
        let Kept {
            sequence,
            kind,
            mut bytes,
            rest,
        } = kept;
        renew_credit(&mut bytes, lane.session.numbers.receive_credit.field());
        let kind = match kind {
            KeptKind::Message(done) => WqeKind::Message(done),
            KeptKind::Done(transfer) => WqeKind::Done(transfer),
            KeptKind::Notice => WqeKind::Notice,
        };
        let Some(slot) = slot else {
            let room = lane.records.room(bytes.len());
            room.copy_from_slice(&bytes);
            let entry = inline_sge(room);
            let place = Place::Record(lane.records.enter(bytes.len()));
            return self.inline(lane, entry, kind, Some(sequence), place);
        };
        let at = self.bounces.address(slot);
        // SAFETY: the packet lay in such a slot before, and this one is ours until its request is over.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        let len = bytes.len() as u32;
        let place = match rest {
            None => Place::Bounce { slot, len },
            Some(Registered { buf, region }) => {
                lane.described.push_back(region);
                Place::Split {
                    slot,
                    head: len,
                    rest: buf,
                }
            }
        };
        self.bounced(lane, kind, sequence, place)
    }

    /// Whether there is no place for one more completion.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.outstanding >= self.tuning.send_total
    }

    /// Whether so much is under way that a lane has to keep to its share.
    #[inline]
    pub(super) fn is_scarce(&self) -> bool {
        self.outstanding >= self.tuning.send_free
    }

    /// Whether a lane may post one more where places are scarce: it keeps to its share, or waits
    /// for no word yet. So stopped peers, whose lanes are full for good, leave some to each of the
    /// others.
    #[cold]
    pub(super) fn has_share(&self, lane: &Lane) -> bool {
        !self.is_full() && (lane.queue.len() < self.tuning.send_share || lane.expects_no_word())
    }

    /// Whether anybody wants to be told of a request. Where many are under way, of all lanes, we do: their places come back with
    /// completions.
    #[inline]
    fn flags(&self, kind: &WqeKind) -> SendFlags {
        let wanted = match kind {
            WqeKind::Message(done) => done.flags.contains(Flags::COMPLETION) || self.counts_sends,
            WqeKind::Done(_) => true,
            _ => false,
        };
        match wanted || self.is_scarce() {
            true => SendFlags::SIGNALED,
            false => SendFlags::empty(),
        }
    }

    #[inline]
    pub(super) fn stamp(lane: &mut Lane) -> Result<Header, Stop> {
        lane.session.numbers.stamp().ok_or(Stop::Wait)
    }

    /// Whether messages wait for a doorbell.
    #[inline]
    fn holds_back(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Posts a packet behind those held back, and these with it; or holds it back, too. It is entered whatever becomes of it:
    /// a lane that refuses one is given up, and all that is entered ends with it.
    ///
    /// The entries are inline data at a record or, where none may be held back, anywhere; bounce buffers, which are kept until
    /// the request is over; or what the application keeps until then.
    #[inline(always)]
    fn post<const N: usize>(
        &mut self,
        lane: &mut Lane,
        entries: [ibv_sge; N],
        flags: SendFlags,
        kind: WqeKind,
        packet: Place,
        sequence: Option<u32>,
    ) -> Result<(), Stop> {
        let number = lane.next_number;
        let (wr_id, signaled) = lane.next(flags.contains(SendFlags::SIGNALED));
        let flags = match signaled {
            true => flags | SendFlags::SIGNALED,
            false => flags,
        };
        self.chain.push(wr_id, flags, entries);
        lane.queue.push_back(Wqe {
            number,
            sequence,
            kind,
            packet,
        });
        self.outstanding += 1;
        if self.more_follow {
            self.chain_of = lane.key.session();
            return Ok(());
        }
        self.post_chain(lane)
    }

    /// Rings the doorbell for what is held back.
    #[inline(always)]
    pub(super) fn post_chain(&mut self, lane: &mut Lane) -> Result<(), Stop> {
        // SAFETY: the memory of each request stays until it is over (`post`); records stay where they are while one of theirs is
        // in the chain (`make_way_for`).
        match unsafe { self.chain.post(&lane.qp) } {
            Ok(()) => Ok(()),
            Err((error, _)) => {
                tracing::warn!("posting to {} failed: {error}", **lane.qp);
                lane.refused = true;
                Err(Stop::Broken)
            }
        }
    }
}

/// Writes an eager message, header and all, to where it is kept.
#[inline]
fn write_whole(
    header: &Header,
    op: &SendOp,
    iov: Readable<'_>,
    len: usize,
    records: &mut Records,
) -> ibv_sge {
    let room = records.room(MAX_HEADER_BYTES + len);
    let head_len = match room.first_chunk_mut() {
        Some(head) => header.write_eager(&envelope(op), len as u32, head),
        None => 0,
    };
    let behind = &mut room[head_len..][..len];
    // SAFETY: the message is so long.
    unsafe { iov.gather(behind.as_mut_ptr()) };
    inline_sge(&room[..head_len + len])
}

#[inline]
pub(super) fn envelope(op: &SendOp) -> Envelope {
    Envelope {
        tag: match op.kind {
            MsgKind::Tagged => Some(op.tag),
            MsgKind::Msg => None,
        },
        cq_data: op.flags.contains(Flags::REMOTE_CQ_DATA).then_some(op.data),
    }
}

#[cold]
fn refused(error: ferrofabric_contracts::error::Error) -> Stop {
    tracing::warn!("{error}");
    Stop::Refused(
        error.errno(),
        "the message could not be registered with the device; the log says why (most often the limit of locked memory)",
    )
}
