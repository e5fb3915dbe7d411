//! The start, turns, failure and end of lanes.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::peer::{Owner, PeerAv};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_protocol::handshake::{LaneKey, LaneUp};
use ferrofabric_protocol::lanes::BROKEN;
use ferrofabric_protocol::rendezvous::Chunk;
use ferrofabric_protocol::wire::SessionId;

use super::complete::entered;
use super::{POLL, RdmTransport};
use crate::connect::{LaneCarrier, ToEngine, ToService, UdDestination, native_addr};
use crate::lane::{Lane, LaneHead, PacketBuffer, RcLane, SilentLane, WqeKind};
use crate::post::{SendFlags, SendRequest};

impl RdmTransport {
    /// Takes the messages of the service thread.
    #[cold]
    pub(super) fn take_messages<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        while let Some(message) = self.service.message() {
            done += 1;
            match message {
                ToEngine::LaneUp { up, carrier } => self.lane_up(up, carrier, owner),
                ToEngine::MaySend(key) => {
                    self.peer_came_up(key.session(), owner);
                    self.apply(owner, |life, view, _| life.peer_is_up(key.session(), view));
                }
                ToEngine::LaneDown { lane, peer, reason } => {
                    tracing::debug!("lane to {peer:?} is down: {reason:?}");
                    let at = self.peers.find(&peer);
                    self.apply(owner, |life, _, now| life.lane_down(lane, at, reason, now));
                }
                ToEngine::Probe => {
                    self.apply(owner, |life, view, now| {
                        life.look_at_use(view, now);
                        life.close_idle(view);
                    });
                    self.check_data_queue_pair();
                    self.probe_idle_lanes();
                    self.probe_resuming_lanes();
                }
                ToEngine::NoRoom { peer, here } => {
                    let at = peer.and_then(|peer| self.peers.find(&peer));
                    self.apply(owner, |life, view, now| life.no_room(at, here, view, now));
                }
                ToEngine::ConnectFailed { peer, reason } => {
                    if let Some(at) = self.peers.find(&peer) {
                        self.apply(owner, |life, _, now| life.connect_failed(at, reason, now));
                    }
                }
                ToEngine::LaneFailed(lane) => self.lane_broke(lane.session()),
                ToEngine::NewPath { lane, destination } => self.renew_path(lane, destination),
                ToEngine::Failed(why) => done += self.fail_for_good(why, owner),
            }
        }
        if let Some(end) = self.completions.end() {
            done += self.end_all(end, owner);
        }
        done
    }

    /// An idle lane has no signaled request, so a dead peer would go unnoticed and an operation
    /// that waits for that peer would never end. So each idle lane has its turn to be probed: the
    /// peer's device acknowledges a probe as long as the queue pair exists, whatever its process
    /// does. When the queue pair is gone, the lane fails by retries exhausted.
    fn probe_idle_lanes(&mut self) {
        let mut silent = self.silent_lanes();
        self.turns.of_probes.choose(&mut silent);
        self.probe_lanes(silent);
    }

    /// Probes each lane with requests whose completion only a later one reports.
    pub(super) fn probe_lanes_with_requests(&mut self) {
        let mut silent = self.silent_lanes();
        silent.retain(|lane| lane.has_requests);
        self.probe_lanes(silent);
    }

    /// In the room that there is for them; [`probe_lanes`](Self::probe_lanes) takes it back.
    fn silent_lanes(&mut self) -> Vec<SilentLane> {
        let is_silent = |lane: &&RcLane| lane.head.gate.is_open() && lane.queue.has_no_signaled();
        let silent = self
            .lanes
            .rc_lanes()
            .filter(is_silent)
            .map(|lane| SilentLane {
                session: lane.head.key.session(),
                has_requests: !lane.queue.is_empty(),
            });
        let mut room = std::mem::take(&mut self.turns.silent);
        room.extend(silent);
        room
    }

    fn probe_lanes(&mut self, mut lanes: Vec<SilentLane>) {
        for SilentLane { session, .. } in lanes.drain(..) {
            if let Some(lane) = self.lanes.rc(session) {
                if self.poster.probe(lane).is_err() {
                    self.lane_broke(session);
                }
            }
        }
        self.turns.silent = lanes;
    }

    fn lane_up<O: Owner>(&mut self, up: LaneUp, carrier: LaneCarrier, owner: &mut O) {
        let addr = native_addr(&up.peer, up.remote_shm_name)
            .map_or(FiAddr::NOTAVAIL, |name| owner.av().find(&name));
        let peer = self.peer_of(up.peer, up.remote_shm_name, addr);
        if !up.may_send {
            self.peers.is_unheard(peer);
        }
        self.peers.begin_lane(peer);
        self.begin_lane(peer, up, carrier);
        self.apply(owner, |life, view, now| life.lane_up(peer, &up, view, now));
    }

    /// The path of a UD lane has another address handle. Datagrams under way keep the old one.
    #[cold]
    fn renew_path(&mut self, lane: LaneKey, destination: UdDestination) {
        match self.lanes.of(lane.session()) {
            Some(Lane::Ud(lane)) => lane.route.destination = destination,
            Some(Lane::New(lane)) => lane.carrier = LaneCarrier::Ud(destination),
            Some(Lane::Rc(_)) | None => {}
        }
    }

    /// A packet has come on a lane: the peer's end is up, if the handshake has not said so.
    pub(super) fn packet_came<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        if let Some(key) = self.peer_came_up(session, owner) {
            self.service.request(ToService::LaneHeard(key));
        }
    }

    /// The peer's end of a lane is up. Returns the lane if that is new.
    #[cold]
    fn peer_came_up<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> Option<LaneKey> {
        let lane = self.lanes.of(session)?;
        if !lane.peer_came_up() {
            return None;
        }
        let &LaneHead { key, peer, .. } = lane.head();
        self.is_heard(peer, owner);
        self.list(session);
        Some(key)
    }

    /// Posting has failed, or the device reports an error of the lane.
    #[cold]
    pub(super) fn lane_broke(&mut self, session: SessionId) {
        self.break_lane(session, BROKEN);
    }

    /// Moves a lane's queue pair to error. Posted requests are flushed, and after that the session
    /// leaves the lane.
    pub(super) fn fail_lane(&mut self, session: SessionId, in_order: bool) {
        let last_receive_due = self.last_receive_deadline();
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        self.poster.counters.lanes.failed += u64::from(!in_order);
        lane.head.gate.end();
        self.receives.ends(lane.qp.number());
        let moved = lane.qp.to_error();
        let (wr_id, _) = lane.next(true);
        let mut marker = SendRequest::send(wr_id, []).flags(SendFlags::SIGNALED);
        // SAFETY: an empty message names no memory.
        let posted = unsafe { marker.post(&lane.qp) };
        let number = lane.queue.last_number();
        lane.queue.enter(entered(number, WqeKind::Marker));
        self.poster.outstanding += 1;
        if moved.is_err() || posted.is_err() || lane.refused {
            // No request will be flushed; the queue pair itself has to go.
            lane.unflushed = true;
            lane.last_receive_due = last_receive_due;
        }
        self.list(session);
    }

    /// All requests of a dead lane are flushed, and all packets that came on it were taken: the
    /// session leaves the lane.
    #[cold]
    pub(super) fn drained<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        let Some(lane) = self.lanes.rc(session) else {
            return;
        };
        let waiting = std::mem::take(&mut lane.session.resend_queue);
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
                WqeKind::OneSided => {
                    if let Some(slot) = wqe.packet.slot() {
                        self.poster.bounces.give(slot);
                    }
                }
                WqeKind::Message(_) | WqeKind::Done(_) | WqeKind::Control => {
                    if let PacketBuffer::Resume(slot) = wqe.packet {
                        self.resume_slots.give(slot);
                    }
                    let slot = wqe.packet.slot();
                    let (records, described) = (&lane.queue.records, &mut lane.queue.described);
                    unsure.extend(self.poster.replay_packet(records, described, wqe));
                    if let Some(slot) = slot {
                        self.poster.bounces.give(slot);
                    }
                }
            }
        }
        unsure.extend(waiting);
        lane.session.resend_queue = unsure;
        let key = lane.head.key;
        let lost = std::mem::take(&mut lane.queue.one_sided);
        self.end_lost_one_sided(lost, owner);
        self.apply(owner, |life, view, _| life.drained(key, view));
        self.list_stalled();
    }

    #[inline]
    pub(super) fn list_if_busy(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.rc(session) {
            if !lane.is_busy() && self.peers.at(lane.head.peer).pending.is_empty() {
                return;
            }
        }
        self.list(session);
    }

    /// Ends a lane without flushing its requests. Packets that came on it are in the completion
    /// queue and go with the queue pair; but the device has acknowledged them to their sender. So
    /// they are taken first.
    #[cold]
    fn drain_unflushed<O: Owner>(&mut self, session: SessionId, owner: &mut O) -> usize {
        let mut done = 0;
        // That many polls take everything that is in the queue now, whatever arrives meanwhile on
        // other lanes.
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

    /// The endpoint closes: destroys the queue pairs of all lanes, as many at a time as there are
    /// workers. The memory that their requests name goes after them.
    pub(super) fn end_queue_pairs(&mut self) {
        let mut named = Vec::new();
        for lane in std::mem::take(&mut self.lanes).into_lanes() {
            match lane {
                Lane::Rc(lane) => {
                    let RcLane {
                        qp, session, queue, ..
                    } = *lane;
                    self.service.verbs().destroy(qp);
                    named.push((session, queue));
                }
                Lane::New(lane) => {
                    if let LaneCarrier::Rc(qp) = lane.carrier {
                        self.service.verbs().destroy(qp);
                    }
                }
                Lane::Ud(_) => {}
            }
        }
        self.service.verbs().wait();
    }

    /// Gives each listed lane a turn: replayed packets first, then control messages, so that they
    /// never wait behind bulk data.
    pub(super) fn run_work<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        for _ in 0..self.turns.len() {
            let Some(session) = self.turns.next() else {
                break;
            };
            let Some(lane) = self.lanes.rc(session) else {
                done += self.run_ud_lane(session, owner);
                continue;
            };
            lane.turn.begins();
            if lane.unflushed {
                // The queue pair is destroyed with its last holder: the service thread drops its
                // own reference.
                let is_last = Arc::strong_count(&lane.qp) == 1;
                let has_receives_back = (self.receives.is_empty(lane.qp.number()))
                    .unwrap_or_else(|| lane.qp.has_reached_last_receive())
                    || self.ud.now() >= lane.last_receive_due;
                if is_last && has_receives_back {
                    done += self.drain_unflushed(session, owner);
                } else {
                    self.list(session);
                }
                continue;
            }
            if !lane.head.gate.is_open() {
                done += self.run_replay(session);
            }
            done += self.run_control_messages(session);
            done += self.run_reads(session);
            done += self.run_writes(session);
            done += self.run_pulled(session, owner);
            done += self.run_pending(session, owner);
        }
        done
    }
}
