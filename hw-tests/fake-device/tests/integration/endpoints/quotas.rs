//! Unexpected messages: a receiver keeps a limited number of each peer.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::ends::{QueuedEndpoint, QueuedPair, any_tagged};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_runtime::owning::OwningEndpoint;

use crate::endpoints::nic::has_queue_pairs_for;
use crate::endpoints::party::{self, PATIENCE, domain, message, room};

/// Units that a peer is granted, of 64 bytes, and requests that it may have open.
const QUOTA: u64 = 4096;

/// The low byte of the quota in a HelloAck, behind the routing header.
const QUOTA_BYTE: u32 = 40 + 134;

/// The quota with the bits of that byte inverted.
const CLAIMED: u64 = QUOTA ^ 0xff;

/// Sends that wait at the sender with an envelope at the receiver, and as many that wait without.
const WAITING: u64 = 1024;

/// How long a sender that has filled its quota goes on trying: one that went beyond it would be
/// seen.
const MORE: Duration = Duration::from_millis(300);

/// Messages of 8 bytes go as requests if their senders want to know of their delivery, else eagerly
/// while there is credit: of two units each.
#[derive(Clone, Copy, Debug, PartialEq)]
enum UnexpectedKind {
    Eager,
    Requests,
}

impl UnexpectedKind {
    fn flags(self) -> Flags {
        match self {
            Self::Eager => Flags::empty(),
            Self::Requests => Flags::DELIVERY_COMPLETE,
        }
    }
}

fn stat(end: &QueuedEndpoint, wanted: &str) -> u64 {
    let stats = end.endpoint.stats().unwrap();
    stats.iter().find(|(name, _)| *name == wanted).unwrap().1
}

/// Two ends that have not spoken to each other. Few sends wait at the first.
fn unconnected_pair(settings: &[(&str, &str)]) -> QueuedPair {
    let few = [&[("FERRO_WAITING_SENDS", "1024")], settings].concat();
    let (a, b) = (
        QueuedEndpoint::open(&*domain(&few)),
        QueuedEndpoint::open(&*domain(&[])),
    );
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
    QueuedPair { a, b, to_a, to_b }
}

/// An end to which `a` has a connection, the only one that it may have.
fn takes_the_connection(pair: &QueuedPair) -> QueuedEndpoint {
    const BYTES: usize = 1 << 20;
    let third = QueuedEndpoint::open(&*domain(&[]));
    let to_third = pair.a.av.insert(&third.endpoint.name().to_bytes()).unwrap();
    let recv = any_tagged(third.context());
    third.recv(&recv, &[third.memory(BYTES, 0)]).unwrap();
    let send = SendOp {
        dest: to_third,
        ..pair.tagged(1)
    };
    pair.a.send(&third, send, BYTES, 1);
    pair.until("a large message does not arrive", || {
        third.rx.pump();
        third.rx.take_of(recv.context)
    })
    .unwrap();
    pair.wait(&pair.a.tx, send.context).unwrap();
    assert_eq!(stat(&pair.a, "verbs_queue_pairs_made"), 1);
    third
}

/// `a` sends all messages that it can, each with its number as its tag, until `b` keeps `enough` of
/// them and no further message goes, or a receive of `b` has failed. Then both have time for more.
/// Returns the number of messages sent, and the highest number that `b` has kept.
fn flood(pair: &QueuedPair, from: IoBuf, flags: Flags, enough: u64) -> (u64, u64) {
    let (mut sent, mut most) = (0, 0);
    let begun = Instant::now();
    let mut last = begun;
    while most < enough || last.elapsed() < MORE {
        assert!(
            begun.elapsed() < PATIENCE,
            "{sent} messages, {most} of them kept, and no end"
        );
        let op = SendOp {
            flags,
            ..pair.tagged(sent)
        };
        // SAFETY: the memory lives as long as the endpoint.
        match unsafe { pair.a.endpoint.send(&op, &[from]) } {
            Ok(()) => {
                sent += 1;
                last = Instant::now();
            }
            Err(OpError::Again) => {
                pair.a.tx.pump();
                pair.b.rx.pump();
            }
            Err(error) => panic!("{error}"),
        }
        most = most.max(stat(&pair.b, "verbs_unexpected_now"));
        if pair.b.rx.counts().1 > 0 {
            break;
        }
    }
    (sent, most)
}

/// A sender that keeps to its quota waits, with what it has in line bounded, too; once its messages
/// are received, all come.
#[test]
fn a_sender_waits_for_its_receiver() {
    for kind in [UnexpectedKind::Requests, UnexpectedKind::Eager] {
        let _device = FakeDevice::take();
        let pair = unconnected_pair(&[]);
        let from = pair.a.memory(8, 1);
        // Messages without credit go as requests, and then as envelopes.
        let may_keep = match kind {
            UnexpectedKind::Requests => QUOTA + WAITING,
            UnexpectedKind::Eager => QUOTA + QUOTA / 2 + WAITING,
        };
        let (sent, kept) = flood(&pair, from, kind.flags(), may_keep);
        assert_eq!(kept, may_keep, "{kind:?}");
        assert!(sent < may_keep + WAITING + 76, "{sent} were taken");
        let begun = Instant::now();
        for tag in 0..sent {
            let recv = any_tagged(pair.b.context());
            pair.b.recv(&recv, &[pair.b.memory(8, 0)]).unwrap();
            loop {
                pair.b.rx.pump();
                if let Some(came) = pair.b.rx.take() {
                    assert_eq!(came.unwrap().tag, tag);
                    break;
                }
                pair.a.tx.pump();
                assert!(
                    begun.elapsed() < 3 * PATIENCE,
                    "message {tag} does not come"
                );
            }
        }
        assert_eq!(stat(&pair.b, "verbs_lanes_failed"), 0);
    }
}

/// A peer that exceeds its grant loses its connection, with an error that names the cause for the
/// receives that wait for it; its open requests are forgotten, and other peers are served as
/// before.
#[test]
fn a_peer_that_exceeds_its_quota_is_refused() {
    const UD: &[(&str, &str)] = &[("FERRO_LANE", "ud"), ("FERRO_MAX_LANES", "1")];
    for (lane, kind, why) in [
        (
            &[][..],
            UnexpectedKind::Requests,
            "announced more unexpected messages",
        ),
        (&[], UnexpectedKind::Eager, "sent more unexpected messages"),
        (
            UD,
            UnexpectedKind::Requests,
            "announced more unexpected messages",
        ),
        (UD, UnexpectedKind::Eager, "sent more unexpected messages"),
    ] {
        println!("{kind:?}, {lane:?}");
        let device = FakeDevice::take();
        let pair = unconnected_pair(lane);
        let _third = (!lane.is_empty()).then(|| takes_the_connection(&pair));
        // It believes to have been granted more.
        let control = pair.a.endpoint.name().verbs.unwrap().qpn;
        let grant = Fault::new(
            FaultPoint::DatagramReceive,
            FaultEffect::Corrupt(QUOTA_BYTE),
        )
        .on(control);
        device.script(grant);
        let waits = RecvOp {
            tag: u64::MAX,
            ignore: 0,
            src: pair.to_a,
            ..any_tagged(pair.b.context())
        };
        pair.b.recv(&waits, &[pair.b.memory(8, 0)]).unwrap();
        let from = pair.a.memory(8, 1);
        let (sent, kept) = flood(&pair, from, kind.flags(), u64::MAX);
        assert_eq!(device.faults_left(), 0, "it knows its quota");
        assert!(sent > QUOTA / 2 && sent <= CLAIMED + 1100, "{sent}");
        assert!(kept <= QUOTA, "{kept} of {sent} kept");
        let error = pair.wait(&pair.b.rx, waits.context).unwrap_err();
        assert_eq!(error.errno, Errno::EPROTO);
        assert!(error.why.contains(why), "{}", error.why);
        if kind == UnexpectedKind::Requests {
            assert_eq!(stat(&pair.b, "verbs_unexpected_now"), 0);
        }
        let other = QueuedEndpoint::open(&*domain(&[]));
        let to_b = other.av.insert(&pair.b.endpoint.name().to_bytes()).unwrap();
        let from_other = pair.b.av.insert(&other.endpoint.name().to_bytes()).unwrap();
        let recv = RecvOp {
            src: from_other,
            ..any_tagged(pair.b.context())
        };
        pair.b.recv(&recv, &[pair.b.memory(8, 0)]).unwrap();
        let send = SendOp {
            kind: MsgKind::Tagged,
            dest: to_b,
            ..pair.tagged(5)
        };
        other.send(&pair.b, send, 8, 9);
        let came = pair.until("another peer is not served", || {
            other.tx.pump();
            pair.b.rx.take_of(recv.context)
        });
        assert_eq!(came.unwrap().tag, 5);
    }
}

/// Far more peers than get the full quota: each has credit for small messages, again and again.
#[test]
fn small_messages_of_many_peers_need_no_request() {
    if !has_queue_pairs_for(501) {
        return;
    }
    const PEERS: usize = 500;
    const EACH: u64 = 20;
    const ALL: u64 = PEERS as u64 * EACH;

    let _device = FakeDevice::take();
    let mut hub = party::endpoint(&[("FERRO_LANE", "rc")]);
    // One poll drives all of them.
    let of_peers = domain(&[("FERRO_LANE", "rc"), ("FERRO_RX_BUFFERS", "16")]);
    let mut peers = Vec::new();
    for _ in 0..PEERS {
        let mut peer = OwningEndpoint::open(&*of_peers, &AvAttr::default()).unwrap();
        let to_hub = peer.av().insert(&hub.name().to_bytes()).unwrap();
        // The lane of a peer that it does not list closes after a second without a packet, and the
        // session then lends its credit.
        hub.av().insert(&peer.name().to_bytes()).unwrap();
        let sent = peer.tsend(message(8, 0), 8, to_hub, 0, 0);
        sent.map_err(party::first).unwrap();
        let receive = hub.trecv(room(8), FiAddr::UNSPEC, 0, 0, 0);
        receive.map_err(party::first).unwrap();
        for done in party::run(&mut [&mut peer, &mut hub], 2) {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
        }
        peers.push((peer, to_hub));
    }
    for round in 1..4 {
        for (peer, to_hub) in &mut peers {
            for _ in 0..EACH {
                let sent = peer.tsend(message(8, round), 8, *to_hub, round, round);
                sent.map_err(party::first).unwrap();
            }
            // Connections fail where their receiver has no receive left for too long.
            assert!(hub.poll().unwrap().is_none());
        }
        // All are here before any is received.
        let begun = Instant::now();
        while party::stat(&hub, "verbs_unexpected_now") < ALL {
            assert!(begun.elapsed() < PATIENCE, "round {round}");
            assert!(hub.poll().unwrap().is_none());
            let _ = peers[0].0.poll().unwrap();
        }
        for _ in 0..ALL {
            let receive = hub.trecv(room(8), FiAddr::UNSPEC, round, 0, round);
            receive.map_err(party::first).unwrap();
        }
        for done in party::run(&mut [&mut hub], ALL as usize) {
            party::check(&done.buffer[..8], round, "a small message");
        }
        // A poll that finds a completion drives nothing.
        for (peer, _) in &mut peers {
            while peer.poll().unwrap().is_some() {}
        }
        // The credit goes back, of which such a message takes two units.
        let begun = Instant::now();
        for at in 0..PEERS {
            while party::stat(&peers[at].0, "verbs_credit_units_now") < 2 * EACH {
                let stats = || peers[at].0.stats().unwrap();
                assert!(begun.elapsed() < PATIENCE, "{round}, {at}: {:?}", stats());
                assert!(hub.poll().unwrap().is_none());
                let _ = peers[0].0.poll().unwrap();
            }
        }
        let mut requests = Vec::new();
        for (at, (peer, _)) in peers.iter().enumerate() {
            if party::stat(peer, "verbs_sent_rendezvous") > 0 {
                requests.push(at);
            }
        }
        let failed = party::stat(&hub, "verbs_lanes_failed");
        assert!(
            requests.is_empty(),
            "round {round}, {failed} lanes have failed: peers {requests:?}"
        );
    }
    drop(peers);
}
