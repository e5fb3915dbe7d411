//! The packets that a [`Connector`] receives. Each is judged by what it names: sender, receiver and
//! lane.

use super::super::table::Key;
use super::super::wire::WireError;
use super::super::wire::control::{
    ControlBody, ControlPacket, Foreign, Keys, LaneKind, LaneName, LaneParameters, RejectReason,
};
use super::super::{PeerKey, Time};
use super::peer::{HandshakePeer, LanePhase};
use super::{Connector, EndReason, HandshakeAction};

/// The membership bit of a P_Key: limited and full members of a partition have the same key but for
/// it.
const P_KEY_MEMBERSHIP: u16 = 0x8000;

/// The contents of a Hello.
#[derive(Clone, Copy)]
struct ReceivedHello {
    stamp_ns: u64,
    parameters: LaneParameters,
    /// It is the peer's for sure.
    proven: bool,
}

/// A refusal by an endpoint of another version, as one of ours.
fn version_reject(foreign: &Foreign) -> ControlPacket {
    ControlPacket {
        from: foreign.from,
        to_incarnation: foreign.to_incarnation,
        lane: foreign.lane,
        newest_epoch: 0,
        keys: Keys::default(),
        body: ControlBody::Reject {
            reason: RejectReason::Version,
        },
    }
}

impl Connector {
    /// A datagram arrived on the UD queue pair: `bytes` without the 40 in front. A datagram that is
    /// not a control packet is counted and dropped.
    pub fn receive(&mut self, now: Time, bytes: &[u8], out: &mut Vec<HandshakeAction>) {
        match ControlPacket::parse(bytes) {
            Ok(packet) => self.on_packet(now, &packet, out),
            Err(WireError::Version(_)) => match Foreign::parse(bytes) {
                Some(foreign)
                    if !foreign.is_reject && foreign.to_incarnation == self.me.incarnation =>
                {
                    self.reject_foreign(&foreign, out);
                }
                Some(foreign) if foreign.is_reject => {
                    self.on_packet(now, &version_reject(&foreign), out);
                }
                _ => self.counters.malformed += 1,
            },
            Err(_) => self.counters.malformed += 1,
        }
        self.settle(now, out);
    }

    fn on_packet(&mut self, now: Time, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        if packet.from == self.me {
            self.counters.malformed += 1;
            return;
        }
        self.counters.received += 1;
        if let ControlBody::Reject { reason } = packet.body {
            self.on_reject(now, packet, reason, out);
            return;
        }
        if packet.to_incarnation != self.me.incarnation {
            self.reject(packet, RejectReason::StaleIncarnation, out);
            return;
        }
        if (packet.keys.p_key ^ self.config.keys.p_key) & !P_KEY_MEMBERSHIP != 0
            || packet.keys.q_key != self.config.keys.q_key
        {
            self.reject(packet, RejectReason::Keys, out);
            return;
        }
        match packet.body {
            ControlBody::Hello {
                stamp_ns,
                parameters,
                proof,
            } => {
                let hello = ReceivedHello {
                    stamp_ns,
                    parameters,
                    proven: self.proves(packet, proof),
                };
                self.on_hello(now, packet, hello, out);
            }
            ControlBody::HelloAck {
                stamp_ns,
                parameters,
            } => self.on_hello_ack(now, packet, stamp_ns, parameters, out),
            ControlBody::Ready => self.on_ready(now, packet, out),
            ControlBody::Bye {
                expected,
                ends,
                proof,
            } => {
                if ends && self.is_in_doubt(packet, proof) {
                    self.request_proof(packet, out);
                } else {
                    self.on_bye(now, packet, (expected, ends), out);
                }
            }
            ControlBody::ByeAck => self.on_bye_ack(now, packet, out),
            ControlBody::KeepAlive { stamp_ns } => self.on_keep_alive(now, packet, stamp_ns, out),
            ControlBody::KeepAliveAck { .. } => self.on_keep_alive_ack(now, packet),
            ControlBody::Challenge { proof } => self.on_challenge(now, packet, proof, out),
            ControlBody::Drive => self.on_drive(now, packet, out),
            ControlBody::Reject { .. } => {}
        }
    }

    fn on_hello(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        hello: ReceivedHello,
        out: &mut Vec<HandshakeAction>,
    ) {
        let unproven = self.is_established_with(&packet.from) && !hello.proven;
        let Some((key, peer)) = self
            .find(&packet.from)
            .and_then(|key| Some((key, self.peers.get_mut(key)?)))
        else {
            if self.standing.closing {
                self.reject(packet, RejectReason::ShuttingDown, out);
            } else if unproven {
                self.request_proof(packet, out);
            } else if !hello.proven && !self.admit_uninvited(now, out) {
                self.reject(packet, RejectReason::Busy, out);
            } else if let Some(key) = self.add(packet.from, now) {
                self.count_unless_proven(key, now, &hello);
                self.answer(key, packet, hello, now, out);
            }
            return;
        };
        if peer.is_attempt_of(packet) {
            // A repeat.
            peer.remote.stamp_ns = hello.stamp_ns;
            peer.life.mark_alive(now);
            match peer.phase {
                LanePhase::HalfOpen | LanePhase::Up => self.send_hello_ack(key, now, out),
                _ => self.counters.stale += 1,
            }
            return;
        }
        // An attempt for RC precedes one for UD; of two equal kinds the lower key's attempt wins.
        let our_attempt_wins = peer.phase == LanePhase::HelloSent
            && match (peer.own.kind, hello.parameters.kind) {
                (LaneKind::Rc, LaneKind::Ud) => true,
                (LaneKind::Ud, LaneKind::Rc) => false,
                _ => self.me < packet.from,
            };
        let is_older = !hello.proven && peer.answers_newer_than(packet.lane.epoch);
        if peer.remote.is_void(packet.lane.epoch) || our_attempt_wins || is_older {
            self.counters.stale += 1;
            return;
        }
        if unproven {
            if self.standing.closing {
                self.reject(packet, RejectReason::ShuttingDown, out);
            } else {
                self.request_proof(packet, out);
            }
            return;
        }
        match peer.phase {
            // Our own attempt has not gone out, or gives way: the queue pair serves the peer's.
            LanePhase::Queued | LanePhase::Making | LanePhase::Waiting | LanePhase::HelloSent => {}
            // The queue pair is not connected to anything yet.
            LanePhase::Answering => {}
            // The peer has begun anew: the earlier lane is gone at its end.
            LanePhase::Connecting | LanePhase::Joining | LanePhase::HalfOpen | LanePhase::Up => {
                self.drop_lane(key, EndReason::PeerReset, out);
            }
            LanePhase::Closing => {
                out.push(HandshakeAction::Closed { peer: packet.from });
                if self.standing.closing {
                    self.remove(key);
                    self.reject(packet, RejectReason::ShuttingDown, out);
                    return;
                }
            }
        }
        self.count_unless_proven(key, now, &hello);
        self.answer(key, packet, hello, now, out);
    }

    /// Counts a peer that nobody has requested among the half-open, where third parties may be.
    fn count_unless_proven(&mut self, key: Key, now: Time, hello: &ReceivedHello) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        if !peer.engine.requested && !peer.uninvited && !hello.proven {
            self.count_uninvited(key, now);
        }
    }

    /// Turns responder for the attempt in `packet`, with the unconnected queue pair that is there,
    /// if the lane is to be of that kind, or a new one.
    fn answer(
        &mut self,
        key: Key,
        packet: &ControlPacket,
        hello: ReceivedHello,
        now: Time,
        out: &mut Vec<HandshakeAction>,
    ) {
        self.leave_place(key);
        let remote = hello.parameters;
        if remote.kind == LaneKind::Ud && !self.config.datagrams {
            self.drop_lane(key, EndReason::PeerReset, out);
            return self.begin(key, LaneKind::Rc, None, now, out);
        }
        let responder_nonce = self.secrets.number();
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        peer.name = LaneName {
            from_initiator: false,
            epoch: packet.lane.epoch,
            initiator_nonce: packet.lane.initiator_nonce,
            responder_nonce,
        };
        peer.proven = hello.proven;
        if hello.proven {
            // This attempt itself is not void: should we fail to answer it, its repeat must get
            // another chance.
            peer.remote.make_void(packet.lane.epoch.saturating_sub(1));
        }
        peer.remote.parameters = remote;
        peer.remote.stamp_ns = hello.stamp_ns;
        peer.life.mark_alive(now);
        peer.tries = 0;
        self.timers.set(key, None);
        let (phase, fits) = (peer.phase, peer.own.kind == remote.kind);
        if peer.own.lane.is_some() && !fits {
            self.drop_lane(key, EndReason::PeerReset, out);
        }
        if hello.proven {
            self.use_up_challenge(&packet.from);
            self.invite(key);
        }
        match (phase, self.peers.get_mut(key)) {
            (LanePhase::Making | LanePhase::Answering, Some(peer)) if fits => {
                peer.phase = LanePhase::Answering
            }
            (LanePhase::HelloSent, _) if fits => self.join(key, LanePhase::Joining, out),
            _ => {
                if !self.make_lane(key, LanePhase::Answering, remote.kind, out) {
                    self.reject(packet, RejectReason::Busy, out);
                    self.wait_or_forget(key, now);
                }
            }
        }
    }

    fn on_hello_ack(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        stamp_ns: u64,
        remote: LaneParameters,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some((key, peer)) = self.find_sender(packet, |peer| peer.is_attempt_of(packet)) else {
            self.reject(packet, RejectReason::NoSuchLane, out);
            return;
        };
        match peer.phase {
            LanePhase::HelloSent => {
                peer.life.mark_alive(now);
                peer.remote.make_void(packet.newest_epoch);
                peer.name.responder_nonce = packet.lane.responder_nonce;
                peer.proven = true;
                peer.remote.parameters = remote;
                if stamp_ns <= now.0 {
                    self.rtt.sample(now - Time(stamp_ns));
                }
                self.leave_place(key);
                self.join(key, LanePhase::Connecting, out);
            }
            // Also if the responder made another lane of the same Hello: it will say that ours is
            // not there.
            LanePhase::Up => {
                peer.life.mark_alive(now);
                self.send_ready(key, out);
            }
            _ => self.counters.stale += 1,
        }
    }

    fn on_ready(&mut self, now: Time, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        let Some((key, peer)) = self.find_sender(packet, |peer| peer.is_named_by(packet)) else {
            self.reject(packet, RejectReason::NoSuchLane, out);
            return;
        };
        peer.life.mark_alive(now);
        match (peer.phase, peer.own.lane) {
            (LanePhase::HalfOpen, Some(lane)) => {
                out.push(HandshakeAction::MaySend { lane });
                self.up(key, now, out);
            }
            _ => self.counters.stale += 1,
        }
    }

    fn on_reject(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        reason: RejectReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        let is_for_us = packet.to_incarnation == self.me.incarnation;
        let found = self.find_sender(packet, |peer| is_for_us && peer.is_named_by(packet));
        let Some((key, peer)) = found else {
            self.counters.stale += 1;
            return;
        };
        peer.life.mark_alive(now);
        let failure = EndReason::of_reject(reason);
        match (peer.phase, reason) {
            (LanePhase::Closing, _) => self.closed(key, now, out),
            (LanePhase::HelloSent, RejectReason::Busy) => self.refused(key, now, out),
            (
                LanePhase::HelloSent,
                RejectReason::NoSuchLane | RejectReason::Recycled | RejectReason::Left,
            )
            | (_, RejectReason::Busy) => self.counters.stale += 1,
            (LanePhase::Up, _) => self.fail(key, failure, out),
            (_, RejectReason::NoSuchLane | RejectReason::Recycled | RejectReason::Left) => {
                self.drop_lane(key, failure, out);
                self.wait_or_forget(key, now);
            }
            (_, _) => self.fail(key, failure, out),
        }
    }

    /// Whether a Bye that ends all there is with its sender may be a third party's.
    fn is_in_doubt(&mut self, packet: &ControlPacket, proof: u64) -> bool {
        if !self.has_peer(&packet.from) || self.proves(packet, proof) {
            return false;
        }
        let is_of_session =
            (self.sessions.get(&packet.from)).is_some_and(|of| of.is_named_by(packet));
        let is_of_lane = self.find_sender(packet, |peer| {
            peer.is_named_by_bye(packet) && peer.is_surely_of_peer(packet)
        });
        !is_of_session && is_of_lane.is_none()
    }

    fn on_bye(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        (expected, ends): (Option<u32>, bool),
        out: &mut Vec<HandshakeAction>,
    ) {
        let found = self.find_sender(packet, |peer| ends || peer.is_named_by_bye(packet));
        let found = found.map(|(key, peer)| (key, peer.phase, peer.is_named_by_bye(packet)));
        self.answer_packet(packet, ControlBody::ByeAck, out);
        // The count of another lane may be of another session; only the lane that our session has
        // left is sure to be of ours.
        let has_left = (self.sessions.get(&packet.from)).is_some_and(|of| of.is_named_by(packet));
        let expected = expected.filter(|_| has_left || found.is_some_and(|(.., named)| named));
        let reason = EndReason::PeerClosed { expected };
        match found {
            None if ends => self.session_is_over(&packet.from, reason, out),
            None => self.counters.stale += 1,
            Some((key, ..)) if ends => {
                self.fail(key, reason, out);
                self.sessions.remove(&packet.from);
            }
            Some((key, LanePhase::Closing, _)) => self.closed(key, now, out),
            // We are the initiator of an attempt that the peer has closed; or the lane was up.
            Some((key, LanePhase::HelloSent | LanePhase::Connecting | LanePhase::Up, _)) => {
                self.fail(key, reason, out)
            }
            // The initiator gave up; our own attempt stays.
            Some((key, ..)) => {
                self.drop_lane(key, reason, out);
                self.wait_or_forget(key, now);
            }
        }
    }

    /// The session is over. The engine could otherwise request a lane to resume it, in vain.
    fn session_is_over(
        &mut self,
        peer: &PeerKey,
        reason: EndReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        match self.sessions.remove(peer) {
            Some(_) => out.push(HandshakeAction::ConnectFailed {
                peer: *peer,
                reason,
            }),
            None => self.counters.stale += 1,
        }
    }

    fn on_bye_ack(&mut self, now: Time, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        match self.find_sender(packet, |peer| {
            peer.phase == LanePhase::Closing && peer.is_named_by(packet)
        }) {
            Some((key, _)) => self.closed(key, now, out),
            None => self.counters.stale += 1,
        }
    }

    fn on_keep_alive(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        stamp_ns: u64,
        out: &mut Vec<HandshakeAction>,
    ) {
        match self.find_sender(packet, |peer| {
            peer.is_named_by(packet) && peer.phase != LanePhase::Closing
        }) {
            Some((_, peer)) => {
                peer.life.mark_alive(now);
                self.answer_packet(packet, ControlBody::KeepAliveAck { stamp_ns }, out);
            }
            None => self.reject(packet, RejectReason::NoSuchLane, out),
        }
    }

    fn on_keep_alive_ack(&mut self, now: Time, packet: &ControlPacket) {
        match self.find_sender(packet, |peer| peer.is_named_by(packet)) {
            Some((_, peer)) => peer.life.mark_alive(now),
            None => self.counters.stale += 1,
        }
    }

    fn on_drive(&mut self, now: Time, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        match self.find_sender(packet, |peer| {
            peer.is_named_by(packet) && peer.phase != LanePhase::Closing
        }) {
            Some((_, peer)) => {
                peer.life.mark_alive(now);
                out.push(HandshakeAction::Drive);
            }
            None => self.counters.stale += 1,
        }
    }

    /// The sender's state, if it passes `test`.
    pub(super) fn find_sender(
        &mut self,
        packet: &ControlPacket,
        test: impl FnOnce(&HandshakePeer) -> bool,
    ) -> Option<(Key, &mut HandshakePeer)> {
        let key = self.find(&packet.from)?;
        let peer = self.peers.get_mut(key)?;
        test(peer).then_some((key, peer))
    }
}
