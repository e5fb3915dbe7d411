//! Lanes over datagrams: which kind of lane a peer gets, and sessions that move between them under
//! load.

use std::time::Instant;

use fastrand::Rng;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint, QueuePairView};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs_sys::{ibv_qp_state, ibv_qp_type};

use crate::endpoints::breakage::{connections, data_queue_pair};
use crate::endpoints::nic::has_shared_receives;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, endpoint, first, message, pending_operations, room,
    run,
};

const UD: &[(&str, &str)] = &[("FERRO_LANE", "ud")];
const AUTO: &[(&str, &str)] = &[("FERRO_LANE", "auto")];

fn count(endpoint: &OwningEndpoint, name: &str) -> u64 {
    let stats = endpoint.stats().unwrap();
    let found = stats.iter().find(|(n, _)| *n == name);
    found.unwrap_or_else(|| panic!("no count {name}")).1
}

/// A first message, and a few more, make no connection.
#[test]
fn few_messages_make_no_connection() {
    for settings in [UD, AUTO] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(settings);
        for tag in 0..20 {
            pair.exchange([8, 700, 3000][tag as usize % 3], tag);
        }
        assert_eq!(connections(&device).len(), 0);
        for end in [&pair.a, &pair.b] {
            assert_eq!(count(end, "verbs_queue_pairs_made"), 0);
            assert_eq!(count(end, "verbs_ud_lanes"), 1);
        }
        drop(pair);
        assert_clean(&device);
    }
}

/// Many do, unless that is not wanted.
#[test]
fn many_messages_make_a_connection() {
    for (settings, made) in [(UD, 0), (AUTO, 1)] {
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(settings);
        let begun = Instant::now();
        // The promotion takes 300 messages in a tenth of a second: on a busy machine that may take
        // more than one try.
        let wanted = |tag| tag < 300 || connections(&device).len() < 2 * made;
        for tag in (0..).take_while(|&tag| wanted(tag)) {
            pair.exchange(8, tag);
            assert!(begun.elapsed() < PATIENCE, "no connection");
        }
        assert_eq!(connections(&device).len(), 2 * made);
        let changes: u64 = [&pair.a, &pair.b]
            .map(|end| count(end, "verbs_ud_promotions"))
            .iter()
            .sum();
        assert!(changes >= made as u64, "{changes} promotions");
        drop(pair);
        assert_clean(&device);
    }
}

/// Peers that fall silent as they are promoted take no place among those with connections: others
/// still get one.
#[test]
fn promotions_that_fail() {
    let device = FakeDevice::take();
    let mut hub = endpoint(&[
        ("FERRO_LANE", "auto"),
        ("FERRO_MAX_LANES", "2"),
        ("FERRO_RECONNECT_TIMEOUT", "300ms"),
    ]);
    let control = hub.name().verbs.unwrap().qpn;
    let begun = Instant::now();
    for silent in [true, true, true, false] {
        let mut end = endpoint(UD);
        let to_hub = end.av().insert(&hub.name().to_bytes()).unwrap();
        let from_hub = hub.av().insert(&end.name().to_bytes()).unwrap();
        let promoted = count(&hub, "verbs_ud_promotions");
        for tag in 0.. {
            end.trecv(room(8), to_hub, tag, 0, 1)
                .map_err(first)
                .unwrap();
            hub.tsend(message(8, tag), 8, from_hub, tag, 2)
                .map_err(first)
                .unwrap();
            for done in run(&mut [&mut hub, &mut end], 2) {
                assert!(silent || done.outcome.is_ok(), "{:?}", done.outcome);
            }
            if silent && tag == 0 {
                device.script(
                    Fault::new(FaultPoint::Datagram, FaultEffect::Lose)
                        .on(control)
                        .times(u32::MAX),
                );
            }
            if count(&hub, "verbs_ud_promotions") > promoted {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "no promotion");
        }
        let is_over = |hub: &OwningEndpoint| match silent {
            true => count(hub, "verbs_sessions_now") == 0,
            false => connections(&device).len() == 2,
        };
        while !is_over(&hub) {
            for end in [&mut hub, &mut end] {
                assert!(end.poll().unwrap().is_none());
            }
            assert!(begun.elapsed() < PATIENCE, "the attempt does not end");
        }
        device.reset();
    }
    drop(hub);
    assert_clean(&device);
}

/// Messages that only RC carries have a connection, whatever was said, and those before and behind
/// keep their order.
#[test]
fn a_large_message_makes_a_connection() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(UD);
    let traffic = pair.traffic(100, 40, || ());
    assert_eq!((traffic.sent, traffic.received), (80, 80), "{traffic:?}");
    assert_eq!(connections(&device).len(), 2);
    drop(pair);
    assert_clean(&device);
}

/// Datagrams are lost, at every place in a conversation; all messages arrive, once.
#[test]
fn lost_datagrams_are_repeated() {
    for seed in 0..12 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(UD);
        for _ in 0..12 {
            let after = rng.u32(..60);
            device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).after(after));
        }
        for tag in 0..30 {
            pair.exchange([8, 700, 3000, 8192][tag as usize % 4], tag);
        }
        device.reset();
        let repeated =
            count(&pair.a, "verbs_datagrams_repeated") + count(&pair.b, "verbs_datagrams_repeated");
        assert!(repeated > 0, "nothing was lost");
        assert_eq!(connections(&device).len(), 0);
        drop(pair);
        assert_clean(&device);
    }
}

/// A new lane gets the place of a lane that is down, but that the hub, busy with completions of
/// other peers, has not retired: packets that are lost on the new lane are repeated all the same.
#[test]
fn a_lane_that_replaces_another() {
    /// So many completions are the hub's before it parts with any lane.
    const BACKLOG: u64 = 500;
    if !has_shared_receives() {
        return;
    }
    let device = FakeDevice::take();
    let mut hub = endpoint(&[("FERRO_LANE", "ud"), ("FERRO_RX_BUFFERS", "1024")]);
    let data = data_queue_pair(&device, &hub);
    let [mut busy, mut leaves, mut comes] =
        ["rc", "ud", "ud"].map(|lane| HubPeer::of(&hub, &[("FERRO_LANE", lane)]));
    for spoke in [&mut busy, &mut leaves] {
        hub.trecv(room(8), spoke.from_hub, 0, 0, 1)
            .map_err(first)
            .unwrap();
        (spoke.end)
            .tsend(message(8, 0), 8, spoke.to_hub, 0, 2)
            .map_err(first)
            .unwrap();
        for done in run(&mut [&mut hub, &mut spoke.end], 2) {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
        }
    }
    assert_eq!(count(&hub, "verbs_ud_lanes"), 1);
    for _ in 0..BACKLOG {
        (busy.end)
            .tsend(message(8, 0), 8, busy.to_hub, 1, 3)
            .map_err(first)
            .unwrap();
    }
    run(&mut [&mut busy.end], BACKLOG as usize);
    // The peer closes, and at return the hub's service thread has handled its close message.
    drop(leaves);
    (comes.end)
        .trecv(room(8), comes.to_hub, 2, 0, 4)
        .map_err(first)
        .unwrap();
    hub.tsend(message(8, 2), 8, comes.from_hub, 2, 5)
        .map_err(first)
        .unwrap();
    let begun = Instant::now();
    let until = |end: &mut OwningEndpoint, reached: &dyn Fn(&OwningEndpoint) -> bool| {
        while !reached(end) {
            assert!(end.poll().unwrap().is_none());
            assert!(begun.elapsed() < PATIENCE, "no lane, or nothing is sent");
        }
    };
    until(&mut comes.end, &|end| count(end, "verbs_ud_lanes") == 1);
    // The packets of the new peer are lost: it sends one as soon as the lane is up at the hub.
    let lose = |from| Fault::new(FaultPoint::Datagram, FaultEffect::Lose).on(from);
    let from_newcomer = data_queue_pair(&device, &comes.end);
    device.script(lose(from_newcomer));
    device.script(lose(from_newcomer).times(u32::MAX));
    (comes.end)
        .tsend(message(8, 3), 8, comes.to_hub, 3, 6)
        .map_err(first)
        .unwrap();
    until(&mut comes.end, &|_| device.faults_left() == 1);
    device.script(lose(data));
    until(&mut hub, &|_| device.faults_left() == 1);
    // Of the one that has left the hub has not taken leave.
    assert_eq!(count(&hub, "verbs_sessions_now"), 3);
    let done = run(&mut [&mut hub, &mut comes.end], 1).pop().unwrap();
    assert!(done.outcome.is_ok() && done.token == 4, "{done:?}");
    check(&done.buffer, 2, "repeated");
    device.reset();
    for done in run(&mut [&mut hub, &mut comes.end], 2) {
        assert!(done.outcome.is_ok(), "{:?}", done.outcome);
    }
    drop((hub, busy.end, comes.end));
    assert_clean(&device);
}

/// A session moves to RC while datagrams are under way, and some of them, and of the handshake, are
/// lost.
#[test]
fn promotion_under_load_loses_nothing() {
    for seed in 0..10 {
        println!("seed {seed}");
        let mut rng = Rng::with_seed(seed);
        let device = FakeDevice::take();
        let mut pair = PeerPair::open(AUTO);
        for _ in 0..rng.u32(..8) {
            let after = rng.u32(..100);
            device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).after(after));
        }
        for round in 0..3 {
            let traffic = pair.traffic(1000 * (round + 1), 40, || ());
            assert_eq!((traffic.sent, traffic.received), (80, 80), "{traffic:?}");
        }
        device.reset();
        assert_eq!(connections(&device).len(), 2);
        drop(pair);
        assert_clean(&device);
    }
}

/// A peer as the hub knows it.
pub(crate) struct HubPeer {
    pub(crate) end: OwningEndpoint,
    pub(crate) to_hub: FiAddr,
    pub(crate) from_hub: FiAddr,
}

impl HubPeer {
    /// One that the hub knows, and that knows it.
    pub(crate) fn of(hub: &OwningEndpoint, settings: &[(&str, &str)]) -> Self {
        let end = endpoint(settings);
        let to_hub = end.av().insert(&hub.name().to_bytes()).unwrap();
        let from_hub = hub.av().insert(&end.name().to_bytes()).unwrap();
        Self {
            end,
            to_hub,
            from_hub,
        }
    }
}

/// Messages of all sizes between a hub and its peers, both ways, in rounds; never more queue pairs
/// than the hub may have.
fn hub_and_spokes(device: &FakeDevice, hub: &[(&str, &str)], others: &[(&str, &str)], cap: usize) {
    const SPOKES: usize = 5;
    let mut hub = endpoint(hub);
    let mut spokes: Vec<HubPeer> = (0..SPOKES).map(|_| HubPeer::of(&hub, others)).collect();
    let sizes = [8, 700, 5000, 60_000];
    for round in 0..6u64 {
        let size = |at: usize| sizes[(round as usize + at) % sizes.len()];
        let mut left = 0;
        for tag in (0..8).map(|n| 100 * round + n) {
            for (at, spoke) in spokes.iter_mut().enumerate() {
                let (bytes, seed) = (size(at), (tag << 8) | at as u64);
                hub.trecv(room(bytes), spoke.from_hub, tag, 0, seed)
                    .map_err(first)
                    .unwrap();
                spoke
                    .end
                    .trecv(room(bytes), spoke.to_hub, tag, 0, seed)
                    .map_err(first)
                    .unwrap();
                hub.tsend(message(bytes, seed), bytes, spoke.from_hub, tag, SENT)
                    .map_err(first)
                    .unwrap();
                spoke
                    .end
                    .tsend(message(bytes, !seed), bytes, spoke.to_hub, tag, SENT)
                    .map_err(first)
                    .unwrap();
                left += 4;
            }
        }
        let begun = Instant::now();
        while left > 0 {
            // Those in error wait for their last receives, and others are not made yet.
            let works = |qp: &QueuePairView| {
                qp.kind == ibv_qp_type::IBV_QPT_RC.0 && qp.state == ibv_qp_state::IBV_QPS_RTS.0
            };
            let lanes = device.queue_pairs().iter().filter(|qp| works(qp)).count();
            assert!(lanes <= 2 * cap + SPOKES, "{lanes} queue pairs");
            assert!(
                begun.elapsed() < PATIENCE,
                "round {round}: {left} operations are not over: {}",
                pending_operations(
                    std::iter::once(&hub).chain(spokes.iter().map(|spoke| &spoke.end))
                )
            );
            let ends = std::iter::once(&mut hub).chain(spokes.iter_mut().map(|s| &mut s.end));
            for (at, end) in ends.enumerate() {
                let Some(done) = end.poll().unwrap() else {
                    continue;
                };
                left -= 1;
                let what = format!("round {round}, end {at}, operation {:#x}", done.token);
                let completion = done.outcome.unwrap_or_else(|e| panic!("{what}: {e:?}"));
                if done.token != SENT {
                    let seed = if at == 0 { !done.token } else { done.token };
                    check(&done.buffer[..completion.len], seed, &what);
                }
            }
        }
    }
    assert!(
        count(&hub, "verbs_lanes_recycled") > 0
            || spokes
                .iter()
                .any(|spoke| count(&spoke.end, "verbs_lanes_recycled") > 0),
        "no lane was recycled"
    );
}

const SENT: u64 = u64::MAX;

/// Two lanes, five peers, each of which wants one again and again.
#[test]
fn lanes_are_recycled_at_the_cap() {
    for lane in ["rc", "auto", "ud"] {
        println!("{lane}");
        let device = FakeDevice::take();
        let capped = [("FERRO_LANE", lane), ("FERRO_MAX_LANES", "2")];
        hub_and_spokes(&device, &capped, &[("FERRO_LANE", lane)], 2);
        assert_clean(&device);
    }
}

/// The device itself has no more queue pairs.
#[test]
fn a_device_that_refuses_queue_pairs() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::open(&[]);
    device.fail_call("ibv_create_qp", 0, u32::MAX, libc_enomem());
    let begun = Instant::now();
    for tag in 0..50 {
        pair.exchange(8, tag);
    }
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!(connections(&device).len(), 0);
    device.reset();
    pair.exchange(100_000, 100);
    assert_eq!(connections(&device).len(), 2);
    drop(pair);
    assert_clean(&device);
}

fn libc_enomem() -> i32 {
    12
}
