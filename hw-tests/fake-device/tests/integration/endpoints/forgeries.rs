//! Packets of a third party that knows the addresses of two endpoints, and their Q_Keys.

use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::addr::{AuthKey, NativeAddr};
use ferrofabric_contracts::error::Errno;
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_protocol::PeerKey;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::control::{
    ControlBody, ControlPacket, Keys, LaneName, LaneParameters,
};
use ferrofabric_protocol::wire::data::{
    DataEnvelope, FinStatus, Grant, Header, KINDS, MAX_FIRST_HEADER_BYTES, MAX_HEADER_BYTES,
    MAX_NOTICE_BYTES, MAX_RTS_BYTES, Predecessor, Resume,
};
use ferrofabric_protocol::wire::datagram::{Ack, DatagramPrefix, PREFIX_BYTES, parse};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

use crate::endpoints::breakage::data_queue_pair;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, endpoint, first, message, run, settings, stat,
};
use crate::endpoints::unknown_sources::UnknownSender;

const UD: &[(&str, &str)] = &[("FERRO_LANE", "ud")];
const RC: &[(&str, &str)] = &[("FERRO_LANE", "rc")];

/// The peer's key as its packets have it.
fn key_of(name: &NativeAddr) -> PeerKey {
    PeerKey {
        place: name.place(),
        incarnation: name.incarnation,
    }
}

fn forged(from: &NativeAddr, to: &NativeAddr, body: ControlBody) -> ControlPacket {
    ControlPacket {
        from: key_of(from),
        to_incarnation: to.incarnation,
        lane: LaneName {
            from_initiator: true,
            epoch: 1 << 40,
            initiator_nonce: 1,
            responder_nonce: 0,
        },
        newest_epoch: 1 << 40,
        keys: Keys {
            p_key: to.verbs.unwrap().pkey,
            q_key: None,
        },
        body,
    }
}

/// A Bye of an endpoint that closes, and a Hello, in the name of the peer.
#[test]
fn forged_control_packets_end_no_session() {
    for lane in [UD, RC] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::connected(lane);
        let (a, b) = (pair.a.name(), pair.b.name());
        let stranger = UnknownSender::of(a);
        let bye = ControlBody::Bye {
            expected: None,
            ends: true,
            proof: 0,
        };
        let hello = ControlBody::Hello {
            stamp_ns: 0,
            parameters: LaneParameters {
                qpn: 77,
                ..LaneParameters::default()
            },
            proof: 0,
        };
        let made = stat(&pair.a, "verbs_queue_pairs_made");
        for body in [bye, hello] {
            let packet = forged(&b, &a, body).to_bytes();
            stranger.send(a.verbs.unwrap().qpn, &packet);
            // The answer to the last packet is behind it.
            for tag in 0..20 {
                pair.exchange(8, tag);
            }
        }
        assert_eq!(stat(&pair.a, "verbs_queue_pairs_made"), made);
        for end in [&pair.a, &pair.b] {
            assert_eq!(stat(end, "verbs_sessions_now"), 1);
        }
        drop((pair, stranger));
        assert_clean(&device);
    }
}

/// Every kind of data packet, for each session that there may be, with cookies that are not the
/// lane's.
#[test]
fn forged_datagrams_change_nothing() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(UD);
    let a = pair.a.name();
    let stranger = UnknownSender::of(a);
    let data = data_queue_pair(&device, &pair.a);
    let mut sent = stat(&pair.a, "verbs_packets_dropped");
    for cookie in [0, 1, u32::MAX] {
        // The index of the first lane is 0; its generation is among these.
        for generation in 0..4 {
            let session = SessionId(generation << 22);
            for datagram in datagrams(cookie, session) {
                stranger.send(data, &datagram);
                sent += 1;
                let begun = Instant::now();
                while stat(&pair.a, "verbs_packets_dropped") < sent {
                    assert!(pair.a.poll().unwrap().is_none());
                    assert!(begun.elapsed() < PATIENCE, "{datagram:x?} is not dropped");
                }
            }
        }
    }
    for tag in 0..20 {
        pair.exchange(8, tag);
    }
    assert_eq!(stat(&pair.a, "verbs_packets_dropped"), sent);
    drop((pair, stranger));
    assert_clean(&device);
}

type WriteNotice<'a> = dyn Fn(&mut [u8; MAX_NOTICE_BYTES]) -> usize + 'a;

/// Datagrams of every kind. Each would confirm packets and return credit, if it were the peer's.
fn datagrams(cookie: u32, session: SessionId) -> Vec<Vec<u8>> {
    let prefix = DatagramPrefix {
        ack_at_once: true,
        cookie,
        ack: Ack {
            expected: 3,
            held: 0,
        },
        credit: 5,
    };
    let header = Header {
        session,
        sequence: 3,
        credit: 5,
    };
    let envelope = DataEnvelope::default();
    let mut all = Vec::new();
    let mut add = |packet: &[u8]| all.push([&prefix.to_bytes()[..], packet].concat());
    let mut room = [0; MAX_HEADER_BYTES];
    let len = header.write_eager(&envelope, 0, &mut room);
    add(&room[..len]);
    let len = header.write_fragment(4, 4, &mut room);
    add(&[&room[..len], b"part"].concat());
    let len = header.write_pulled(1, 4, &mut room);
    add(&[&room[..len], b"text"].concat());
    let mut room = [0; MAX_FIRST_HEADER_BYTES];
    let len = header.write_first(&envelope, 100, 4, &mut room);
    add(&[&room[..len], b"part"].concat());
    let mut room = [0; MAX_RTS_BYTES];
    let len = header.write_offer(&envelope, 1, 1 << 20, &mut room);
    add(&room[..len]);
    let len = header.write_pulled_offer(2, 1, 1 << 20, &mut room);
    add(&room[..len]);
    let grant = Grant {
        op: 1,
        receive: 2,
        address: 3,
        fit_bytes: 4,
        rkey: 5,
    };
    let resume = Resume {
        name: 4,
        before: Predecessor {
            name: 3,
            never_begun: true,
        },
    };
    let notices: [&WriteNotice<'_>; 9] = [
        &|room| header.write_fin(1, FinStatus::Ok, room),
        &|room| header.write_credit(room),
        &|room| header.write_ack(room),
        &|room| header.write_cts(&grant, room),
        &|room| header.write_done(4, room),
        &|room| header.write_resume(&resume, room),
        &|room| header.write_envelope(&envelope, 1, 8, room),
        &|room| header.write_pull(1, 2, room),
        &|room| header.write_unsent(2, room),
    ];
    for write in notices {
        let mut room = [0; MAX_NOTICE_BYTES];
        let len = write(&mut room);
        add(&room[..len]);
    }
    for kind in KINDS {
        let is_it = |datagram: &Vec<u8>| datagram[PREFIX_BYTES] == *kind;
        let it = all.iter().find(|datagram| is_it(datagram));
        assert!(it.is_some_and(|it| parse(it).is_ok()), "data packet {kind}");
    }
    all
}

/// Covers: AV-21
#[test]
fn each_endpoint_has_a_q_key_of_its_own_or_that_of_its_key() {
    let device = FakeDevice::take();
    let key = AuthKey::new(0xffff, 0x0123_4567).unwrap();
    let keyed = keyed_endpoint(key);
    assert_eq!(keyed.name().verbs.unwrap().qkey, key.qkey());
    let ends = [(); 3].map(|()| endpoint(UD));
    let qkeys = ends.each_ref().map(|end| end.name().verbs.unwrap().qkey);
    for (at, qkey) in qkeys.iter().enumerate() {
        assert!(qkey >> 31 == 0 && !qkeys[..at].contains(qkey), "{qkeys:x?}");
    }
    drop((keyed, ends));
    assert_clean(&device);
}

/// The address has the Q_Key of the other one, so the device takes the packets.
///
/// Covers: AV-21
#[test]
fn endpoints_with_and_without_a_key_refuse_each_other() {
    let key = AuthKey::new(0xffff, 0x0123_4567).unwrap();
    for keyed_sends in [false, true] {
        let device = FakeDevice::take();
        let (mut one, mut other) = (endpoint(UD), keyed_endpoint(key));
        if keyed_sends {
            std::mem::swap(&mut one, &mut other);
        }
        let to = one.av().insert(&other.name().to_bytes()).unwrap();
        one.tsend(message(8, 1), 8, to, 1, 1)
            .map_err(first)
            .unwrap();
        let done = run(&mut [&mut one, &mut other], 1);
        match &done[0].outcome {
            Err(error) => assert_eq!(error.errno, Errno::EKEYREJECTED),
            Ok(done) => panic!("{done:?}"),
        }
        drop((one, other));
        assert_clean(&device);
    }
}

fn keyed_endpoint(key: AuthKey) -> OwningEndpoint {
    let settings = settings(UD);
    let found = VerbsProvider::new().discover(&settings);
    let mut info = found.candidates[0].clone();
    info.domain.auth_key = Some(key);
    let domain = VerbsProvider::new().open(&info, &settings).unwrap();
    OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap()
}
