//! The steps of a lane's life, as a [`Connector`] takes them.

use super::super::table::Key;
use super::super::wire::control::{LaneKind, RejectReason};
use super::super::{Time, give_back_room};
use super::peer::{Carried, LanePhase, proof_of};
use super::{Connector, EndReason, HandshakeAction, LaneError, LaneKey, LaneUp, connect_lane};
use std::time::Duration;

/// Tries after which an unanswered attempt leaves its place to others.
const PLACE_TRIES: u32 = 3;

impl Connector {
    pub(super) fn wake(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let is_counted = !self.standing.link_down;
        let silent = is_counted && self.config.silent_at(peer).is_some_and(|at| at <= now);
        let given_up = is_counted && peer.life.wait_ends_at().is_some_and(|at| at <= now);
        match peer.phase {
            LanePhase::HelloSent | LanePhase::HalfOpen | LanePhase::Up if silent => {
                self.reject_ended_lane(key, out);
                self.fail(key, EndReason::Timeout, out);
            }
            LanePhase::HelloSent | LanePhase::HalfOpen | LanePhase::Waiting if given_up => {
                self.reject_ended_lane(key, out);
                self.fail(key, EndReason::Timeout, out);
            }
            LanePhase::HelloSent => {
                peer.tries += 1;
                if peer.tries >= PLACE_TRIES {
                    self.leave_place(key);
                }
                self.counters.resent += 1;
                self.send_hello(key, now, out);
            }
            LanePhase::HalfOpen => {
                peer.tries += 1;
                self.counters.resent += 1;
                self.send_hello_ack(key, now, out);
            }
            LanePhase::Waiting => self.initiate(key, now, out),
            LanePhase::Up => self.send_keep_alive(key, now, out),
            LanePhase::Closing if now >= peer.since => self.closed(key, now, out),
            LanePhase::Closing => {
                peer.tries += 1;
                self.counters.resent += 1;
                self.send_bye(key, now, out);
            }
            LanePhase::Queued
            | LanePhase::Making
            | LanePhase::Connecting
            | LanePhase::Answering
            | LanePhase::Joining => {}
        }
    }

    /// Begins an attempt of ours, or gets in line for it.
    pub(super) fn initiate(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.engine.requested = true;
        peer.forget_attempt();
        if !peer.has_place {
            if !self.initiators.take_place() {
                peer.phase = LanePhase::Queued;
                self.initiators.line_up(key);
                return;
            }
            peer.has_place = true;
        }
        let kind = peer.engine.requested_kind;
        if !self.make_lane(key, LanePhase::Making, kind, out) {
            self.wait(key, now);
        }
    }

    /// Requests a queue pair from the owner; `false` if there are too many lanes.
    pub(super) fn make_lane(
        &mut self,
        key: Key,
        phase: LanePhase,
        kind: LaneKind,
        out: &mut Vec<HandshakeAction>,
    ) -> bool {
        let Some(peer) = self.peers.get_mut(key) else {
            return false;
        };
        let Ok(lane) = self.lanes.insert(key).map(LaneKey) else {
            return false;
        };
        peer.own.lane = Some(lane);
        peer.own.kind = kind;
        peer.own.holds_session = self.sessions.contains_key(&peer.key);
        peer.phase = phase;
        self.timers.set(key, None);
        out.push(HandshakeAction::MakeLane {
            lane,
            peer: peer.key,
            kind,
        });
        true
    }

    /// Requests that the owner connects the queue pair.
    pub(super) fn join(&mut self, key: Key, phase: LanePhase, out: &mut Vec<HandshakeAction>) {
        let local = self.local_parameters(key);
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let Some(lane) = peer.own.lane else { return };
        peer.phase = phase;
        self.timers.set(key, None);
        out.push(connect_lane(
            lane,
            peer.key,
            &local,
            &peer.remote.parameters,
        ));
    }

    /// A lane to this endpoint itself: one queue pair is both ends.
    pub(super) fn use_own_parameters(&mut self, key: Key) {
        let local = self.local_parameters(key);
        if let Some(peer) = self.peers.get_mut(key) {
            peer.remote.parameters = local;
        }
    }

    pub(super) fn report_lane_up(
        &mut self,
        key: Key,
        may_send: bool,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let Some(lane) = peer.own.lane else { return };
        peer.engine.reported_up = true;
        let carried = Carried {
            lane,
            name: peer.name,
            proven: peer.proven,
            challenge: 0,
        };
        self.sessions.insert(peer.key, carried);
        out.push(HandshakeAction::LaneUp(LaneUp {
            lane,
            kind: peer.own.kind,
            remote_qpn: peer.remote.parameters.qpn,
            peer: peer.key,
            remote_session: peer.remote.parameters.session,
            name: peer.name.to_number(),
            resumes: peer.own.holds_session || peer.remote.parameters.holds_session,
            remote_shm_name: peer.remote.parameters.shm_name,
            remote_limits: peer.remote.parameters.limits,
            local_quota_units: peer.own.granted_units,
            may_send,
        }));
    }

    /// Both ends can send. The peer has proven to live: an earlier incarnation at its place does
    /// not.
    pub(super) fn up(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        self.leave_place(key);
        self.invite(key);
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.phase = LanePhase::Up;
        peer.proven = true;
        if let Some(carried) = self.sessions.get_mut(&peer.key) {
            carried.proven |= peer.own.lane == Some(carried.lane);
        }
        peer.engine.requested = false;
        (peer.tries, peer.engine.refusals) = (0, 0);
        peer.life.mark_alive(now);
        peer.life.clear_wait_limit();
        self.timers.set(key, None);
        self.counters.lanes_up += 1;
        self.arm_keep_alive(key, now);
        while let Some(other) = self.predecessor(key) {
            self.fail(other, EndReason::PeerRestarted, out);
        }
    }

    /// Limits the engine's wait for the lane that it requested.
    pub(super) fn set_wait_limit(&mut self, key: Key, now: Time, wait_limit: Option<Duration>) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.life.set_wait_limit(now, wait_limit);
        }
    }

    /// An attempt ended for a reason that may pass: begin anew after a while.
    pub(super) fn wait(&mut self, key: Key, now: Time) {
        self.leave_place(key);
        self.invite(key);
        let base = self.config.intervals.busy_interval;
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.phase = LanePhase::Waiting;
        peer.forget_attempt();
        let wait = self.rtt.backoff(base, peer.tries, &mut self.jitter);
        peer.tries = peer.tries.saturating_add(1);
        // Nothing is requested of the peer meanwhile: its silence must not end the engine's wait.
        let wait = peer
            .life
            .wait_limit()
            .map_or(wait, |limit| wait.min(limit / 2));
        let again = now + wait;
        let until = (peer.life.wait_ends_at()).filter(|_| !self.standing.link_down);
        let at = until.map_or(again, |until| again.min(until));
        self.timers.set(key, Some(at));
    }

    /// The peer has no room for the lane that this side has begun. This side's queue pair goes
    /// until the next try: endpoints that keep one each while they wait for the others' wait for
    /// ever when the device, or a circle of devices, has no other left.
    pub(super) fn refused(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        if peer.own.kind == LaneKind::Rc {
            let (peer, here) = (peer.key, false);
            out.push(HandshakeAction::NoRoom { peer, here });
        }
        self.drop_lane(key, EndReason::PeerReset, out);
        self.wait_for_room(key, now);
    }

    /// An attempt ended for want of room, here or at the peer: as [`Connector::wait`]. The wait
    /// doubles until a lane is up, whoever begins the attempts: those that are in each other's way
    /// draw apart.
    fn wait_for_room(&mut self, key: Key, now: Time) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.tries = peer.tries.max(peer.engine.refusals);
            peer.engine.refusals = peer.engine.refusals.saturating_add(1);
        }
        self.wait(key, now);
    }

    /// The lane is gone, the peer lives: starts the lane that the engine still needs, or forgets
    /// the peer.
    pub(super) fn wait_or_forget(&mut self, key: Key, now: Time) {
        match self.peers.get(key) {
            Some(peer) if peer.engine.requested => self.wait(key, now),
            _ => self.remove(key),
        }
    }

    /// A lane could not be made or connected in `phase`; it is dropped already.
    pub(super) fn lane_failed(
        &mut self,
        key: Key,
        phase: LanePhase,
        error: LaneError,
        now: Time,
        out: &mut Vec<HandshakeAction>,
    ) {
        match phase {
            LanePhase::Connecting => self.reject_ended_lane(key, out),
            LanePhase::Answering | LanePhase::Joining => {
                self.reject_attempt(key, RejectReason::Busy, out)
            }
            _ => {}
        }
        match error {
            LaneError::NoResources => {
                if let Some(peer) = self.peers.get_mut(key) {
                    // No keep-alive was sent, so silence means nothing.
                    peer.life.mark_alive(now);
                    if peer.own.kind == LaneKind::Rc {
                        let (peer, here) = (peer.key, true);
                        out.push(HandshakeAction::NoRoom { peer, here });
                    }
                }
                match self.peers.get(key) {
                    Some(peer) if peer.engine.requested => self.wait_for_room(key, now),
                    _ => self.remove(key),
                }
            }
            LaneError::Fatal(errno) => self.fail(key, EndReason::Local(errno), out),
        }
    }

    /// Ends everything with a peer: its lane, and the engine's request.
    pub(super) fn fail(&mut self, key: Key, reason: EndReason, out: &mut Vec<HandshakeAction>) {
        self.drop_lane(key, reason, out);
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let peer_key = peer.key;
        if peer.phase == LanePhase::Closing {
            out.push(HandshakeAction::Closed { peer: peer_key });
        }
        if peer.engine.requested {
            // The engine's session, if it has one without a lane, ends with that.
            self.sessions.remove(&peer_key);
            out.push(HandshakeAction::ConnectFailed {
                peer: peer_key,
                reason,
            });
        }
        self.remove(key);
    }

    /// Releases the lane, if there is one.
    pub(super) fn drop_lane(
        &mut self,
        key: Key,
        reason: EndReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        self.timers.set(key, None);
        let Some(lane) = peer.own.lane.take() else {
            return;
        };
        if std::mem::take(&mut peer.engine.reported_up) {
            out.push(HandshakeAction::LaneDown {
                lane,
                peer: peer.key,
                reason,
            });
        }
        self.lanes.remove(lane.0);
        out.push(HandshakeAction::ReleaseLane { lane });
    }

    pub(super) fn close_key(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.engine.requested = false;
        peer.engine.reported_up = false; // the engine itself closed it
        let (phase, peer_key) = (peer.phase, peer.key);
        // A peer that holds a session waits for our Bye, also without a lane.
        let waits = self.standing.closing && self.sessions.contains_key(&peer_key);
        match phase {
            LanePhase::Closing => {}
            LanePhase::Queued | LanePhase::Making | LanePhase::Waiting if !waits => {
                self.drop_lane(key, EndReason::ShuttingDown, out);
                self.remove(key);
                out.push(HandshakeAction::Closed { peer: peer_key });
            }
            _ if peer_key == self.me => {
                self.drop_lane(key, EndReason::ShuttingDown, out);
                self.remove(key);
                out.push(HandshakeAction::Closed { peer: peer_key });
            }
            _ => {
                self.drop_lane(key, EndReason::ShuttingDown, out);
                self.leave_place(key);
                self.invite(key);
                let Some(peer) = self.peers.get_mut(key) else {
                    return;
                };
                if peer.name.initiator_nonce == 0 {
                    if let Some(carried) = self.sessions.get(&peer_key) {
                        // No other name proves that the count is of the peer's session.
                        peer.name = carried.name;
                    } else {
                        // There is no lane to name, and the peer's answer has to name one.
                        self.epoch += 1;
                        peer.name.epoch = self.epoch;
                        peer.name.initiator_nonce = self.secrets.number();
                    }
                }
                peer.proof = proof_of(&self.sessions, &peer_key);
                peer.phase = LanePhase::Closing;
                peer.since = now + self.config.intervals.close_timeout;
                peer.tries = 0;
                self.send_bye(key, now, out);
            }
        }
    }

    /// A close has come to its end. If the engine has requested the peer again meanwhile, it begins
    /// anew.
    pub(super) fn closed(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        out.push(HandshakeAction::Closed { peer: peer.key });
        peer.tries = 0;
        if peer.engine.requested {
            self.initiate(key, now, out);
        } else {
            self.remove(key);
        }
    }

    /// Gives free places to those in line.
    pub(super) fn settle(&mut self, now: Time, out: &mut Vec<HandshakeAction>) {
        give_back_room(&mut self.by_place);
        give_back_room(&mut self.sessions);
        while self.initiators.has_room() {
            let Some(key) = self.initiators.next_in_line() else {
                return;
            };
            if self
                .peers
                .get(key)
                .is_some_and(|peer| peer.phase == LanePhase::Queued)
            {
                self.initiate(key, now, out);
            }
        }
    }
}
