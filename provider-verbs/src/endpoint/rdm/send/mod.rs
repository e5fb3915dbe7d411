//! Sending: at once when the lane has room, else in line.

mod eager;
mod fragmentation;
mod rendezvous;
mod waiting;

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::{Flags, RECEIVER_LEVELS};
use ferrofabric_contracts::peer::{Owner, PeerSrx};
use ferrofabric_contracts::types::{FiAddr, MAX_REQUESTS, SendOp};
use ferrofabric_protocol::credit::SendAdmission;
use ferrofabric_protocol::envelopes::WaitingKind;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::{MAX_HEADER_BYTES, MAX_RTS_BYTES};

use super::RdmTransport;
use super::poster::{FragmentOutcome, PostError, Poster};
use crate::gather::Readable;
use crate::lane::RcLane;
use crate::session::Pending;

/// Room in the line of a peer for parts of one-sided operations that wait for no fence.
const ROOM_TO_PASS: usize = 64;

impl RdmTransport {
    #[cold]
    pub(super) fn add_route(&mut self, addr: FiAddr, name: &NativeAddr) -> Result<u32, OpError> {
        if name.verbs.is_none() {
            return Err(OpError::Failed(Errno::EHOSTUNREACH));
        }
        let peer = self.peers.route(addr, name);
        self.life.inserted(peer);
        Ok(peer)
    }

    #[inline(always)]
    pub(super) fn send_to(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        let peer = self.peers.at(at);
        if let Some(session) = peer.lane {
            if peer.pending.is_empty() {
                if self.poster.holds_back() {
                    self.make_way_for(session);
                }
                let Some(lane) = self.lanes.rc(session) else {
                    return self.send_datagrams(session, at, op, iov);
                };
                {
                    let fenced = op.flags.contains(Flags::FENCE) && lane.session.has_unfinished();
                    if lane.head.gate.is_open() && !fenced {
                        let more = op.flags.contains(Flags::MORE);
                        match self.poster.message(lane, op, iov, None, more) {
                            Ok(()) => return Ok(()),
                            Err(
                                PostError::LaneFull
                                | PostError::PoolExhausted
                                | PostError::RequestsFull,
                            ) => {}
                            Err(PostError::Refused(errno, _)) => {
                                return Err(OpError::Failed(errno));
                            }
                            Err(PostError::Broken) => {
                                self.lane_broke(session);
                                return Ok(());
                            }
                        }
                    }
                }
            }
        }
        self.post_held_back();
        self.enqueue_if_room(at, op, iov)
    }

    /// Puts a message in line, if there is room there.
    #[inline(never)]
    pub(super) fn enqueue_if_room(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        if self.completions.is_dead() {
            return Err(OpError::Failed(Errno::EIO));
        }
        // Messages that wait for a fence leave room to those that pass it.
        let waiting = self.poster.tuning.waiting_sends;
        let room = match op.kind.passes_fences() {
            true => waiting + ROOM_TO_PASS,
            false => waiting,
        };
        if self.peers.at(at).pending.len() >= room {
            return Err(OpError::Again);
        }
        self.enqueue(at, op, iov)
    }

    /// Posts the messages that were held back because more follow.
    #[inline]
    pub(super) fn post_held_back(&mut self) {
        self.poster.expect_more(false);
        if self.poster.holds_back() {
            self.post_chain();
        }
    }

    #[inline(never)]
    fn post_chain(&mut self) {
        let session = self.poster.chain_of();
        if let Some(lane) = self.lanes.rc(session) {
            if self.poster.post_chain(lane).is_err() {
                self.lane_broke(session);
            }
        }
    }

    /// Before a message for a lane: posts the held-back messages, unless the new one can go behind
    /// them.
    #[inline(never)]
    fn make_way_for(&mut self, session: SessionId) {
        let fits = self.poster.chain_of() == session && !self.poster.is_chain_full();
        let longest = MAX_RTS_BYTES.max(self.poster.tuning.inline_bytes);
        let stay = |lane: &mut RcLane| lane.queue.records.has_room(longest);
        if fits && self.lanes.rc(session).is_some_and(stay) {
            return;
        }
        self.post_held_back();
        if let Some(lane) = self.lanes.rc(session) {
            lane.queue.records.make_room(longest);
        }
    }

    /// Puts a message in line for its peer's lane, and requests the lane if there is none.
    #[cold]
    pub(super) fn enqueue(
        &mut self,
        at: u32,
        op: &SendOp,
        iov: Readable<'_>,
    ) -> Result<(), OpError> {
        if self.life.is_closed(at) {
            return Err(OpError::Failed(Errno::ESHUTDOWN));
        }
        let peer = self.peers.at(at);
        peer.pending.push(Pending::new(op, iov));
        match peer.lane {
            Some(session) => self.list(session),
            None => self.request_lane(at),
        }
        Ok(())
    }

    /// Sends a peer the refusals of its messages ([`PeerSrx::take_refusals`]), whatever waits for
    /// it.
    #[cold]
    pub(super) fn send_refusals<O: Owner>(&mut self, peer: u32, owner: &mut O) {
        // Requests, and queries.
        const MOST_ANSWERS: usize = 2 * MAX_REQUESTS;
        let mut refusals = owner.srx().take_refusals();
        if refusals.is_empty() {
            return;
        }
        let lane = self.peers.at(peer).lane;
        // The peer has envelopes of some.
        let state = lane.and_then(|session| self.lanes.session(session));
        let at_peer = state.map_or(0, |state| state.envelopes.count(WaitingKind::Answer));
        // The application's own sends, of which very many may wait, have another limit.
        let pending = self.peers.at(peer).pending.iter();
        let in_line = pending.filter(|waits| waits.waiting_kind() == WaitingKind::Answer);
        let waiting = at_peer + in_line.count();
        if waiting + refusals.len() > MOST_ANSWERS {
            // A peer may query beyond its requests, and can do without the answer.
            refusals.retain(|refusal| !refusal.kind.is_dispensable());
        }
        if let (Some(session), true) = (lane, waiting + refusals.len() > MOST_ANSWERS) {
            let why: Box<dyn std::error::Error> = "the peer takes no answers".into();
            return self.break_protocol(session, &*why);
        }
        for refusal in refusals {
            // SAFETY: there are no buffers.
            let none = unsafe { Readable::new(&[]) };
            // A peer that has closed its endpoint awaits nothing.
            let _ = self.enqueue(peer, &refusal, none);
        }
    }

    /// Posts the messages that wait for a lane, with few doorbells. Returns their number.
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
            let Some(lane) = self.lanes.rc(session) else {
                return done;
            };
            if !lane.head.gate.is_open() {
                return done;
            }
            let peer = self.peers.at(lane.head.peer);
            let Some(pending) = peer.pending.pop_front() else {
                return done;
            };
            let more = !peer.pending.is_empty();
            if pending.op.flags.contains(Flags::FENCE) && lane.session.has_unfinished() {
                // The message keeps its place until the last of those ends, which lists the lane.
                peer.pending.push_front(pending);
                return done;
            }
            let poster = &mut self.poster;
            let posted =
                pending.with_buffers(|op, iov, copy| poster.message(lane, op, iov, copy, more));
            let posted = match posted {
                Err(PostError::RequestsFull) => poster.envelope(lane, pending),
                Err(stop) => Err((stop, Some(pending))),
                Ok(()) => Ok(()),
            };
            match posted {
                Ok(()) => done += 1,
                Err((PostError::Broken, _) | (_, None)) => {
                    self.lane_broke(session);
                    return done;
                }
                Err((PostError::Refused(errno, why), Some(pending))) => {
                    owner.fail_send(&pending.done(), errno, 0, why);
                    done += 1;
                }
                Err((stop, Some(pending))) => {
                    peer.pending.push_front(pending);
                    if matches!(stop, PostError::PoolExhausted) {
                        self.stall(session);
                    }
                    return done;
                }
            }
        }
    }
}

impl Poster {
    /// Posts a message: eagerly if it is small and the peer has room for it, else as a request to
    /// send. `copy` is set if `iov` points to a copy of the message in this endpoint. If `more`
    /// messages follow, this one may be held back for them.
    #[inline(always)]
    fn message(
        &mut self,
        lane: &mut RcLane,
        op: &SendOp,
        iov: Readable<'_>,
        copy: Option<&[u8]>,
        more: bool,
    ) -> Result<(), PostError> {
        self.expect_more(more);
        if !lane.has_room() {
            return Err(PostError::LaneFull);
        }
        if self.is_scarce() && !self.has_share(lane) {
            return Err(PostError::PoolExhausted);
        }
        let len = iov.total_len();
        let eager_bytes = self
            .tuning
            .eager_bytes
            .min(lane.packet_bytes.saturating_sub(MAX_HEADER_BYTES));
        if len <= eager_bytes && !op.flags.intersects(RECEIVER_LEVELS) {
            let fits_inline = len + MAX_HEADER_BYTES <= self.tuning.inline_bytes;
            let slot = match fits_inline {
                true => None,
                false => Some(self.take_bounce(lane).ok_or(PostError::PoolExhausted)?),
            };
            if lane.session.numbers.send_credit.admit(len as u32) == SendAdmission::Eager {
                return self.eager(lane, op, iov, len, slot);
            }
            if let Some(slot) = slot {
                self.bounces.give(slot);
            }
        } else if len <= self.tuning.fragmented_bytes && !op.flags.intersects(RECEIVER_LEVELS) {
            if let FragmentOutcome::Posted = self.send_fragments(lane, op, iov, len)? {
                return Ok(());
            }
        }
        self.request(lane, op, iov, copy, None)
    }
}
