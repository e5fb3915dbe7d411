//! The packets of the third party.

use ferrofabric_protocol::PeerKey;
use ferrofabric_protocol::wire::control::{
    BYE_FLAGS, CONTROL_BYTES, ControlBody, ControlPacket, FLAGS, FLAGS_AT, KIND_AT, KINDS, Keys,
    LANE_FLAGS, LANE_FLAGS_AT, LaneName, LaneParameters, REASON_AT, RejectReason, STAMP_AT,
    VERSION_AT,
};

use super::world::{World, key_of};
use crate::input::Input;

/// A third party, with all that it knows.
pub(super) struct Forger {
    keys: Keys,
    /// Numbers of answers to it.
    known: Vec<u64>,
}

/// Numbers that it keeps.
const MOST_KNOWN: usize = 64;

/// The choices of one packet of a kind, before which time stands still. Party `from` is its sender;
/// in all else it is as good as can be.
pub(super) fn choices(kind: u8, from: u8) -> Vec<u8> {
    let at = KINDS.iter().position(|&other| other == kind).unwrap_or(0);
    let mut bytes = vec![0; CHOICES];
    bytes[KIND_CHOICE] = at as u8;
    bytes[FROM_CHOICE] = from;
    bytes
}

/// Bytes of input for a packet without numbers of its own, and where some of them lie; the pause is
/// before.
const CHOICES: usize = 12;
const KIND_CHOICE: usize = 2;
const FROM_CHOICE: usize = 3;

impl Forger {
    pub(super) fn new(world: &World) -> Self {
        Self {
            keys: world.keys(),
            known: Vec::new(),
        }
    }

    /// Reads the answers that went to it.
    pub(super) fn learn(&mut self, answers: &[[u8; CONTROL_BYTES]]) {
        for answer in answers {
            let Ok(packet) = ControlPacket::parse(answer) else {
                continue;
            };
            let proof = match packet.body {
                ControlBody::Challenge { proof } => proof,
                _ => 0,
            };
            let lane = packet.lane;
            for number in [proof, lane.initiator_nonce, lane.responder_nonce] {
                if number != 0 && self.known.len() < MOST_KNOWN && !self.known.contains(&number) {
                    self.known.push(number);
                }
            }
        }
    }

    /// A packet, and which of the two it goes to.
    pub(super) fn packet(&mut self, input: &mut Input<'_>) -> (usize, [u8; CONTROL_BYTES]) {
        let victim = usize::from(input.byte()) % 2;
        let kind = input.of(KINDS);
        let mut packet = ControlPacket {
            from: self.sender(victim, input),
            to_incarnation: key_of(victim).incarnation,
            lane: LaneName {
                from_initiator: true,
                epoch: self.epoch(input),
                initiator_nonce: self.number(input).max(1),
                responder_nonce: self.number(input),
            },
            newest_epoch: self.epoch(input),
            keys: self.keys,
            body: ControlBody::Ready,
        };
        let (stamp_ns, proof) = (self.number(input), self.number(input));
        match input.byte() {
            1 => packet.to_incarnation = self.number(input),
            2 => packet.keys = Keys::default(),
            3 => packet.keys.q_key = packet.keys.q_key.map(|key| key ^ 1),
            _ => {}
        }
        let mut bytes = as_kind(kind, packet, stamp_ns, proof);
        self.change(&mut bytes, input);
        (victim, bytes)
    }

    /// The peer, the victim itself, the third party, or a successor of the peer.
    fn sender(&self, victim: usize, input: &mut Input<'_>) -> PeerKey {
        let peer = key_of(1 - victim);
        match input.byte() % 5 {
            0 => peer,
            1 => key_of(victim),
            2 | 3 => key_of(2),
            _ => PeerKey {
                incarnation: self.number(input),
                ..peer
            },
        }
    }

    fn epoch(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() % 4 {
            0 => 100,
            1 => u64::from(input.byte()),
            2 => u64::MAX,
            _ => input.number(),
        }
    }

    /// A number that it may know: one of an answer, or an invented one.
    fn number(&self, input: &mut Input<'_>) -> u64 {
        match input.byte() % 4 {
            0 => 0,
            1 => u64::from(input.byte()),
            2 => input.number(),
            _ => match self.known.is_empty() {
                true => 0,
                false => input.of(&self.known),
            },
        }
    }

    /// Flags, reasons and bytes as they come.
    fn change(&self, bytes: &mut [u8; CONTROL_BYTES], input: &mut Input<'_>) {
        let chosen = input.byte();
        if chosen & 1 != 0 {
            bytes[FLAGS_AT] ^= input.of(FLAGS);
        }
        if chosen & 2 != 0 {
            bytes[LANE_FLAGS_AT] ^= input.of(LANE_FLAGS);
        }
        if chosen & 4 != 0 {
            bytes[REASON_AT] = input.of(RejectReason::ALL) as u8;
        }
        if chosen & 8 != 0 {
            let flag = input.of(BYE_FLAGS).to_le_bytes();
            for (byte, flag) in bytes[STAMP_AT..].iter_mut().zip(flag) {
                *byte ^= flag;
            }
        }
        if chosen & 16 != 0 {
            bytes[VERSION_AT] ^= input.byte();
        }
        if chosen & 32 != 0 {
            let at = usize::from(input.byte()) % CONTROL_BYTES;
            bytes[at] = input.byte();
        }
    }
}

/// A sound packet of a kind, with the fields of `packet` for which that kind has room.
fn as_kind(kind: u8, mut packet: ControlPacket, stamp_ns: u64, proof: u64) -> [u8; CONTROL_BYTES] {
    let parameters = LaneParameters {
        qpn: 17,
        ..LaneParameters::default()
    };
    let reason = RejectReason::NoSuchLane;
    let (expected, ends) = (Some(0), true);
    let hello = ControlBody::Hello {
        stamp_ns,
        parameters,
        proof,
    };
    let hello_ack = ControlBody::HelloAck {
        stamp_ns,
        parameters,
    };
    let bye = ControlBody::Bye {
        expected,
        ends,
        proof,
    };
    let bodies = [
        hello,
        hello_ack,
        ControlBody::Ready,
        ControlBody::Reject { reason },
        bye,
        ControlBody::ByeAck,
        ControlBody::KeepAlive { stamp_ns },
        ControlBody::KeepAliveAck { stamp_ns },
        ControlBody::Challenge { proof },
        ControlBody::Drive,
    ];
    for body in bodies {
        packet.body = body;
        if packet.to_bytes()[KIND_AT] == kind {
            break;
        }
    }
    let lane = &mut packet.lane;
    match packet.body {
        ControlBody::Hello { .. } => lane.responder_nonce = 0,
        ControlBody::HelloAck { .. } => {
            lane.from_initiator = false;
            lane.responder_nonce = lane.responder_nonce.max(1);
        }
        ControlBody::Ready => lane.responder_nonce = lane.responder_nonce.max(1),
        ControlBody::Reject { .. } => (packet.newest_epoch, packet.keys) = (0, Keys::default()),
        _ => {}
    }
    packet.to_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::forgeries::world::Scene;

    /// A new kind is sent as it should be once somebody has written one above.
    #[test]
    fn each_kind_is_sent_as_it_should_be() {
        for &kind in KINDS {
            let mut forger = Forger::new(&World::of(Scene::Up));
            let choices = choices(kind, 0);
            let (_, packet) = forger.packet(&mut Input::new(&choices[1..]));
            assert_eq!(packet[KIND_AT], kind);
            assert!(
                ControlPacket::parse(&packet).is_ok(),
                "control packet {kind}"
            );
        }
    }
}
