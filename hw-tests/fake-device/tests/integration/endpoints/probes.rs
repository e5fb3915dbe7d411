//! Probes of idle lanes: they take nothing from peers that are busy, and find those that are dead.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, NetworkFaults};
use ferrofabric_fake_device::profile::DeviceProfile;
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_system::clock::HandClock;

use crate::endpoints::nic::has_lanes_for;
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, domain_at, first, message, pending_operations, room, stat,
};

const SECOND: Duration = Duration::from_secs(1);

/// A hub, and peers of it that one poll drives together.
struct IdlePeers {
    clock: HandClock,
    // The peers close first, and the hub answers them.
    peers: Vec<OwningEndpoint>,
    hub: OwningEndpoint,
    to_peers: Vec<FiAddr>,
}

impl IdlePeers {
    /// Peers that have exchanged a message with the hub.
    fn open(count: usize, hub_buffers: &str) -> Self {
        let clock = HandClock::new();
        let at = |buffers| {
            domain_at(
                &clock,
                &[("FERRO_RX_BUFFERS", buffers), ("FERRO_LANE", "rc")],
            )
        };
        let open =
            |domain: &Arc<dyn Domain>| OwningEndpoint::open(&**domain, &AvAttr::default()).unwrap();
        let hub = open(&at(hub_buffers));
        let of_peers = at("16");
        let mut this = Self {
            clock,
            peers: Vec::new(),
            hub,
            to_peers: Vec::new(),
        };
        for number in 0..count {
            let peer = open(&of_peers);
            let to_peer = this.hub.av().insert(&peer.name().to_bytes()).unwrap();
            let to_hub = peer.av().insert(&this.hub.name().to_bytes()).unwrap();
            this.peers.push(peer);
            this.to_peers.push(to_peer);
            this.greet(number, to_hub);
        }
        this
    }

    /// A message each way.
    fn greet(&mut self, number: usize, to_hub: FiAddr) {
        let (hub, peer) = (&mut self.hub, &mut self.peers[number]);
        let to_peer = self.to_peers[number];
        for end in [&mut *hub, &mut *peer] {
            let receive = end.trecv(room(8), FiAddr::UNSPEC, 1, 0, 1);
            receive.map_err(first).unwrap();
        }
        let sent = peer.tsend(message(8, 1), 8, to_hub, 1, 2);
        sent.map_err(first).unwrap();
        let sent = hub.tsend(message(8, 1), 8, to_peer, 1, 2);
        sent.map_err(first).unwrap();
        let begun = Instant::now();
        let mut over = 0;
        while over < 4 {
            let ends = [&*hub, &*peer];
            assert!(begun.elapsed() < PATIENCE, "{}", pending_operations(ends));
            for end in [&mut *hub, &mut *peer] {
                if let Some(done) = end.poll().unwrap() {
                    assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                    over += 1;
                }
            }
        }
    }

    /// Lets a second pass, in which the peers are driven, and the hub is not.
    fn second_of_peers(&mut self) {
        self.clock.advance(SECOND);
        // The first call takes what the service thread requests, the second its effect.
        for _ in 0..2 {
            assert!(self.peers[0].poll().unwrap().is_none());
        }
    }
}

/// A rank that computes for a minute beside idle peers that are driven: it has all its receive
/// buffers left.
#[test]
fn idle_peers_take_no_receive_buffer_of_one_that_computes() {
    const BUFFERS: &str = "16";
    // A thousand take a minute.
    let peers = [300, 1000][usize::from(std::env::var_os("FERRO_SOAK").is_some())];
    if !has_lanes_for(peers) {
        return;
    }
    let device = FakeDevice::take();
    let mut idle = IdlePeers::open(peers, BUFFERS);
    // A peer that has yet to read of its greeting's lane is not requested to probe.
    idle.second_of_peers();
    let posts = device.calls("ibv_post_send");
    let received = stat(&idle.hub, "verbs_packets_received");
    for _ in 0..60 {
        idle.second_of_peers();
    }
    let probes = device.calls("ibv_post_send") - posts;
    while idle.hub.poll().unwrap().is_some() {}
    let taken = stat(&idle.hub, "verbs_packets_received") - received;
    assert_eq!(taken, 0, "receive buffers were taken");
    assert_eq!(probes, 60 / 4 * peers as u64);
    assert_eq!(stat(&idle.hub, "verbs_lanes_failed"), 0);
    drop(idle);
    assert_clean(&device);
}

/// Idle lanes on each kind of NIC: a probe kills no session that is healthy. Some drivers fill a
/// request without entries from the memory behind it.
#[test]
fn idle_lanes_stay_up_on_each_kind_of_nic() {
    for name in DeviceProfile::names() {
        if DeviceProfile::named(name).is_some_and(DeviceProfile::carries_reliable_datagrams) {
            // A message that is inline on most NICs, and one that is in a registered buffer.
            for bytes in [8, 3000] {
                idle_lanes_stay_up_on(name, bytes);
            }
        }
    }
}

fn idle_lanes_stay_up_on(nic: &str, bytes: usize) {
    let device = FakeDevice::take();
    device.become_nic(nic);
    let clock = HandClock::new();
    let open = || {
        let domain = domain_at(&clock, &[("FERRO_LANE", "rc")]);
        OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap()
    };
    let (a, b) = (open(), open());
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    let mut pair = PeerPair { a, b, to_b, to_a };
    pair.exchange(bytes, 1);
    // A lane is probed where somebody waits for its peer.
    let receive = pair.a.trecv(room(8), pair.to_b, 77, 0, 5);
    receive.map_err(first).unwrap();
    let posts = device.calls("ibv_post_send");
    for _ in 0..10 {
        clock.advance(SECOND);
        for _ in 0..8 {
            for end in [&mut pair.a, &mut pair.b] {
                let over = end.poll().unwrap();
                assert!(over.is_none(), "{nic}, after {bytes} bytes: {over:?}");
            }
        }
    }
    assert!(
        device.calls("ibv_post_send") > posts,
        "{nic}: no lane was probed"
    );
    let failed = [&pair.a, &pair.b].map(|end| stat(end, "verbs_lanes_failed"));
    assert_eq!(
        failed,
        [0, 0],
        "{nic}: lanes that failed in ten idle seconds, after messages of {bytes} bytes"
    );
    // The receive has its message, by the same lane.
    let sent = pair.b.tsend(message(8, 1), 8, pair.to_a, 77, 6);
    sent.map_err(first).unwrap();
    for done in pair.run(2) {
        assert!(done.outcome.is_ok(), "{nic}: {:?}", done.outcome);
    }
}

/// One that has many idle lanes probes a few at a time, each of them in its turn.
#[test]
fn idle_lanes_are_probed_a_few_at_a_time() {
    if !has_lanes_for(300) {
        return;
    }
    const PEERS: u64 = 300;
    const AT_ONCE: u64 = 64;

    let device = FakeDevice::take();
    let mut idle = IdlePeers::open(PEERS as usize, "16");
    // The completions of the greetings may be missing: such lanes are probed before others.
    idle.clock.advance(SECOND);
    while idle.hub.poll().unwrap().is_some() {}
    let begun = device.calls("ibv_post_send");
    let mut before = begun;
    for _ in 0..PEERS {
        idle.clock.advance(SECOND);
        // A call takes no more than 16 completions.
        for _ in 0..8 {
            assert!(idle.hub.poll().unwrap().is_none());
        }
        let now = device.calls("ibv_post_send");
        assert!(now - before <= AT_ONCE, "{} at once", now - before);
        before = now;
    }
    assert_eq!(before - begun, PEERS * AT_ONCE);
    drop(idle);
    assert_clean(&device);
}

/// A peer that is dead is found though nothing is sent to it: in four seconds, for so few lanes.
#[test]
fn a_dead_peer_is_found_by_a_probe() {
    let device = FakeDevice::take();
    // Enough for a lane to each, also where each lane has receives of its own.
    let mut idle = IdlePeers::open(5, "64");
    let receive = (idle.hub).trecv(room(8), idle.to_peers[3], 9, 0, 7);
    receive.map_err(first).unwrap();
    // A process that is killed says nothing, so the network loses the last packets of this one.
    let mute = NetworkFaults {
        lost: 100,
        ..NetworkFaults::default()
    };
    device.network(&mute);
    drop(idle.peers.remove(3));
    device.network(&NetworkFaults::default());
    let mut found = None;
    for _ in 0..4 {
        assert!(found.is_none());
        idle.clock.advance(SECOND);
        for _ in 0..4 {
            found = found.or(idle.hub.poll().unwrap());
        }
    }
    assert_eq!(stat(&idle.hub, "verbs_lanes_failed"), 1);
    drop(idle);
}
