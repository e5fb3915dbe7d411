//! Data packets: sizes, round trips, hostile bytes.

use super::*;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn header() -> impl Strategy<Value = Header> {
    any::<(u32, u32, u16)>().prop_map(|(session, sequence, credit)| Header {
        session: SessionId(session),
        sequence,
        credit,
    })
}

fn envelope() -> impl Strategy<Value = DataEnvelope> {
    let part = proptest::option::of(select(RemoteKind::ALL));
    (any::<(Option<u64>, Option<u64>)>(), part).prop_map(|((tag, cq_data), part)| DataEnvelope {
        tag,
        cq_data,
        part: part.filter(|_| tag.is_some() && cq_data.is_some()),
    })
}

fn segments() -> impl Strategy<Value = Vec<MemorySegment>> {
    let segment =
        (0..1u64 << 60, 1..1u64 << 58, any::<u32>()).prop_map(|(address, length_bytes, rkey)| {
            MemorySegment {
                address,
                length_bytes,
                rkey,
            }
        });
    proptest::collection::vec(segment, 0..=MAX_SEGMENTS)
}

fn eager(header: Header, envelope: DataEnvelope, payload: &[u8]) -> Vec<u8> {
    let mut out = [0; MAX_HEADER_BYTES];
    let length = header.write_eager(&envelope, payload.len() as u32, &mut out);
    [&out[..length], payload].concat()
}

/// Prints what was read, to the same bytes if the format is canonical.
fn print(header: Header, packet: DataPacket<'_>) -> Vec<u8> {
    let mut out = [0; MAX_NOTICE_BYTES];
    let length = match packet {
        DataPacket::Eager { envelope, payload } => return eager(header, envelope, payload),
        DataPacket::EagerFirst {
            envelope,
            total_bytes,
            part,
        } => {
            let mut out = [0; MAX_FIRST_HEADER_BYTES];
            let length = header.write_first(&envelope, total_bytes, part.len() as u32, &mut out);
            return [&out[..length], part].concat();
        }
        DataPacket::EagerPart { offset_bytes, part } => {
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_fragment(offset_bytes, part.len() as u32, &mut out);
            return [&out[..length], part].concat();
        }
        DataPacket::Rts { envelope, request } if request.sender_writes => {
            let mut out = [0; MAX_RTS_BYTES];
            let length = header.write_offer(&envelope, request.op, request.total_bytes, &mut out);
            return out[..length].to_vec();
        }
        DataPacket::Rts { envelope, request } => {
            let mut out = [0; MAX_RTS_BYTES];
            let segments: Vec<MemorySegment> = request.segments().collect();
            let length = header
                .write_rts(&envelope, request.op, &segments, &mut out)
                .unwrap();
            return out[..length].to_vec();
        }
        DataPacket::Envelope {
            envelope,
            op,
            total_bytes,
        } => header.write_envelope(&envelope, op, total_bytes, &mut out),
        DataPacket::Pull { op, receive } => header.write_pull(op, receive, &mut out),
        DataPacket::Pulled { receive, payload } => {
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_pulled(receive, payload.len() as u32, &mut out);
            return [&out[..length], payload].concat();
        }
        DataPacket::PulledRts { receive, request } => {
            let mut out = [0; MAX_RTS_BYTES];
            let segments: Vec<MemorySegment> = request.segments().collect();
            let length = match request.sender_writes {
                true => {
                    header.write_pulled_offer(receive, request.op, request.total_bytes, &mut out)
                }
                false => header
                    .write_pulled_rts(receive, request.op, &segments, &mut out)
                    .unwrap(),
            };
            return out[..length].to_vec();
        }
        DataPacket::Unsent { receive } => header.write_unsent(receive, &mut out),
        DataPacket::Fin { op, status } => header.write_fin(op, status, &mut out),
        DataPacket::Cts(grant) => header.write_cts(&grant, &mut out),
        DataPacket::Done { receive } => header.write_done(receive, &mut out),
        DataPacket::Resume(resume) => header.write_resume(&resume, &mut out),
        DataPacket::Credit => header.write_credit(&mut out),
        DataPacket::Ack => header.write_ack(&mut out),
    };
    out[..length].to_vec()
}

#[test]
fn small_messages_stay_small() {
    let header = Header {
        session: SessionId(1),
        sequence: 2,
        credit: 3,
    };
    let tagged = DataEnvelope {
        tag: Some(9),
        cq_data: None,
        part: None,
    };
    assert_eq!(eager(header, tagged, &[0; 8]).len(), 32);
    let with_data = DataEnvelope {
        tag: Some(9),
        cq_data: Some(1),
        part: None,
    };
    assert_eq!(eager(header, with_data, &[0; 8]).len(), 40);
}

/// The layout of docs/wire-protocol.md, byte by byte.
#[test]
fn eager_layout_is_as_documented() {
    let header = Header {
        session: SessionId(0x0403_0201),
        sequence: 0x0807_0605,
        credit: 0x1211,
    };
    let envelope = DataEnvelope {
        tag: Some(0x2827_2625_2423_2221),
        cq_data: Some(0x38),
        part: None,
    };
    let expected = [
        1, 3, 0x11, 0x12, 1, 2, 3, 4, 5, 6, 7, 8, 2, 0, 0, 0, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26,
        0x27, 0x28, 0x38, 0, 0, 0, 0, 0, 0, 0, b'h', b'i',
    ];
    assert_eq!(eager(header, envelope, b"hi"), expected);
}

#[test]
fn impossible_segments_are_refused_on_both_sides() {
    let header = Header {
        session: SessionId(0),
        sequence: 0,
        credit: 0,
    };
    let mut out = [0; MAX_RTS_BYTES];
    let good = MemorySegment {
        address: 8,
        length_bytes: 8,
        rkey: 1,
    };
    let none = DataEnvelope::default();
    let empty = MemorySegment {
        length_bytes: 0,
        ..good
    };
    let wraps = MemorySegment {
        address: u64::MAX,
        ..good
    };
    let huge = MemorySegment {
        address: 0,
        length_bytes: u64::MAX,
        rkey: 1,
    };
    let cases: [&[MemorySegment]; 4] =
        [&[empty], &[wraps], &[huge, good], &[good; MAX_SEGMENTS + 1]];
    for bad in cases {
        assert_eq!(
            header.write_rts(&none, 1, bad, &mut out),
            Err(WireError::Field)
        );
    }
    let length = header.write_rts(&none, 1, &[good; 2], &mut out).unwrap();
    assert!(DataPacket::parse(&out[..length]).is_ok());
    for (at, what) in [(32, "total"), (48, "length"), (60, "reserved")] {
        let mut bytes = out;
        bytes[at] ^= 1;
        assert_eq!(
            DataPacket::parse(&bytes[..length]),
            Err(WireError::Field),
            "{what}"
        );
    }
    assert_eq!(
        DataPacket::parse(&out[..length - 1]),
        Err(WireError::Length)
    );
}

/// A sound packet of a kind.
fn sound(kind: u8) -> Vec<u8> {
    let header = Header {
        session: SessionId(1),
        sequence: 2,
        credit: 3,
    };
    let envelope = DataEnvelope::default();
    let grant = Grant {
        op: 1,
        receive: 2,
        address: 3,
        fit_bytes: 4,
        rkey: 5,
    };
    let mut out = [0; MAX_NOTICE_BYTES];
    let length = match kind {
        EAGER => return eager(header, envelope, b"text"),
        EAGER_FIRST => {
            let mut out = [0; MAX_FIRST_HEADER_BYTES];
            let length = header.write_first(&envelope, 9, 4, &mut out);
            return [&out[..length], b"text"].concat();
        }
        EAGER_PART => {
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_fragment(4, 4, &mut out);
            return [&out[..length], b"text"].concat();
        }
        RTS => {
            let mut out = [0; MAX_RTS_BYTES];
            let length = header.write_offer(&envelope, 1, 2, &mut out);
            return out[..length].to_vec();
        }
        ENVELOPE => header.write_envelope(&envelope, 1, 2, &mut out),
        PULL => header.write_pull(1, 2, &mut out),
        PULLED => {
            let mut out = [0; MAX_HEADER_BYTES];
            let length = header.write_pulled(1, 4, &mut out);
            return [&out[..length], b"text"].concat();
        }
        PULLED_RTS => {
            let mut out = [0; MAX_RTS_BYTES];
            let length = header.write_pulled_offer(1, 2, 3, &mut out);
            return out[..length].to_vec();
        }
        UNSENT => header.write_unsent(1, &mut out),
        FIN => header.write_fin(1, FinStatus::Ok, &mut out),
        CREDIT => header.write_credit(&mut out),
        ACK => header.write_ack(&mut out),
        CTS => header.write_cts(&grant, &mut out),
        DONE => header.write_done(1, &mut out),
        RESUME => header.write_resume(&Resume::default(), &mut out),
        other => panic!("write a packet of kind {other} here"),
    };
    out[..length].to_vec()
}

/// A sound packet of each kind, with each set of flags, is taken or refused.
#[test]
fn each_kind_and_set_of_flags_is_judged() {
    for &kind in KINDS {
        let good = sound(kind);
        assert_eq!(good[0], kind);
        assert!(DataPacket::parse(&good).is_ok(), "kind {kind}");
        for flags in 0..=u8::MAX {
            let mut bytes = good.clone();
            bytes[1] = flags;
            match DataPacket::parse(&bytes) {
                Ok((header, packet)) => assert_eq!(print(header, packet), bytes),
                Err(why) => assert!(
                    flags != good[1] && matches!(why, WireError::Field | WireError::Length),
                    "kind {kind} with flags {flags:#x}: {why}"
                ),
            }
            let all = FLAGS.iter().fold(0, |all, flag| all | flag);
            assert!(flags & !all == 0 || DataPacket::parse(&bytes).is_err());
        }
    }
}

proptest! {
    #[test]
    fn parses_what_it_prints(
        header in header(),
        envelope in envelope(),
        payload in proptest::collection::vec(any::<u8>(), 0..64),
        segments in segments(),
        op in any::<u64>(),
        status in select(FinStatus::ALL),
        total in 0..1u64 << 62,
    ) {
        let bytes = eager(header, envelope, &payload);
        prop_assert_eq!(DataPacket::parse(&bytes), Ok((header, DataPacket::Eager { envelope, payload: &payload })));

        let mut out = [0; MAX_RTS_BYTES];
        let length = header.write_rts(&envelope, op, &segments, &mut out).unwrap();
        let (read, packet) = DataPacket::parse(&out[..length]).unwrap();
        let DataPacket::Rts { envelope: read_envelope, request } = packet else { panic!("{packet:?}") };
        prop_assert_eq!((read, read_envelope, request.op), (header, envelope, op));
        prop_assert_eq!(request.segments().collect::<Vec<_>>(), segments.clone());
        prop_assert_eq!(request.total_bytes, segments.iter().map(|s| s.length_bytes).sum::<u64>());

        let length = header.write_offer(&envelope, op, total, &mut out);
        let (read, packet) = DataPacket::parse(&out[..length]).unwrap();
        let DataPacket::Rts { envelope: read_envelope, request } = packet else { panic!("{packet:?}") };
        prop_assert_eq!((read, read_envelope, request.op), (header, envelope, op));
        prop_assert_eq!((request.total_bytes, request.sender_writes, request.segments().len()), (total, true, 0));

        let grant = Grant { op, receive: total, address: 1 << 40, fit_bytes: (total.max(1) >> 1) | 1, rkey: 7 };
        let before = Predecessor { name: total, never_begun: op % 2 == 1 };
        let resume = Resume { name: op, before };
        let length = header.write_pulled_rts(op, total, &segments, &mut out).unwrap();
        let (read, packet) = DataPacket::parse(&out[..length]).unwrap();
        let DataPacket::PulledRts { receive, request } = packet else { panic!("{packet:?}") };
        prop_assert_eq!((read, receive, request.op), (header, op, total));
        prop_assert_eq!(request.segments().collect::<Vec<_>>(), segments);
        let plain = [
            DataPacket::Envelope { envelope, op, total_bytes: total },
            DataPacket::Pull { op, receive: total },
            DataPacket::Pulled { receive: op, payload: &payload },
            DataPacket::Unsent { receive: op },
            DataPacket::Fin { op, status },
            DataPacket::Cts(grant),
            DataPacket::Done { receive: op },
            DataPacket::Resume(resume),
            DataPacket::Credit,
            DataPacket::Ack,
        ];
        for packet in plain {
            let mut bytes = print(header, packet);
            prop_assert_eq!(DataPacket::parse(&bytes), Ok((header, packet)));
            let other = Header { session: SessionId(!header.session.0), ..header };
            readdress(&mut bytes, other.session);
            prop_assert_eq!(DataPacket::parse(&bytes), Ok((other, packet)));
            let other = Header { credit: !header.credit, ..other };
            renew_credit(&mut bytes, other.credit);
            prop_assert_eq!(DataPacket::parse(&bytes), Ok((other, packet)));
        }
    }

    /// Any bytes, behind a plausible start so that the deep branches are reached, are refused or
    /// printed back.
    #[test]
    fn any_bytes_are_judged(
        kind in prop_oneof![8 => select(KINDS), 1 => any::<u8>()],
        some in subsequence(FLAGS, 0..=FLAGS.len()),
        others in prop_oneof![8 => Just(0), 1 => any::<u8>()],
        fit in any::<bool>(),
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120),
    ) {
        let flags = some.iter().fold(others, |flags, flag| flags | flag);
        if let [first, second, ..] = &mut bytes[..] {
            (*first, *second) = (kind, flags);
        }
        let header_bytes = if flags & CQ_DATA != 0 { MAX_HEADER_BYTES } else { HEADER_BYTES };
        if fit && bytes.len() >= header_bytes {
            let body_bytes = (bytes.len() - header_bytes) as u32;
            bytes[12..16].copy_from_slice(&body_bytes.to_le_bytes());
        }
        let whole = match DataPacket::parse(&bytes) {
            Ok((header, DataPacket::Eager { envelope, payload })) => Some((header, envelope, payload)),
            _ => None,
        };
        prop_assert_eq!(DataPacket::parse_eager(&bytes), whole);
        if let Ok((header, packet)) = DataPacket::parse(&bytes) {
            prop_assert_eq!(print(header, packet), bytes);
        }
    }

    #[test]
    fn damaged_requests_are_judged(
        header in header(),
        segments in segments(),
        damage in proptest::collection::vec((0..MAX_RTS_BYTES, any::<u8>()), 1..4),
    ) {
        let mut out = [0; MAX_RTS_BYTES];
        let length = header.write_rts(&DataEnvelope::default(), 7, &segments, &mut out).unwrap();
        for (at, byte) in damage {
            out[at] = byte;
        }
        if let Ok((header, packet)) = DataPacket::parse(&out[..length]) {
            prop_assert_eq!(print(header, packet), &out[..length]);
        }
    }
}
