//! Control packets: round trips, hostile bytes.

use super::*;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn key() -> impl Strategy<Value = PeerKey> {
    (any::<[u8; 32]>(), any::<u64>()).prop_map(|(half, incarnation)| {
        let mut place = [0; PLACE_BYTES];
        place[..32].copy_from_slice(&half);
        PeerKey { place, incarnation }
    })
}

/// Some of the flags, or any bits.
fn any_of(flags: &'static [u8]) -> impl Strategy<Value = u8> {
    let some = subsequence(flags, 0..=flags.len());
    prop_oneof![
        4 => some.prop_map(|some| some.iter().fold(0, |all, flag| all | flag)),
        1 => any::<u8>(),
    ]
}

fn parameters() -> impl Strategy<Value = LaneParameters> {
    let limits = (0..=0x7fffu16, 512u32.., 1..=5u8, any::<u8>(), any::<u8>()).prop_map(
        |(quota_units, receive_bytes, path_mtu, rd_atomic_out, rd_atomic_in)| LaneLimits {
            quota_units,
            receive_bytes,
            path_mtu,
            rd_atomic_out,
            rd_atomic_in,
        },
    );
    (
        2..1u32 << 24,
        0..1u32 << 24,
        any::<u32>(),
        any::<u64>(),
        limits,
        (select(LaneKind::ALL), any::<bool>()),
    )
        .prop_map(
            |(qpn, psn, session, shm_name, limits, (kind, holds_session))| LaneParameters {
                kind,
                qpn,
                psn: if kind == LaneKind::Ud { 0 } else { psn },
                session: SessionId(session),
                shm_name,
                limits,
                holds_session,
            },
        )
}

fn keys() -> impl Strategy<Value = Keys> {
    let q_key = proptest::option::of(0..1u32 << 31);
    (any::<u16>(), q_key).prop_map(|(p_key, q_key)| Keys { p_key, q_key })
}

/// The bodies that a packet of a kind may have.
fn body(kind: u8) -> BoxedStrategy<ControlBody> {
    let (stamp_ns, proof) = (any::<u64>(), any::<u64>());
    match kind {
        HELLO => (stamp_ns, parameters(), proof)
            .prop_map(|(stamp_ns, parameters, proof)| ControlBody::Hello {
                stamp_ns,
                parameters,
                proof,
            })
            .boxed(),
        HELLO_ACK => (stamp_ns, parameters())
            .prop_map(|(stamp_ns, parameters)| ControlBody::HelloAck {
                stamp_ns,
                parameters,
            })
            .boxed(),
        READY => Just(ControlBody::Ready).boxed(),
        REJECT => select(RejectReason::ALL)
            .prop_map(|reason| ControlBody::Reject { reason })
            .boxed(),
        BYE => any::<(Option<u32>, bool, u64)>()
            .prop_map(|(expected, ends, proof)| ControlBody::Bye {
                expected,
                ends,
                proof,
            })
            .boxed(),
        BYE_ACK => Just(ControlBody::ByeAck).boxed(),
        KEEP_ALIVE => stamp_ns
            .prop_map(|stamp_ns| ControlBody::KeepAlive { stamp_ns })
            .boxed(),
        KEEP_ALIVE_ACK => stamp_ns
            .prop_map(|stamp_ns| ControlBody::KeepAliveAck { stamp_ns })
            .boxed(),
        CHALLENGE => proof
            .prop_map(|proof| ControlBody::Challenge { proof })
            .boxed(),
        DRIVE => Just(ControlBody::Drive).boxed(),
        other => panic!("say here what a packet of kind {other} says"),
    }
}

/// A packet of any kind.
fn control() -> impl Strategy<Value = ControlPacket> {
    let body = select(KINDS).prop_flat_map(body);
    let nonces = (1u64.., 1u64.., any::<bool>());
    (key(), any::<u64>(), nonces, any::<[u64; 2]>(), keys(), body).prop_map(
        |(
            from,
            to_incarnation,
            (initiator_nonce, responder_nonce, side),
            [epoch, newest_epoch],
            keys,
            body,
        )| {
            let from_initiator = match body {
                ControlBody::Hello { .. } | ControlBody::Ready => true,
                ControlBody::HelloAck { .. } => false,
                _ => side,
            };
            let responder_nonce = if matches!(body, ControlBody::Hello { .. }) {
                0
            } else {
                responder_nonce
            };
            let (newest_epoch, keys) = match body {
                ControlBody::Reject { .. } => (0, Keys::default()),
                _ => (newest_epoch, keys),
            };
            ControlPacket {
                from,
                to_incarnation,
                lane: LaneName {
                    from_initiator,
                    epoch,
                    initiator_nonce,
                    responder_nonce,
                },
                newest_epoch,
                keys,
                body,
            }
        },
    )
}

#[test]
fn each_byte_of_a_hello_matters() {
    let hello = ControlPacket {
        from: PeerKey {
            place: [3; PLACE_BYTES],
            incarnation: 4,
        },
        to_incarnation: 5,
        lane: LaneName {
            from_initiator: true,
            epoch: 6,
            initiator_nonce: 7,
            responder_nonce: 0,
        },
        newest_epoch: 6,
        keys: Keys {
            p_key: 0xffff,
            q_key: Some(8),
        },
        body: ControlBody::Hello {
            stamp_ns: 9,
            parameters: LaneParameters {
                qpn: 10,
                psn: 11,
                ..Default::default()
            },
            proof: 12,
        },
    };
    let bytes = hello.to_bytes();
    assert_eq!(ControlPacket::parse(&bytes), Ok(hello));
    for at in 0..CONTROL_BYTES {
        let mut other = bytes;
        other[at] ^= 0x40;
        assert_ne!(ControlPacket::parse(&other), Ok(hello), "byte {at}");
    }
    let mut newer = bytes;
    newer[4] = VERSION + 1;
    assert_eq!(
        ControlPacket::parse(&newer[..112]),
        Err(WireError::Version(VERSION + 1))
    );
    let foreign = Foreign::parse(&newer[..112]).unwrap();
    assert_eq!(
        (foreign.version, foreign.from, foreign.lane),
        (VERSION + 1, hello.from, hello.lane)
    );
    assert_eq!(
        ControlPacket::parse(&bytes[..CONTROL_BYTES - 1]),
        Err(WireError::Length)
    );
    assert_eq!(
        ControlPacket::parse(&[bytes.as_slice(), &[0]].concat()),
        Err(WireError::Length)
    );
    assert_eq!(ControlPacket::parse(&bytes[..20]), Err(WireError::Length));
}

proptest! {
    #[test]
    fn parses_what_it_prints(packet in control()) {
        prop_assert_eq!(ControlPacket::parse(&packet.to_bytes()), Ok(packet));
    }

    #[test]
    fn any_bytes_are_judged(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Foreign::parse(&bytes);
        prop_assert!(ControlPacket::parse(&bytes).is_err());
    }

    /// Each kind, with each flag and reason that exists and some that do not, on a packet that was
    /// sound as another one.
    #[test]
    fn kinds_and_flags_of_others_are_judged(
        packet in control(),
        kind in prop_oneof![4 => select(KINDS), 1 => any::<u8>()],
        flags in any_of(FLAGS),
        lane_flags in any_of(LANE_FLAGS),
        bye_flags in subsequence(BYE_FLAGS, 0..=BYE_FLAGS.len()),
        reason in prop_oneof![
            Just(0u8),
            select(RejectReason::ALL).prop_map(|reason| reason as u8),
            any::<u8>(),
        ],
    ) {
        let mut bytes = packet.to_bytes();
        bytes[KIND_AT] = kind;
        bytes[FLAGS_AT] = flags;
        bytes[FLAGS_AT + 1] = reason;
        bytes[LANE_FLAGS_AT] = lane_flags;
        let stamp = bye_flags.iter().fold(0u64, |stamp, flag| stamp | flag);
        for (byte, flag) in bytes[STAMP_AT..].iter_mut().zip(stamp.to_le_bytes()) {
            *byte ^= flag;
        }
        match ControlPacket::parse(&bytes) {
            Ok(read) => prop_assert_eq!(read.to_bytes(), bytes),
            Err(why) => prop_assert!(why == WireError::Field || why == WireError::Kind(kind)),
        }
        prop_assert!(KINDS.contains(&kind) || ControlPacket::parse(&bytes).is_err());
        let is_reject = Foreign::parse(&bytes).map(|foreign| foreign.is_reject);
        prop_assert_eq!(is_reject, Some(kind == REJECT));
    }

    /// Damaged packets are refused, or read as another packet that prints as those very bytes.
    #[test]
    fn damaged_bytes_are_judged(
        packet in control(),
        damage in proptest::collection::vec((0..CONTROL_BYTES, any::<u8>()), 1..6),
    ) {
        let mut bytes = packet.to_bytes();
        for (at, byte) in damage {
            bytes[at] = byte;
        }
        if let Ok(read) = ControlPacket::parse(&bytes) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }
}
