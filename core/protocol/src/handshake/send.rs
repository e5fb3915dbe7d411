//! The packets that a [`Connector`] sends, and when it repeats them.

use super::super::table::Key;
use super::super::wire::control::{
    ControlBody, ControlPacket, Foreign, Keys, LaneName, RejectReason,
};
use super::super::{PeerKey, Time};
use super::peer::LanePhase;
use super::{Connector, HandshakeAction};
use std::time::Duration;

impl Connector {
    pub(super) fn send_hello(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let parameters = self.local_parameters(key);
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let (to, lane, tries, proof) = (peer.key, peer.name, peer.tries, peer.proof);
        let hurried = peer.life.has_wait_limit();
        self.send(
            to,
            lane,
            ControlBody::Hello {
                stamp_ns: now.0,
                parameters,
                proof,
            },
            out,
        );
        let mut wait = (self.rtt).backoff(self.rtt.timeout(), tries, &mut self.jitter);
        if hurried {
            wait = wait.min(self.config.intervals.max_limited_interval);
        }
        self.arm_attempt(key, now, wait);
    }

    pub(super) fn send_hello_ack(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let parameters = self.local_parameters(key);
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let (to, lane, tries, phase) = (peer.key, peer.name, peer.tries, peer.phase);
        self.send(
            to,
            lane,
            ControlBody::HelloAck {
                stamp_ns: peer.remote.stamp_ns,
                parameters,
            },
            out,
        );
        if phase == LanePhase::HalfOpen {
            // Later than the initiator would repeat its Hello: only a lost Ready is to be mended
            // from this side.
            let wait = self
                .rtt
                .backoff(self.rtt.timeout() * 3, tries, &mut self.jitter);
            self.arm_attempt(key, now, wait);
        }
    }

    pub(super) fn send_ready(&mut self, key: Key, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        if peer.key != self.me {
            self.send(peer.key, peer.name, ControlBody::Ready, out);
        }
    }

    pub(super) fn send_bye(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        let (to, lane, tries, close_ends) = (peer.key, peer.name, peer.tries, peer.since);
        let bye = ControlBody::Bye {
            expected: peer.engine.taken,
            ends: self.standing.closing,
            proof: peer.proof,
        };
        self.send(to, lane, bye, out);
        let wait = (self.rtt).backoff(self.rtt.timeout(), tries, &mut self.jitter);
        // The limits of silence and of a request may be in the past: they are not for a close.
        self.timers.set(key, Some(now + wait.min(close_ends - now)));
    }

    /// A packet of an attempt was sent; it is repeated after `wait`. If there is a limit to the
    /// peer's silence, the repeats in its second half count as keep-alives do, and come as often.
    fn arm_attempt(&mut self, key: Key, now: Time, wait: Duration) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let wait = match self.config.silence_limit(peer) {
            None => wait,
            Some(limit) => match (limit / 2).checked_sub(peer.life.silence(now)) {
                Some(rest) if !rest.is_zero() => wait.min(rest),
                _ => {
                    peer.life.count_unanswered();
                    wait.min(limit / 16)
                }
            },
        };
        self.arm(key, now, wait);
    }

    /// Sends a keep-alive to a silent peer, if there is a limit to its silence.
    pub(super) fn send_keep_alive(&mut self, key: Key, now: Time, out: &mut Vec<HandshakeAction>) {
        let Some(peer) = self.peers.get_mut(key) else {
            return;
        };
        let Some(limit) = self.config.silence_limit(peer) else {
            return;
        };
        if peer.life.silence(now) >= limit / 2 {
            peer.life.count_unanswered();
            let (to, name) = (peer.key, peer.name);
            self.send(to, name, ControlBody::KeepAlive { stamp_ns: now.0 }, out);
        }
        self.arm_keep_alive(key, now);
    }

    pub(super) fn arm_keep_alive(&mut self, key: Key, now: Time) {
        let Some(peer) = self.peers.get(key).filter(|peer| peer.key != self.me) else {
            return;
        };
        let Some(limit) = self.config.silence_limit(peer) else {
            return;
        };
        // Keep-alives to an idle peer are rare. After one without an answer they are frequent,
        // because any datagram may get lost.
        let wait = match peer.life.unanswered() {
            0 => peer.life.last_arrival() + limit / 2 - now,
            _ => limit / 16,
        };
        self.arm(key, now, wait);
    }

    /// Notifies the peer that the current lane has ended. One packet is enough, since the peer's
    /// next packet about the lane gets the same answer.
    pub(super) fn reject_ended_lane(&mut self, key: Key, out: &mut Vec<HandshakeAction>) {
        self.reject_attempt(key, RejectReason::NoSuchLane, out);
    }

    /// Refuses the attempt at hand.
    pub(super) fn reject_attempt(
        &mut self,
        key: Key,
        reason: RejectReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        let Some(peer) = self.peers.get(key) else {
            return;
        };
        if peer.key == self.me || peer.name.epoch == 0 {
            return;
        }
        let mut lane = peer.name;
        if reason == RejectReason::Busy {
            lane.responder_nonce = 0; // the initiator knows none
        }
        let to = peer.key;
        self.send_reject(self.me.incarnation, to, lane, reason, out);
    }

    /// Refuses a packet, without any state.
    pub(super) fn reject(
        &mut self,
        packet: &ControlPacket,
        reason: RejectReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        let lane = opposite(packet.lane);
        self.send_reject(packet.to_incarnation, packet.from, lane, reason, out);
    }

    /// Refuses a packet of another version.
    pub(super) fn reject_foreign(&mut self, packet: &Foreign, out: &mut Vec<HandshakeAction>) {
        let (lane, reason) = (opposite(packet.lane), RejectReason::Version);
        self.send_reject(packet.to_incarnation, packet.from, lane, reason, out);
    }

    /// Sends a Reject, which says of this endpoint no more than that it was meant by `incarnation`.
    fn send_reject(
        &mut self,
        incarnation: u64,
        to: PeerKey,
        lane: LaneName,
        reason: RejectReason,
        out: &mut Vec<HandshakeAction>,
    ) {
        self.counters.rejected += 1;
        let packet = ControlPacket {
            from: PeerKey {
                incarnation,
                ..self.me
            },
            to_incarnation: to.incarnation,
            lane,
            newest_epoch: 0,
            keys: Keys::default(),
            body: ControlBody::Reject { reason },
        };
        self.send_packet(to, &packet, out);
    }

    /// Answers a packet about the lane that it names.
    pub(super) fn answer_packet(
        &mut self,
        packet: &ControlPacket,
        body: ControlBody,
        out: &mut Vec<HandshakeAction>,
    ) {
        self.send(packet.from, opposite(packet.lane), body, out);
    }

    pub(super) fn send(
        &mut self,
        to: PeerKey,
        lane: LaneName,
        body: ControlBody,
        out: &mut Vec<HandshakeAction>,
    ) {
        let packet = ControlPacket {
            from: self.me,
            to_incarnation: to.incarnation,
            lane,
            newest_epoch: self.epoch,
            keys: self.config.keys,
            body,
        };
        self.send_packet(to, &packet, out);
    }

    fn send_packet(&mut self, to: PeerKey, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        self.counters.sent += 1;
        out.push(HandshakeAction::SendControl {
            to,
            bytes: packet.to_bytes(),
        });
    }
}

fn opposite(lane: LaneName) -> LaneName {
    LaneName {
        from_initiator: !lane.from_initiator,
        ..lane
    }
}
