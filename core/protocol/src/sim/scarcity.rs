//! Fewer queue pairs than lanes that are requested: endpoints take turns, and no request waits for
//! ever.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use super::network::{SimNetwork, Weather};
use super::node::NodeEffect;
use super::unit::{NOW, hello_of, node, packets, rejected};
use crate::handshake::HandshakeConfig;
use crate::wire::control::{Keys, LaneKind, RejectReason};

const SECOND: Duration = Duration::from_secs(1);

/// Gives up each lane that both ends have, as engines do that have nothing more to say on it, until
/// each request was served. Says whether that came to pass.
fn serve_all(network: &mut SimNetwork, limit: Duration) -> bool {
    let end = network.now + limit;
    while !network.no_request_is_open() {
        if !network.step(end) {
            return false;
        }
        for at in 0..network.nodes.len() {
            let lanes = network.nodes[at].lanes.iter();
            let done: Vec<_> = lanes
                .filter(|(_, lane)| lane.may_send)
                .map(|(&key, _)| key)
                .collect();
            for lane in done {
                network.act(at, |node, now| node.recycle(now, lane));
            }
        }
    }
    true
}

/// Each node has one queue pair, and the next node in the circle is to be at its other end. A node
/// that keeps its queue pair while it waits for the next one's waits for itself.
#[test]
fn a_circle_of_nodes_with_a_queue_pair_each() {
    for seed in 0..50 {
        for nodes in 3..8 {
            let config = HandshakeConfig::default();
            let mut network = SimNetwork::new(nodes, config, Weather::FAIR, seed);
            for at in 0..nodes {
                network.nodes[at].queue_pairs_left = 1;
                network.connect(at, (at + 1) % nodes);
            }
            assert!(
                serve_all(&mut network, 300 * SECOND),
                "{nodes} nodes wait in a circle, seed {seed}"
            );
        }
    }
}

/// All nodes share a device. One of them, or both ends of each pair, take the last queue pairs, and
/// wait for the other ends'.
#[test]
fn a_device_with_few_queue_pairs_for_many_peers() {
    for seed in 0..50 {
        for (queue_pairs, both) in [(2, false), (2, true), (3, true), (4, false), (5, true)] {
            let config = HandshakeConfig::default();
            let mut network = SimNetwork::new(9, config, Weather::FAIR, seed);
            let left = Rc::new(Cell::new(queue_pairs));
            for node in &mut network.nodes {
                node.of_device = Some(Rc::clone(&left));
            }
            for peer in 1..9 {
                network.connect(0, peer);
                if both {
                    network.connect(peer, 0);
                }
            }
            assert!(
                serve_all(&mut network, 300 * SECOND),
                "{queue_pairs} queue pairs, both ends request: {both}, seed {seed}"
            );
            network.run_for(SECOND);
            assert_eq!(left.get(), queue_pairs);
        }
    }
}

#[test]
fn a_responder_without_queue_pairs_answers_busy_and_stores_nothing() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    b.queue_pairs_left = 0;
    let hello = hello_of(&mut a, b.key);
    let [NodeEffect::Make(lane)] = b.receive(NOW, &hello.to_bytes())[..] else {
        panic!()
    };
    let reject = rejected(&b.make(NOW, lane), RejectReason::Busy);
    assert!(b.connector.is_idle());
    let mut now = NOW;
    a.receive(now, &reject.to_bytes());
    // It begins anew after the busy interval, spread by a quarter, which doubles as long as there
    // is no room. Meanwhile it has no queue pair that others may need.
    for tries in 0..4 {
        assert!(a.failures.is_empty() && a.lanes.is_empty());
        let next = a.connector.next_timeout().unwrap();
        let busy = HandshakeConfig::default().intervals.busy_interval * (1 << tries);
        assert!(next - now >= busy * 3 / 4 && next - now <= busy * 5 / 4);
        now = next;
        let [NodeEffect::Make(lane)] = a.timeout(now)[..] else {
            panic!()
        };
        let again = packets(&a.make(now, lane))[0].1;
        assert!(again.lane.epoch > hello.lane.epoch);
        let [NodeEffect::Make(lane)] = b.receive(now, &again.to_bytes())[..] else {
            panic!()
        };
        let reject = rejected(&b.make(now, lane), RejectReason::Busy);
        a.receive(now, &reject.to_bytes());
    }
}

/// A wait for room is no silence of the peer, however short the engine's patience with that is.
#[test]
fn a_wait_for_room_is_not_limited_by_the_limit_of_silence() {
    let limit = Duration::from_millis(50);
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    b.queue_pairs_left = 0;
    a.requested.insert(b.key);
    let mut out = Vec::new();
    (a.connector).connect(NOW, b.key, LaneKind::Rc, Some(limit), &mut out);
    let mut effects = a.perform(out);
    let mut now = NOW;
    for _ in 0..20 {
        let [NodeEffect::Make(lane)] = effects[..] else {
            panic!("{effects:?}: {:?}", a.failures)
        };
        let hello = packets(&a.make(now, lane))[0].1;
        let [NodeEffect::Make(lane)] = b.receive(now, &hello.to_bytes())[..] else {
            panic!()
        };
        let reject = rejected(&b.make(now, lane), RejectReason::Busy);
        a.receive(now, &reject.to_bytes());
        effects = Vec::new();
        while effects.is_empty() && a.failures.is_empty() {
            now = a.connector.next_timeout().unwrap();
            effects = a.timeout(now);
        }
    }
}
