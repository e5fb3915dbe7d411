//! Posting to lanes: the resources that all lanes share for that, and the chain of messages for one
//! doorbell.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{MsgKind, SendOp};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{DataEnvelope, Header, MAX_NOTICE_BYTES};
use ferrofabric_verbs_sys::ibv_sge;

use super::bounces::BounceBuffers;
use super::complete::entered;
use super::counters::RdmCounters;
use crate::device::Mtu;
use crate::gather::{Readable, entry};
use crate::lane::{LaneWqe, OneSidedWqe, PacketBuffer, RcLane, WqeKind};
use crate::mr::Access;
use crate::post::{SendChain, SendFlags, SendRequest, inline_sge};
use crate::registration::Registrations;
use crate::session::Registered;
use crate::slots::SlotPool;
use crate::tuning::Tuning;

/// The reason why a message was not posted.
pub(super) enum PostError {
    /// The lane has no room now; it is listed once it has room.
    LaneFull,
    /// A resource that all lanes share is exhausted.
    PoolExhausted,
    /// The peer takes no more requests to send: only the envelope of the message may go.
    RequestsFull,
    /// The message itself cannot be sent.
    Refused(Errno, &'static str),
    /// The lane is dead. The message was entered, and ends with the lane.
    Broken,
}

/// The result of sending a message in fragments.
pub(super) enum FragmentOutcome {
    /// The message was posted.
    Posted,
    /// The message is too long, or the peer has no room for it: it has to go by rendezvous.
    NeedsRendezvous,
}

/// The resources for posting that all lanes share.
pub(super) struct Poster {
    pub(super) bounces: BounceBuffers,
    pub(super) tuning: Tuning,
    /// The largest payload of a network packet.
    pub(super) mtu: Mtu,
    /// Requests to be posted to the lane of `chain_of`. Between calls it is empty, except for
    /// messages that were sent with `MORE`.
    chain: SendChain<2>,
    chain_of: SessionId,
    /// Messages are held back until [`Poster::post_chain`], because others follow at once.
    more_follow: bool,
    /// Work requests under way on all lanes, with those held back.
    pub(super) outstanding: usize,
    /// Sends without a completion for the application have to be signaled soon, too.
    counts_sends: bool,
    pub(super) counters: RdmCounters,
    pub(super) registrations: Registrations,
    /// Where reads go whose bytes nobody needs.
    pub(super) read_scratch: Option<SlotPool>,
}

impl Poster {
    /// Starts with nothing under way.
    pub(super) fn new(
        bounces: BounceBuffers,
        tuning: Tuning,
        mtu: Mtu,
        registrations: Registrations,
    ) -> Self {
        Self {
            bounces,
            tuning,
            mtu,
            chain: SendChain::new(),
            chain_of: SessionId(0),
            more_follow: false,
            outstanding: 0,
            counts_sends: false,
            counters: RdmCounters::default(),
            registrations,
            read_scratch: None,
        }
    }

    /// Makes each send complete soon at the device: sends without a completion for the application
    /// are signaled, too.
    pub(super) fn count_sends(&mut self) {
        self.counts_sends = true;
    }

    /// Whether other messages follow at once upon the one that is posted now.
    #[inline]
    pub(super) fn more_follow(&self) -> bool {
        self.more_follow
    }

    /// From now on messages are held back for others to follow, or not.
    #[inline]
    pub(super) fn expect_more(&mut self, more: bool) {
        self.more_follow = more;
    }

    /// Whether messages wait for a doorbell.
    #[inline]
    pub(super) fn holds_back(&self) -> bool {
        !self.chain.is_empty()
    }

    /// The lane whose messages wait for a doorbell.
    #[inline]
    pub(super) fn chain_of(&self) -> SessionId {
        self.chain_of
    }

    /// Whether no message can be held back any more.
    #[inline]
    pub(super) fn is_chain_full(&self) -> bool {
        self.chain.is_full()
    }

    /// Whether the completion queue has no place for one more request.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.outstanding >= self.tuning.sends.total
    }

    /// Whether so many requests are under way that a lane has to keep to its share.
    #[inline]
    pub(super) fn is_scarce(&self) -> bool {
        self.outstanding >= self.tuning.sends.free
    }

    /// Whether a lane may post one more request where places are scarce: it is within its share, or
    /// has no signaled request yet. So stopped peers, whose lanes are full for good, leave some
    /// places to each of the others.
    #[cold]
    pub(super) fn has_share(&self, lane: &RcLane) -> bool {
        !self.is_full()
            && (lane.queue.len() < self.tuning.sends.share || lane.queue.has_no_signaled())
    }

    /// Takes a bounce buffer for a packet of a lane, if the lane may have one now. Where they are
    /// scarce, that is within its share, or if it has no signaled request whose completion would
    /// make it look again.
    #[inline(never)]
    pub(super) fn take_bounce(&mut self, lane: &RcLane) -> Option<u32> {
        if self.bounces.are_scarce(lane.queue.len() + 1) && !self.has_bounce_share(lane) {
            return None;
        }
        self.bounces.take()
    }

    #[cold]
    fn has_bounce_share(&self, lane: &RcLane) -> bool {
        lane.queue.len() < self.bounces.share() || lane.queue.has_no_signaled()
    }

    /// The flags of a request: signaled if its completion is needed. Where many requests of all
    /// lanes are under way, the endpoint needs it: their places come back with completions.
    #[inline]
    pub(super) fn flags(&self, kind: &WqeKind) -> SendFlags {
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
    pub(super) fn stamp(lane: &mut RcLane) -> Result<Header, PostError> {
        lane.session.numbers.stamp().ok_or(PostError::LaneFull)
    }

    /// The one buffer of a message, if the application has registered it.
    #[inline]
    pub(super) fn described(&self, op: &SendOp, iov: Readable<'_>) -> Option<Registered> {
        let [buf] = *iov.list() else { return None };
        if self.tuning.send_entries < 2 {
            return None;
        }
        let region = (self.registrations).described(op.desc, buf, Access::empty())?;
        Some(Registered { buf, region })
    }

    /// Posts a packet behind those held back, and these with it; or holds it back, too. The packet
    /// is entered in any case: a lane that refuses one is given up, and all entered packets end
    /// with it.
    ///
    /// The entries refer to one of: inline data in a record or, if the packet may not be held back,
    /// anywhere; bounce buffers, which are kept until the request is over; memory that the
    /// application keeps until then.
    #[inline(always)]
    pub(super) fn post<const N: usize>(
        &mut self,
        lane: &mut RcLane,
        entries: [ibv_sge; N],
        flags: SendFlags,
        kind: WqeKind,
        packet: PacketBuffer,
        sequence: Option<u32>,
    ) -> Result<(), PostError> {
        let number = lane.queue.next_number();
        let (wr_id, signaled) = lane.next(flags.contains(SendFlags::SIGNALED));
        let flags = match signaled {
            true => flags | SendFlags::SIGNALED,
            false => flags,
        };
        self.chain.push(wr_id, flags, entries);
        lane.queue.enter(LaneWqe {
            number,
            sequence,
            kind,
            packet,
        });
        self.outstanding += 1;
        if self.more_follow {
            self.chain_of = lane.head.key.session();
            return Ok(());
        }
        self.post_chain(lane)
    }

    /// Rings the doorbell for the requests that were held back.
    #[inline(always)]
    pub(super) fn post_chain(&mut self, lane: &mut RcLane) -> Result<(), PostError> {
        // SAFETY: the memory of each request stays until it is over (`post`); records stay where
        // they are while one of theirs is in the chain (`make_way_for`).
        match unsafe { self.chain.post(&lane.qp) } {
            Ok(()) => Ok(()),
            Err((error, _)) => {
                tracing::warn!("posting to {} failed: {error}", **lane.qp);
                lane.refused = true;
                Err(PostError::Broken)
            }
        }
    }

    /// Posts a read or write behind the held-back requests; or holds it back, too, if `more`
    /// follow.
    #[inline]
    pub(super) fn post_chunk(
        &mut self,
        lane: &mut RcLane,
        request: &SendRequest<1>,
        kind: WqeKind,
        more: bool,
    ) -> Result<(), PostError> {
        self.chain.put(request);
        self.chain_of = lane.head.key.session();
        lane.queue.enter(entered(lane.queue.last_number(), kind));
        self.outstanding += 1;
        self.counters.sent.chunks += 1;
        self.counters.sent.chunks_under_way += 1;
        match more {
            true => Ok(()),
            false => self.post_chain(lane),
        }
    }

    /// Posts a request of a one-sided operation behind the held-back ones; or holds it back, too,
    /// if `more` follow.
    #[inline]
    pub(super) fn post_one_sided<const N: usize>(
        &mut self,
        lane: &mut RcLane,
        request: &SendRequest<N>,
        (one, packet): (OneSidedWqe, PacketBuffer),
        more: bool,
    ) -> Result<(), PostError> {
        self.chain.put(request);
        self.chain_of = lane.head.key.session();
        lane.queue.one_sided.push_back(one);
        lane.queue.enter(LaneWqe {
            packet,
            ..entered(lane.queue.last_number(), WqeKind::OneSided)
        });
        self.outstanding += 1;
        match more {
            true => Ok(()),
            false => self.post_chain(lane),
        }
    }

    /// Whether this number of requests can be held back for the same doorbell.
    pub(super) fn has_room_in_chain(&self, requests: usize) -> bool {
        self.chain.has_room(requests)
    }

    /// Posts a request without a packet behind the held-back ones.
    #[cold]
    pub(super) fn post_alone(
        &mut self,
        lane: &mut RcLane,
        request: &SendRequest<0>,
        kind: WqeKind,
    ) -> Result<(), PostError> {
        self.chain.put(request);
        lane.queue.enter(entered(lane.queue.last_number(), kind));
        self.outstanding += 1;
        self.post_chain(lane)
    }

    /// Enters a packet on a lane that has rejected an earlier one.
    pub(super) fn enter(
        &mut self,
        lane: &mut RcLane,
        kind: WqeKind,
        sequence: u32,
        place: PacketBuffer,
    ) {
        let number = lane.queue.next_number();
        let _ = lane.next(false);
        lane.queue.enter(LaneWqe {
            number,
            sequence: Some(sequence),
            kind,
            packet: place,
        });
        self.outstanding += 1;
    }

    /// Posts a packet that is in a bounce buffer, or starts there.
    #[inline]
    pub(super) fn bounced(
        &mut self,
        lane: &mut RcLane,
        kind: WqeKind,
        sequence: Option<u32>,
        place: PacketBuffer,
    ) -> Result<(), PostError> {
        let mut flags = self.flags(&kind);
        // Buffers come back with completions: some requests have to be signaled before all lanes
        // together have taken the last buffer.
        if self.bounces.are_few() {
            flags |= SendFlags::SIGNALED;
        }
        let of_slot = |slot, len| {
            let at = self.bounces.address(slot) as u64;
            entry(at, len as usize, self.bounces.lkey(slot))
        };
        match place {
            PacketBuffer::Split { slot, head, rest } => {
                // Its region was entered just now.
                let lkey = lane
                    .queue
                    .described
                    .back()
                    .map_or(0, |region| region.lkey());
                let rest = entry(rest.addr as u64, rest.len, lkey);
                let entries = [of_slot(slot, head), rest];
                self.post(lane, entries, flags, kind, place, sequence)
            }
            PacketBuffer::Bounce { slot, len } => {
                let entries = [of_slot(slot, len)];
                self.post(lane, entries, flags, kind, place, sequence)
            }
            PacketBuffer::Nowhere | PacketBuffer::Record(_) | PacketBuffer::Resume(_) => Ok(()),
        }
    }

    /// Posts a packet that travels in the work request.
    #[inline(always)]
    pub(super) fn inline(
        &mut self,
        lane: &mut RcLane,
        entry: ibv_sge,
        kind: WqeKind,
        sequence: Option<u32>,
        place: PacketBuffer,
    ) -> Result<(), PostError> {
        let flags = self.flags(&kind) | SendFlags::INLINE;
        self.post(lane, [entry], flags, kind, place, sequence)
    }

    /// Whether a control packet of up to `bytes` bytes can be posted to a lane now: inline, or from
    /// a bounce buffer where the device takes no such packet inline.
    #[inline]
    pub(super) fn has_place_for_control(&self, lane: &RcLane, bytes: usize) -> bool {
        bytes <= self.tuning.inline_bytes || self.may_take_bounce(lane)
    }

    #[cold]
    fn may_take_bounce(&self, lane: &RcLane) -> bool {
        let are_scarce = self.bounces.are_scarce(lane.queue.len() + 1);
        !self.bounces.is_empty() && (!are_scarce || self.has_bounce_share(lane))
    }

    /// Copies a packet to a bounce buffer.
    fn bounce(&mut self, bytes: &[u8]) -> Result<PacketBuffer, PostError> {
        let slot = self.bounces.take().ok_or(PostError::PoolExhausted)?;
        let at = self.bounces.address(slot);
        // SAFETY: a slot holds any packet, and is ours until its request is over.
        unsafe { at.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Ok(PacketBuffer::Bounce {
            slot,
            len: bytes.len() as u32,
        })
    }

    /// Posts a packet that returns credit. It has no number, and is never sent again.
    pub(super) fn credit(&mut self, lane: &mut RcLane) -> Result<(), PostError> {
        let mut bytes = [0; MAX_NOTICE_BYTES];
        let len = lane.session.numbers.stamp_credit().write_credit(&mut bytes);
        let bytes = &bytes[..len];
        if len <= self.tuning.inline_bytes {
            let flags = self.flags(&WqeKind::Control) | SendFlags::INLINE;
            let place = PacketBuffer::Nowhere;
            return self.post(
                lane,
                [inline_sge(bytes)],
                flags,
                WqeKind::Control,
                place,
                None,
            );
        }
        let place = self.bounce(bytes)?;
        self.bounced(lane, WqeKind::Control, None, place)
    }

    /// Posts a small numbered control packet. There is a place for it
    /// ([`has_place_for_control`](Self::has_place_for_control)).
    pub(super) fn control(
        &mut self,
        lane: &mut RcLane,
        bytes: &[u8],
        kind: WqeKind,
        header: Header,
    ) -> Result<(), PostError> {
        if bytes.len() > self.tuning.inline_bytes {
            let place = self.bounce(bytes)?;
            return self.bounced(lane, kind, Some(header.sequence), place);
        }
        let room = lane.queue.records.room(bytes.len());
        room.copy_from_slice(bytes);
        let entry = inline_sge(room);
        let place = PacketBuffer::Record(lane.queue.records.enter(bytes.len()));
        self.inline(lane, entry, kind, Some(header.sequence), place)
    }
}

#[inline]
pub(super) fn envelope(op: &SendOp) -> DataEnvelope {
    DataEnvelope {
        tag: match op.kind {
            MsgKind::Tagged | MsgKind::Remote(_) => Some(op.tag),
            MsgKind::Msg => None,
        },
        cq_data: op.flags.contains(Flags::REMOTE_CQ_DATA).then_some(op.data),
        part: match op.kind {
            MsgKind::Remote(part) => Some(part),
            _ => None,
        },
    }
}
