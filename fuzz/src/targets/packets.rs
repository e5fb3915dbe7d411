//! Packets of the wire (`docs/wire-protocol.md`).

use ferrofabric_core::protocol::wire::control::{
    Body, Control, Foreign, Keys, LaneKind, LaneName, LaneParameters, Limits, RejectReason,
};
use ferrofabric_core::protocol::wire::data::{
    Envelope, FinStatus, Grant, Header, MAX_FIRST_HEADER_BYTES, MAX_HEADER_BYTES, MAX_NOTICE_BYTES,
    MAX_RTS_BYTES, Packet, Segment, readdress,
};
use ferrofabric_core::protocol::wire::datagram::{self, PREFIX_BYTES, Prefix};
use ferrofabric_core::protocol::wire::{SessionId, WireError};
use ferrofabric_core::protocol::{PLACE_BYTES, PeerKey};

use super::seed;
use crate::{Target, saw};

/// A packet on the UD queue pairs.
pub(super) const CONTROL: Target = Target {
    name: "control_packets",
    take: take_control,
    seeds: control_seeds,
    words: &[],
};

/// A packet on a lane.
pub(super) const DATA: Target = Target {
    name: "data_packets",
    take: take_data,
    seeds: data_seeds,
    words: &[],
};

/// A packet on the UD lane.
pub(super) const DATAGRAM: Target = Target {
    name: "datagram_packets",
    take: take_datagram,
    seeds: datagram_seeds,
    words: &[],
};

fn take_control(bytes: &[u8]) -> u64 {
    let foreign = Foreign::parse(bytes).is_some();
    match Control::parse(bytes) {
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
    match Packet::parse(bytes) {
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

fn look(header: &Header, packet: &Packet<'_>, bytes: &[u8]) -> u64 {
    let mut copy = bytes.to_vec();
    readdress(&mut copy, SessionId(!header.session.0));
    let (readdressed, _) = Packet::parse(&copy).expect("the same packet of another session");
    assert_eq!(readdressed.session, SessionId(!header.session.0));
    let segments = match packet {
        Packet::Rts { request, .. } => request.segments().count(),
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
        limits: Limits::default(),
        holds_session: true,
    };
    let stamp_ns = 7;
    let ready = LaneName {
        from_initiator: true,
        ..both
    };
    let reason = RejectReason::Busy;
    let named_incarnation = 8;
    [
        (
            "hello",
            initiator,
            Body::Hello {
                stamp_ns,
                parameters,
            },
        ),
        (
            "hello_ack",
            both,
            Body::HelloAck {
                stamp_ns,
                parameters,
            },
        ),
        ("ready", ready, Body::Ready),
        (
            "reject",
            both,
            Body::Reject {
                reason,
                named_incarnation,
            },
        ),
        (
            "bye",
            both,
            Body::Bye {
                expected: Some(9),
                ends: true,
            },
        ),
        ("bye_ack", both, Body::ByeAck),
        ("keep_alive", both, Body::KeepAlive { stamp_ns }),
        ("keep_alive_ack", both, Body::KeepAliveAck { stamp_ns }),
    ]
    .into_iter()
    .map(|(name, lane, body)| {
        let control = Control {
            from: PeerKey {
                place: [1; PLACE_BYTES],
                incarnation: 2,
            },
            to_incarnation: 3,
            lane,
            newest_epoch: 1,
            keys: Keys::default(),
            body,
        };
        seed(name, control.to_bytes())
    })
    .collect()
}

fn data_seeds() -> Vec<(String, Vec<u8>)> {
    let header = Header {
        session: SessionId(5),
        sequence: 9,
        credit: 3,
    };
    let envelope = Envelope {
        tag: Some(7),
        cq_data: Some(8),
    };
    let mut room = [0; MAX_HEADER_BYTES];
    let len = header.write_eager(&envelope, 4, &mut room);
    let eager = [&room[..len], b"text"].concat();
    let mut room = [0; MAX_NOTICE_BYTES];
    let mut all = vec![seed("eager", eager)];
    let mut notice = |name, len: usize, room: &[u8]| all.push(seed(name, &room[..len]));
    let len = header.write_done(4, &mut room);
    notice("done", len, &room);
    let len = header.write_resume(4, &mut room);
    notice("resume", len, &room);
    let len = header.write_credit(&mut room);
    notice("credit", len, &room);
    let len = header.write_ack(&mut room);
    notice("ack", len, &room);
    let grant = Grant {
        op: 1,
        receive: 2,
        address: 3,
        fit_bytes: 4,
        rkey: 5,
    };
    let len = header.write_cts(&grant, &mut room);
    notice("cts", len, &room);
    let len = header.write_fin(1, FinStatus::Cancelled, &mut room);
    notice("fin", len, &room);
    let part = Segment {
        address: 1,
        length_bytes: 2,
        rkey: 3,
    };
    let mut room = [0; MAX_RTS_BYTES];
    let len = header.write_rts(&envelope, 1, &[part; 3], &mut room);
    notice("rts", len.unwrap_or(0), &room);
    let len = header.write_offer(&Envelope::default(), 1, 1 << 20, &mut room);
    notice("offer", len, &room);
    let mut room = [0; MAX_FIRST_HEADER_BYTES + 4];
    let mut head = [0; MAX_FIRST_HEADER_BYTES];
    let len = header.write_first(&envelope, 100, 4, &mut head);
    room[..len].copy_from_slice(&head[..len]);
    notice("first", len + 4, &room);
    let mut head = [0; MAX_HEADER_BYTES];
    let len = header.write_part(4, 4, &mut head);
    room[..len].copy_from_slice(&head[..len]);
    notice("part", len + 4, &room);
    all
}

fn datagram_seeds() -> Vec<(String, Vec<u8>)> {
    let prefix = Prefix::default().to_bytes();
    data_seeds()
        .into_iter()
        .map(|(name, bytes)| (name, [&prefix[..], &bytes].concat()))
        .collect()
}
