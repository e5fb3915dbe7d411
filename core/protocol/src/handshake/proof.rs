//! Proofs that a Hello or a Bye is the peer's, where a third party in the peer's name could end
//! something.
//!
//! A proof is a number that only the two ends know: that of the last lane between them, or one that
//! a Challenge took to the peer's address. A third party sees neither. Addresses are no secret.

use super::super::wire::control::{ControlBody, ControlPacket};
use super::super::{PeerKey, Time};
use super::peer::{HandshakePeer, LanePhase};
use super::{Connector, HandshakeAction};

impl HandshakePeer {
    /// Whether the lane at hand, or the attempt, is surely the peer's.
    fn is_established(&self) -> bool {
        match self.phase {
            LanePhase::Connecting | LanePhase::Up | LanePhase::Closing => true,
            LanePhase::Answering | LanePhase::Joining | LanePhase::HalfOpen => self.proven,
            LanePhase::Queued | LanePhase::Making | LanePhase::Waiting | LanePhase::HelloSent => {
                false
            }
        }
    }

    /// Whether `proof` is of this state.
    fn knows(&self, proof: u64) -> bool {
        let of_lane = self.name.responder_nonce != 0 && proof == self.name.to_number();
        of_lane || proof == self.challenge
    }

    /// Whether `packet`, which is about the attempt at hand, has a nonce that the peer alone knows
    /// beside this end.
    pub(super) fn is_surely_of_peer(&self, packet: &ControlPacket) -> bool {
        let initiator_nonce_is_secret = self.name.from_initiator || self.proven;
        initiator_nonce_is_secret || packet.lane.responder_nonce == self.name.responder_nonce
    }
}

impl Connector {
    /// Whether there is something between the two that only the peer may end.
    pub(super) fn is_established_with(&self, peer: &PeerKey) -> bool {
        let has_session = (self.sessions.get(peer)).is_some_and(|carried| carried.proven);
        let state = self.find(peer).and_then(|key| self.peers.get(key));
        has_session || state.is_some_and(HandshakePeer::is_established)
    }

    /// Whether `packet` proves with `proof` that it is the peer's.
    pub(super) fn proves(&self, packet: &ControlPacket, proof: u64) -> bool {
        if proof == 0 {
            return false;
        }
        let by_session = self
            .sessions
            .get(&packet.from)
            .is_some_and(|carried| proof == carried.name.to_number() || proof == carried.challenge);
        let state = self.find(&packet.from).and_then(|key| self.peers.get(key));
        by_session || state.is_some_and(|peer| peer.knows(proof))
    }

    /// A Challenge proves one packet.
    pub(super) fn use_up_challenge(&mut self, peer: &PeerKey) {
        if let Some(state) = self.find(peer).and_then(|key| self.peers.get_mut(key)) {
            state.challenge = 0;
        }
        if let Some(carried) = self.sessions.get_mut(peer) {
            carried.challenge = 0;
        }
    }

    /// Requests a proof from the endpoint that `packet` names as its sender. All packets that prove
    /// nothing get the same one, so that a third party cannot make it void.
    pub(super) fn request_proof(&mut self, packet: &ControlPacket, out: &mut Vec<HandshakeAction>) {
        let state = self
            .find(&packet.from)
            .and_then(|key| self.peers.get_mut(key));
        let challenge = match state {
            Some(peer) => &mut peer.challenge,
            None => match self.sessions.get_mut(&packet.from) {
                Some(carried) => &mut carried.challenge,
                None => return,
            },
        };
        if *challenge == 0 {
            *challenge = self.secrets.number();
        }
        let proof = *challenge;
        self.counters.challenged += 1;
        self.answer_packet(packet, ControlBody::Challenge { proof }, out);
    }

    /// The peer requests a proof: the Hello or Bye goes out again.
    pub(super) fn on_challenge(
        &mut self,
        now: Time,
        packet: &ControlPacket,
        proof: u64,
        out: &mut Vec<HandshakeAction>,
    ) {
        let found = self.find_sender(packet, |peer| {
            peer.is_named_by(packet) && peer.proof != proof
        });
        let Some((key, peer)) = found else {
            self.counters.stale += 1;
            return;
        };
        match peer.phase {
            LanePhase::HelloSent => {
                peer.proof = proof;
                peer.life.mark_alive(now);
                self.send_hello(key, now, out);
            }
            LanePhase::Closing => {
                peer.proof = proof;
                self.send_bye(key, now, out);
            }
            _ => self.counters.stale += 1,
        }
    }
}
