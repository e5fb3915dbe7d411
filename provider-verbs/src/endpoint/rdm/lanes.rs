//! Lanes as they come up, take their turns, break and go.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::peer::{Owner, PeerAv};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::handshake::{LaneUp, Reason};
use ferrofabric_protocol::rendezvous::{Chunk, TransferLimits};
use ferrofabric_protocol::session::{Session, Start};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::Predecessor;

use super::complete::entered;
use super::endings::Ending;
use super::lane_ends::{BROKEN, LOST_BY_PEER, evidence};
use super::{POLL, RdmTransport};
use crate::connect::{Carrier, ToEngine, ToService, native_addr};
use crate::origins::{first_request, session_origin};
use crate::post::{SendFlags, SendRequest, inline_sge};
use crate::qp::RcQp;
use crate::session::{AfterLane, Lane, LaneEnd, Link, SendQueue, SessionState, Turn, WqeKind};

impl RdmTransport {
    /// Takes what the service thread has to say.
    #[cold]
    pub(super) fn take_messages<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        while let Some(message) = self.service.message() {
            done += 1;
            match message {
                ToEngine::LaneUp { up, carrier } => self.lane_up(up, carrier, owner),
                ToEngine::MaySend(key) => {
                    if let Some(lane) = self.lanes.of(key.session()) {
                        lane.may_send = true;
                        lane.reconsider();
                        let peer = lane.peer;
                        self.is_heard(peer, owner);
                        self.list(key.session());
                    } else if let Some(lane) = self.ud.lanes.of(key.session()) {
                        lane.may_send = true;
                        let peer = lane.peer;
                        self.is_heard(peer, owner);
                        self.list(key.session());
                    } else {
                        self.resuming_may_send(key.session(), owner);
                    }
                }
                ToEngine::LaneDown { lane, peer, reason } => {
                    tracing::debug!("lane to {peer:?} is down: {reason:?}");
                    let end = evidence(reason);
                    match self.lanes.of(lane.session()) {
                        Some(_) => self.give_up(lane.session(), end),
                        // What has come on it may lie in the completion queue yet, and is to be
                        // taken first.
                        None => self.ending.push(Ending::Lane(lane.session(), end)),
                    }
                    if let Some(at) = self.peers.find(&peer) {
                        self.peers.at(at).falls_back |= reason == Reason::Recycled;
                        if let AfterLane::Closed { expected } = end.then {
                            self.peer_closed(at, (lane, expected), owner);
                        }
                    }
                }
                ToEngine::Probe => {
                    let now = self.ud.now();
                    self.look_at_use(now);
                    self.see_off(owner);
                    self.check_data_queue_pair();
                    self.probe_idle_lanes();
                    self.probe_resuming_lanes(owner);
                }
                ToEngine::NoRoom { peer, here } => self.no_room(peer, here),
                ToEngine::ConnectFailed { peer, reason } => {
                    if let Some(at) = self.peers.find(&peer) {
                        self.connect_failed(at, reason, owner);
                    }
                }
            }
        }
        done
    }

    /// A lane on which nothing is under way that would be told of would never learn that its peer
    /// has died: whoever waits for that peer would wait for ever. So each gets a packet that says
    /// nothing new: the peer's device acknowledges it as long as the queue pair exists, whatever
    /// its process does; when it is gone, the lane fails by retries exhausted.
    pub(super) fn probe_idle_lanes(&mut self) {
        let mut broken = Vec::new();
        for lane in self.lanes.iter_mut() {
            if lane.open && lane.queue.expects_no_word() && self.poster.probe(lane).is_err() {
                broken.push(lane.key.session());
            }
        }
        for session in broken {
            self.lane_broke(session);
        }
    }

    fn lane_up<O: Owner>(&mut self, up: LaneUp, carrier: Carrier, owner: &mut O) {
        let addr = native_addr(&up.peer, up.remote_shm_name)
            .map_or(FiAddr::NOTAVAIL, |name| owner.av().find(&name));
        let peer = self.peers.peer_of(up.peer, up.remote_shm_name, addr);
        if !up.may_send {
            self.peers.is_unheard(peer);
        }
        if up.resumes {
            return self.begin_resuming(peer, up, carrier, owner);
        }
        if let Some(session) = self.peers.at(peer).parked.take() {
            self.end_session(peer, *session, LOST_BY_PEER, owner);
        }
        let session = self.new_session(&up, Predecessor::default());
        self.enter(peer, &up, carrier, session);
    }

    /// A lane lives: its peer is to have its number. It may have been inserted since the lane came
    /// up, and insertions of such peers are not announced.
    #[cold]
    pub(super) fn is_heard<O: Owner>(&mut self, peer: u32, owner: &mut O) {
        let (key, is_known) = {
            let at = self.peers.at(peer);
            (at.key, at.addr.is_some())
        };
        let name = self.peers.name(peer).filter(|_| !is_known);
        if let Some(name) = name {
            let addr = owner.av().find(&name);
            self.peers.peer_of(key, name.shm.unwrap_or(0), addr);
        }
    }

    /// From here on the lane carries the session.
    pub(super) fn enter(
        &mut self,
        peer: u32,
        up: &LaneUp,
        carrier: Carrier,
        session: SessionState,
    ) {
        let now = self.ud.now();
        self.awaken(peer);
        self.watch_removed(peer);
        match carrier {
            Carrier::Rc(qp) => {
                self.policy.took(peer, now);
                let at = self.peers.at(peer);
                (at.falls_back, at.lost_rc) = (false, false);
                self.enter_lane(peer, up, qp, session);
            }
            Carrier::Ud(way) => {
                self.policy.down(peer, now);
                self.enter_ud_lane(peer, up, way, session);
            }
        }
    }

    /// A session that starts with a lane, at whose other end there is this one.
    pub(super) fn new_session(&mut self, up: &LaneUp, before: Predecessor) -> SessionState {
        let numbers = Session::begin_after(before, session_origin(), &start(up));
        self.grants.begin(up.local_quota_units);
        self.tell_grant();
        let tuning = &self.poster.tuning;
        let reads = TransferLimits {
            chunk_bytes: tuning.rendezvous.read_chunk,
            chunks: u32::from(tuning.rendezvous.reads_per_lane),
            chunks_per_message: tuning.rendezvous.reads_per_message,
            ..TransferLimits::default()
        };
        let writes = TransferLimits {
            chunk_bytes: tuning.rendezvous.write_chunk,
            chunks: tuning.rendezvous.writes_per_lane,
            chunks_per_message: tuning.rendezvous.writes_per_lane,
            ..reads
        };
        SessionState::new(numbers, &start(up), reads, writes)
    }

    fn enter_lane(&mut self, peer: u32, up: &LaneUp, qp: Arc<RcQp>, session: SessionState) {
        let depth = self.poster.tuning.sends.depth;
        let mut lane = Lane {
            qp,
            key: up.lane,
            peer,
            session,
            open: false,
            may_send: up.may_send,
            packet_bytes: self.poster.packet_bytes(&up.remote_limits),
            heard: false,
            queue: SendQueue::new(depth, first_request()),
            end: None,
            used: (0, 0),
            unflushed: false,
            refused: false,
            turn: Turn::default(),
        };
        lane.reconsider();
        self.peers.begin_lane(peer);
        self.lanes.insert(lane);
        self.peers.at(peer).link = Link::Up(up.lane.session());
        self.list(up.lane.session());
    }

    /// Posting has failed.
    #[cold]
    pub(super) fn lane_broke(&mut self, session: SessionId) {
        self.break_lane(session, BROKEN);
    }

    /// We have evidence that a lane is dead: gives it up, and has the service thread drop it.
    #[cold]
    pub(super) fn break_lane(&mut self, session: SessionId, end: LaneEnd) {
        if self.lanes.of(session).is_none() {
            return self.ud_lane_broke(session, end);
        }
        if let Some(lane) = self.lanes.of(session) {
            if lane.end.is_none() {
                let key = lane.key;
                self.service.request(ToService::LaneBroken(key));
                self.give_up(session, end);
            }
        }
    }

    /// Moves a lane's queue pair to error; what was posted is flushed, and once that is done the
    /// lane goes.
    pub(super) fn give_up(&mut self, session: SessionId, end: LaneEnd) {
        self.post_held_back();
        let Some(lane) = self.lanes.of(session) else {
            return;
        };
        if lane.end.is_some() {
            return;
        }
        let in_order = matches!(end.then, AfterLane::Change | AfterLane::Rest);
        self.poster.counters.lanes.failed += u64::from(!in_order);
        lane.end = Some(end);
        lane.reconsider();
        let peer = lane.peer;
        let moved = lane.qp.to_error();
        let (wr_id, _) = lane.next(true);
        let mut marker = SendRequest::send(wr_id, [inline_sge(&[])])
            .flags(SendFlags::SIGNALED | SendFlags::INLINE);
        // SAFETY: an empty inline message names no memory.
        let posted = unsafe { marker.post(&lane.qp) };
        let number = lane.queue.last_number();
        lane.queue.enter(entered(number, WqeKind::Marker));
        self.poster.outstanding += 1;
        let now = self.ud.now();
        self.policy.down(peer, now);
        if moved.is_err() || posted.is_err() || lane.refused {
            // Nothing will be flushed; the queue pair itself has to go.
            lane.unflushed = true;
        }
        self.list(session);
    }

    /// Everything that a dead lane had is flushed, and all that came on it was taken: the session
    /// leaves it.
    #[cold]
    pub(super) fn drained<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        let Some(mut lane) = self.lanes.remove(session) else {
            return;
        };
        let end = lane.end.unwrap_or(BROKEN);
        let waiting = std::mem::take(&mut lane.session.replay);
        let mut unsure = VecDeque::new();
        for wqe in lane.queue.take_all() {
            self.poster.outstanding -= 1;
            match wqe.kind {
                WqeKind::Read(chunk) => {
                    self.poster.counters.sent.chunks_under_way -= 1;
                    let Chunk {
                        transfer,
                        offset_bytes,
                        source,
                        ..
                    } = *chunk;
                    (lane.session.reads).on_lost(transfer, offset_bytes, source);
                }
                WqeKind::Write(chunk) => {
                    self.poster.counters.sent.chunks_under_way -= 1;
                    let Chunk {
                        transfer,
                        offset_bytes,
                        source,
                        ..
                    } = *chunk;
                    (lane.session.writes).on_lost(transfer, offset_bytes, source);
                }
                WqeKind::Marker => {}
                WqeKind::Message(_) | WqeKind::Done(_) | WqeKind::Notice => {
                    let slot = wqe.packet.slot();
                    let (records, described) = (&lane.queue.records, &mut lane.queue.described);
                    unsure.extend(self.poster.kept(records, described, wqe));
                    if let Some(slot) = slot {
                        self.poster.bounces.give(slot);
                    }
                }
            }
        }
        unsure.extend(waiting);
        lane.session.replay = unsure;
        lane.session.broken_by = (end.errno, end.why, end.status);
        let Lane {
            key,
            peer,
            session: state,
            qp,
            ..
        } = *lane;
        drop(qp);
        self.peers.end_lane(peer);
        self.go_on_stalled();
        self.session_left_lane(peer, key, state, end, owner);
    }

    #[inline]
    pub(super) fn list_if_busy(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.of(session) {
            if lane.is_busy() || !self.peers.at(lane.peer).pending.is_empty() {
                self.list(session);
            }
            return;
        }
        self.list_ud_lane(session);
    }

    /// Ends a lane of which nothing is flushed. What came there lies in the completion queue and
    /// goes with the queue pair; its sender was told that it arrived. So it is taken first.
    #[cold]
    fn drain_unflushed<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let mut done = 0;
        // So many looks take all that lies there now, whatever comes meanwhile on other lanes.
        for _ in 0..self.completions.polls_that_empty_it() {
            let polled = self.poll(owner);
            done += polled;
            if polled < POLL {
                break;
            }
        }
        self.drained(session, owner);
        done
    }

    /// Gives each listed lane a turn: what is to be sent again first, then notices, so that they
    /// never wait behind bulk data.
    pub(super) fn run_work<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        for _ in 0..self.turns.len() {
            let Some(session) = self.turns.next() else {
                break;
            };
            let Some(lane) = self.lanes.of(session) else {
                done += self.run_ud_lane(session, owner);
                continue;
            };
            lane.turn.begins();
            if lane.unflushed {
                // The queue pair is destroyed with the last that holds it: the service thread drops
                // its own.
                if Arc::strong_count(&lane.qp) == 1 {
                    done += self.drain_unflushed(session, owner);
                } else {
                    self.list(session);
                }
                continue;
            }
            if !lane.open {
                done += self.run_replay(session);
            }
            done += self.run_notices(session);
            done += self.run_reads(session);
            done += self.run_writes(session);
            done += self.run_pending(session, owner);
        }
        done
    }
}

/// What a lane brings for a session that begins with it.
pub(super) fn start(up: &LaneUp) -> Start {
    Start {
        name: up.name,
        remote: up.remote_session,
        peer_grants_units: up.remote_limits.quota_units,
        we_grant_units: up.local_quota_units,
    }
}
