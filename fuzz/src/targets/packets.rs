//! Packets of the wire (`docs/wire-protocol.md`).

use ferrofabric_contracts::addr::Address;
use ferrofabric_contracts::types::RemoteKind;
use ferrofabric_protocol::wire::control::{
    self, BYE_FLAGS, ControlBody, ControlPacket, FLAGS_AT, Foreign, KIND_AT, Keys, LANE_FLAGS,
    LANE_FLAGS_AT, LaneKind, LaneLimits, LaneName, LaneParameters, RejectReason, STAMP_AT,
};
use ferrofabric_protocol::wire::data::{
    self, DataEnvelope, DataPacket, FinStatus, Grant, Header, MAX_FIRST_HEADER_BYTES,
    MAX_HEADER_BYTES, MAX_NOTICE_BYTES, MAX_RTS_BYTES, MemorySegment, Predecessor, Resume,
    readdress,
};
use ferrofabric_protocol::wire::datagram::{self, DatagramPrefix, PREFIX_BYTES};
use ferrofabric_protocol::wire::sidr::{ANSWER_BYTES, QUESTION_BYTES, ServiceKind};
use ferrofabric_protocol::wire::{SessionId, WireError};
use ferrofabric_protocol::{PLACE_BYTES, PeerKey};

use super::{addresses, seed};
use crate::{FuzzTarget, saw};

/// A packet on the UD queue pairs.
pub(super) const CONTROL: FuzzTarget = FuzzTarget {
    name: "control_packets",
    take: take_control,
    seeds: control_seeds,
    words: &[],
};

/// A packet on a lane.
pub(super) const DATA: FuzzTarget = FuzzTarget {
    name: "data_packets",
    take: take_data,
    seeds: data_seeds,
    words: &[],
};

/// A packet on the UD lane.
pub(super) const DATAGRAM: FuzzTarget = FuzzTarget {
    name: "datagram_packets",
    take: take_datagram,
    seeds: datagram_seeds,
    words: &[],
};

/// Private data of the connection manager's questions and answers.
pub(super) const PRIVATE_DATA: FuzzTarget = FuzzTarget {
    name: "private_data",
    take: take_private_data,
    seeds: private_data_seeds,
    words: &[],
};

fn take_control(bytes: &[u8]) -> u64 {
    let foreign = Foreign::parse(bytes).is_some();
    match ControlPacket::parse(bytes) {
        Ok(control) => {
            assert_eq!(control.to_bytes(), *bytes);
            saw(std::mem::discriminant(&control.body))
        }
        Err(why) => saw((
            kind(why),
            foreign,
            bytes.len().checked_ilog2(),
            at(bytes, 5),
        )),
    }
}

fn take_data(bytes: &[u8]) -> u64 {
    match DataPacket::parse(bytes) {
        Ok((header, packet)) => look(&header, &packet, bytes),
        Err(why) => saw((kind(why), at(bytes, 0), at(bytes, 1))),
    }
}

fn take_datagram(bytes: &[u8]) -> u64 {
    match datagram::parse(bytes) {
        Ok((prefix, header, packet)) => {
            let again = prefix.to_bytes();
            assert_eq!(again, bytes[..PREFIX_BYTES]);
            let _ = prefix.ack.end();
            look(&header, &packet, &bytes[PREFIX_BYTES..])
        }
        Err(why) => saw((kind(why), at(bytes, 0), at(bytes, PREFIX_BYTES))),
    }
}

fn take_private_data(bytes: &[u8]) -> u64 {
    let asked = ServiceKind::parse_question(bytes);
    if let Ok(service) = asked {
        assert_eq!(service.question(), bytes[..QUESTION_BYTES]);
    }
    let answers: Vec<_> = ServiceKind::ALL
        .iter()
        .map(|service| {
            let answered = service.parse_answer(bytes);
            if let Ok(name) = answered {
                assert_eq!(asked, Ok(*service));
                assert_eq!(service.answer(&name), bytes[..ANSWER_BYTES]);
            }
            answered.map(|_| ()).map_err(kind)
        })
        .collect();
    saw((asked.map_err(kind), answers, at(bytes, 9)))
}

fn look(header: &Header, packet: &DataPacket<'_>, bytes: &[u8]) -> u64 {
    let mut copy = bytes.to_vec();
    readdress(&mut copy, SessionId(!header.session.0));
    let (readdressed, _) = DataPacket::parse(&copy).expect("the same packet of another session");
    assert_eq!(readdressed.session, SessionId(!header.session.0));
    let segments = match packet {
        DataPacket::Rts { request, .. } => request.segments().count(),
        _ => 0,
    };
    saw((
        std::mem::discriminant(packet),
        segments.min(4),
        packet.is_numbered(),
    ))
}

/// A byte that says much about what a packet is.
fn at(bytes: &[u8], at: usize) -> Option<u8> {
    bytes.get(at).map(|byte| (*byte).min(32))
}

fn kind(why: WireError) -> std::mem::Discriminant<WireError> {
    std::mem::discriminant(&why)
}

fn control_seeds() -> Vec<(String, Vec<u8>)> {
    let (initiator, both) = (
        LaneName {
            from_initiator: true,
            epoch: 1,
            initiator_nonce: 2,
            responder_nonce: 0,
        },
        LaneName {
            from_initiator: false,
            epoch: 1,
            initiator_nonce: 2,
            responder_nonce: 3,
        },
    );
    let parameters = LaneParameters {
        kind: LaneKind::Rc,
        qpn: 17,
        psn: 4,
        session: SessionId(5),
        shm_name: 6,
        limits: LaneLimits::default(),
        holds_session: true,
    };
    let stamp_ns = 7;
    let ready = LaneName {
        from_initiator: true,
        ..both
    };
    let proof = 8;
    let of_kinds = LaneKind::ALL.iter().map(|&kind| {
        let psn = if kind == LaneKind::Ud {
            0
        } else {
            parameters.psn
        };
        let parameters = LaneParameters {
            kind,
            psn,
            ..parameters
        };
        let name = format!("hello_{kind:?}").to_lowercase();
        let hello = ControlBody::Hello {
            stamp_ns,
            parameters,
            proof,
        };
        (name, initiator, hello)
    });
    let rejects = RejectReason::ALL.iter().map(|&reason| {
        let name = format!("reject_{}", reason as u8);
        (name, both, ControlBody::Reject { reason })
    });
    let others = [
        (
            "hello_ack",
            both,
            ControlBody::HelloAck {
                stamp_ns,
                parameters,
            },
        ),
        ("ready", ready, ControlBody::Ready),
        (
            "bye",
            both,
            ControlBody::Bye {
                expected: Some(9),
                ends: true,
                proof,
            },
        ),
        ("bye_ack", both, ControlBody::ByeAck),
        ("keep_alive", both, ControlBody::KeepAlive { stamp_ns }),
        (
            "keep_alive_ack",
            both,
            ControlBody::KeepAliveAck { stamp_ns },
        ),
        ("challenge", both, ControlBody::Challenge { proof }),
        ("drive", both, ControlBody::Drive),
    ]
    .map(|(name, lane, body)| (name.to_owned(), lane, body));
    let all = of_kinds.chain(rejects).chain(others);
    let mut all: Vec<_> = all
        .map(|(name, lane, body)| {
            let control = ControlPacket {
                from: PeerKey {
                    place: [1; PLACE_BYTES],
                    incarnation: 2,
                },
                to_incarnation: 3,
                lane,
                newest_epoch: u64::from(!matches!(body, ControlBody::Reject { .. })),
                keys: Keys::default(),
                body,
            };
            seed(&name, control.to_bytes())
        })
        .collect();
    // The other values of the fields, sound or not.
    let Some(some) = all.first().map(|(_, bytes)| bytes.clone()) else {
        return all;
    };
    let mut change = |what: &str, number: u64, at: usize, bytes: &[u8]| {
        let mut changed = some.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        all.push(seed(&format!("{what}_{number}"), changed));
    };
    for &kind in control::KINDS {
        change("kind", kind.into(), KIND_AT, &[kind]);
    }
    for &flag in control::FLAGS {
        change("flag", flag.into(), FLAGS_AT, &[flag]);
    }
    for &flag in LANE_FLAGS {
        change("lane_flag", flag.into(), LANE_FLAGS_AT, &[flag]);
    }
    for &flag in BYE_FLAGS {
        change("bye_flag", flag, STAMP_AT, &flag.to_le_bytes());
    }
    all
}

fn data_seeds() -> Vec<(String, Vec<u8>)> {
    let header = Header {
        session: SessionId(5),
        sequence: 9,
        credit: 3,
    };
    let envelope = DataEnvelope {
        tag: Some(7),
        cq_data: Some(8),
        part: None,
    };
    let mut room = [0; MAX_HEADER_BYTES];
    let len = header.write_eager(&envelope, 4, &mut room);
    let eager = [&room[..len], b"text"].concat();
    let mut room = [0; MAX_NOTICE_BYTES];
    let mut all = vec![seed("eager", eager)];
    let mut notice = |name: &str, len: usize, room: &[u8]| all.push(seed(name, &room[..len]));
    let len = header.write_done(4, &mut room);
    notice("done", len, &room);
    for never_begun in [false, true] {
        let before = Predecessor {
            name: 3,
            never_begun,
        };
        let len = header.write_resume(&Resume { name: 4, before }, &mut room);
        notice(&format!("resume_{never_begun}"), len, &room);
    }
    let len = header.write_credit(&mut room);
    notice("credit", len, &room);
    let len = header.write_ack(&mut room);
    notice("ack", len, &room);
    let len = header.write_envelope(&envelope, 1, 2, &mut room);
    notice("envelope", len, &room);
    let len = header.write_pull(1, 2, &mut room);
    notice("pull", len, &room);
    let len = header.write_unsent(1, &mut room);
    notice("unsent", len, &room);
    let grant = Grant {
        op: 1,
        receive: 2,
        address: 3,
        fit_bytes: 4,
        rkey: 5,
    };
    let len = header.write_cts(&grant, &mut room);
    notice("cts", len, &room);
    for &status in FinStatus::ALL {
        let len = header.write_fin(1, status, &mut room);
        notice(&format!("fin_{}", status as u32), len, &room);
    }
    let memory = MemorySegment {
        address: 1,
        length_bytes: 2,
        rkey: 3,
    };
    let mut room = [0; MAX_RTS_BYTES];
    let len = header.write_rts(&envelope, 1, &[memory; 3], &mut room);
    notice("rts", len.unwrap_or(0), &room);
    let len = header.write_offer(&DataEnvelope::default(), 1, 1 << 20, &mut room);
    notice("offer", len, &room);
    let len = header.write_pulled_rts(2, 1, &[memory; 3], &mut room);
    notice("pulled_rts", len.unwrap_or(0), &room);
    let len = header.write_pulled_offer(2, 1, 1 << 20, &mut room);
    notice("pulled_offer", len, &room);
    let mut room = [0; MAX_HEADER_BYTES + 4];
    let mut head = [0; MAX_HEADER_BYTES];
    let len = header.write_pulled(2, 4, &mut head);
    room[..len].copy_from_slice(&head[..len]);
    notice("pulled", len + 4, &room);
    let mut room = [0; MAX_FIRST_HEADER_BYTES + 4];
    let mut head = [0; MAX_FIRST_HEADER_BYTES];
    let len = header.write_first(&envelope, 100, 4, &mut head);
    room[..len].copy_from_slice(&head[..len]);
    notice("first", len + 4, &room);
    let mut head = [0; MAX_HEADER_BYTES];
    let len = header.write_fragment(4, 4, &mut head);
    room[..len].copy_from_slice(&head[..len]);
    notice("part", len + 4, &room);
    for &part in RemoteKind::ALL {
        let envelope = DataEnvelope {
            part: Some(part),
            ..envelope
        };
        let mut room = [0; MAX_HEADER_BYTES + 4];
        let mut head = [0; MAX_HEADER_BYTES];
        let len = header.write_eager(&envelope, 4, &mut head);
        room[..len].copy_from_slice(&head[..len]);
        notice(&format!("eager_{part:?}"), len + 4, &room);
        let mut room = [0; MAX_RTS_BYTES];
        let len = header.write_rts(&envelope, 1, &[memory], &mut room);
        notice(&format!("rts_{part:?}"), len.unwrap_or(0), &room);
    }
    // Each kind with each flag, sound or not.
    let flags: Vec<u8> = data::FLAGS.iter().copied().chain([0]).collect();
    for &kind in data::KINDS {
        let of_kind = |(_, bytes): &&(String, Vec<u8>)| bytes.first() == Some(&kind);
        let sound = all.iter().find(of_kind).map(|(_, bytes)| bytes.clone());
        for flags in &flags {
            let mut bytes = sound.clone().unwrap_or_else(|| vec![0; MAX_NOTICE_BYTES]);
            (bytes[0], bytes[1]) = (kind, *flags);
            all.push(seed(&format!("kind_{kind}_flags_{flags}"), bytes));
        }
    }
    all
}

fn datagram_seeds() -> Vec<(String, Vec<u8>)> {
    let prefix = DatagramPrefix::default().to_bytes();
    let mut all: Vec<_> = data_seeds()
        .into_iter()
        .map(|(name, bytes)| (name, [&prefix[..], &bytes].concat()))
        .collect();
    let some = all[0].1.clone();
    for &flag in datagram::FLAGS {
        let mut bytes = some.clone();
        bytes[1] = flag;
        all.push(seed(&format!("flag_{flag}"), bytes));
    }
    all
}

fn private_data_seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for &service in ServiceKind::ALL {
        let number = service as u8;
        all.push(seed(&format!("question_{number}"), service.question()));
        for (name, addr) in addresses::addresses() {
            if let Address::Native(addr) = addr {
                let answer = service.answer(&addr);
                all.push(seed(&format!("answer_{number}_{name}"), answer));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new kind is in the first inputs, by itself, and as it should be once somebody has written
    /// one above.
    #[test]
    fn the_first_inputs_have_each_kind_as_it_should_be() {
        for &kind in control::KINDS {
            let sound = |(_, bytes): &(String, Vec<u8>)| {
                bytes[KIND_AT] == kind && ControlPacket::parse(bytes).is_ok()
            };
            assert!(control_seeds().iter().any(sound), "control packet {kind}");
        }
        for &kind in data::KINDS {
            let sound = |(_, bytes): &(String, Vec<u8>)| {
                bytes[0] == kind && DataPacket::parse(bytes).is_ok()
            };
            assert!(data_seeds().iter().any(sound), "data packet {kind}");
        }
    }
}
