//! Messages between endpoints over the fake device, with nothing wrong.

use crate::endpoints::party::{PeerPair, assert_clean, check, endpoint, first, message, room, run};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, INFINIBAND};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

#[test]
fn both_devices_are_discovered() {
    let device = FakeDevice::take();
    let settings = Settings::read(|_| None).unwrap();
    let found = VerbsProvider::new().discover(&settings);
    let mut names: Vec<_> = found
        .candidates
        .iter()
        .map(|info| &info.domain.name)
        .collect();
    // One offer for each kind of endpoint.
    names.dedup();
    names.truncate(2);
    assert_eq!(names, ["fake_roce0:1", "fake_ib0:1"], "{:?}", found.notices);
    assert_clean(&device);
}

#[test]
fn messages_of_every_protocol() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[]);
    for (at, bytes) in [0, 1, 8, 100, 500, 4096, 8192, 8193, 65_536, 3 << 20]
        .into_iter()
        .enumerate()
    {
        for round in 0..3 {
            pair.exchange(bytes, 100 * at as u64 + round);
        }
    }
    drop(pair);
    assert_clean(&device);
}

#[test]
fn messages_over_infiniband() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[("FERRO_DEVICE", INFINIBAND)]);
    for bytes in [8, 4096, 1 << 20] {
        pair.exchange(bytes, bytes as u64);
    }
    drop(pair);
    assert_clean(&device);
}

/// More messages than there are receive buffers and send slots, to a receiver that does not poll:
/// waiting messages stay in order.
#[test]
fn a_flood_of_unexpected_messages() {
    const COUNT: u64 = 3000;
    /// Refusals in a row after which the sender has no room left.
    const NO_ROOM: u32 = 10_000;
    let device = FakeDevice::take();
    let settings = [("FERRO_RX_BUFFERS", "16"), ("FERRO_WAITING_SENDS", "1024")];
    let mut pair = PeerPair::connected(&settings);
    let mut sent = 0;
    let mut over = 0;
    let (mut refusals, mut receiver_looks) = (0, false);
    while sent < COUNT && over < COUNT {
        match pair.a.tsend(message(8, sent), 8, pair.to_b, 7, sent) {
            Ok(()) => (sent, refusals) = (sent + 1, 0),
            Err(refused) => {
                assert_eq!(first(refused), OpError::Again);
                over += u64::from(pair.a.poll().unwrap().is_some());
                refusals += 1;
                receiver_looks |= sent > 1200 || refusals > NO_ROOM;
                if receiver_looks {
                    // Only now does the receiver look.
                    let _ = pair.b.poll().unwrap();
                }
            }
        }
    }
    for at in 0..COUNT {
        pair.b
            .trecv(room(8), FiAddr::UNSPEC, 7, 0, at)
            .map_err(first)
            .unwrap();
    }
    let mut received = 0;
    for done in pair.run((2 * COUNT - over) as usize) {
        let completion = done.outcome.unwrap();
        if completion.flags.contains(Flags::RECV) {
            // They match in order; large ones and those without credit complete later than the
            // messages behind them.
            check(&done.buffer, done.token, "in order");
            received += 1;
        }
    }
    assert_eq!(received, COUNT);
    drop(pair);
    assert_clean(&device);
}

#[test]
fn many_peers() {
    const PEERS: usize = 24;
    const TO_PEER: u64 = u64::MAX;
    let device = FakeDevice::take();
    let mut hub = endpoint(&[]);
    let mut peers: Vec<OwningEndpoint> = (0..PEERS)
        .map(|_| endpoint(&[("FERRO_RX_BUFFERS", "16")]))
        .collect();
    for (at, peer) in peers.iter_mut().enumerate() {
        let to_hub = peer.av().insert(&hub.name().to_bytes()).unwrap();
        let to_peer = hub.av().insert(&peer.name().to_bytes()).unwrap();
        let (tag, bytes) = (at as u64, [8, 2000, 20_000][at % 3]);
        hub.trecv(room(bytes), to_peer, tag, 0, tag)
            .map_err(first)
            .unwrap();
        peer.trecv(room(bytes), to_hub, tag, 0, TO_PEER)
            .map_err(first)
            .unwrap();
        peer.tsend(message(bytes, tag), bytes, to_hub, tag, 0)
            .map_err(first)
            .unwrap();
        hub.tsend(message(bytes, !tag), bytes, to_peer, tag, 1000)
            .map_err(first)
            .unwrap();
    }
    let mut all: Vec<_> = peers.iter_mut().collect();
    all.push(&mut hub);
    for done in run(&mut all, 4 * PEERS) {
        let completion = done.outcome.unwrap();
        if completion.flags.contains(Flags::RECV) {
            let seed = match done.token {
                TO_PEER => !completion.tag,
                _ => completion.tag,
            };
            check(&done.buffer, seed, "from its peer");
        }
    }
    drop((hub, peers));
    assert_clean(&device);
}

/// A message that its sender writes rings three doorbells: for the question, for the answer, and
/// for the write and the word behind it together.
#[test]
fn a_message_that_is_written_rings_three_times() {
    // One request writes it, on a software device, too.
    const LEN: usize = 60_000;
    let device = FakeDevice::take();
    let settings = [
        ("FERRO_LANE", "rc"),
        ("FERRO_RENDEZVOUS", "write"),
        ("FERRO_EAGER_MAX", "4096"),
    ];
    let mut pair = PeerPair::connected(&settings);
    let rings = (0..3).map(|seed| {
        let receive = pair.b.trecv(room(LEN), pair.to_a, 5, 0, 1);
        receive.map_err(first).unwrap();
        let before = device.calls("ibv_post_send");
        let sent = (pair.a).tsend(message(LEN, seed), LEN, pair.to_b, 5, 2);
        sent.map_err(first).unwrap();
        for done in pair.run(2) {
            assert!(done.outcome.is_ok(), "{done:?}");
            if done.token == 1 {
                check(&done.buffer[..LEN], seed, "what was written");
            }
        }
        device.calls("ibv_post_send") - before
    });
    // A look that comes once a second may ring during one of them.
    assert_eq!(rings.min(), Some(3));
    drop(pair);
    assert_clean(&device);
}
