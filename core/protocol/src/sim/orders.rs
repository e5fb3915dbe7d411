//! Two nodes, every order of events: an exhaustive search over deliveries, queue pair steps,
//! losses, repeats and early timers.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::node::{NodeEffect, SimNode, assert_one_lane, index_of, key_of};
use crate::Time;
use crate::handshake::HandshakeConfig;
use crate::wire::control::LaneKind;

#[derive(Clone)]
struct OrdersWorld {
    now: Time,
    nodes: [SimNode; 2],
    /// Effects that can happen next, in any order, each with its node.
    pending: Vec<(usize, NodeEffect)>,
    losses: u32,
    repeats: u32,
    early_timers: u32,
    /// Lanes that the engines have yet to request, at any time.
    connects: Vec<(usize, usize)>,
    /// Lanes that the engines have yet to close, at any time after they are up.
    closes: Vec<(usize, usize)>,
    /// The kind of lane that each engine requests.
    kinds: [LaneKind; 2],
    /// Engines that still have to leave their lane for one of the other kind, at any time after it
    /// is up.
    changes: Vec<usize>,
    /// Engines that still have to leave the lane to a peer, at any time after it is up.
    leaves: Vec<(usize, usize)>,
    /// Requests that the engines may still cancel, at any time before the lane is up.
    cancels: Vec<(usize, usize)>,
}

struct OrderSearch {
    seen: HashSet<u64>,
    /// Worlds to look at, and how many timers fired in a row to get there.
    open: Vec<(OrdersWorld, u32)>,
    ends: usize,
    check: fn(&OrdersWorld),
}

impl OrdersWorld {
    fn new(connects: &[(usize, usize)]) -> Self {
        let node = |index| {
            SimNode::new(
                index,
                0,
                HandshakeConfig {
                    seed: (40 + index as u64).into(),
                    ..HandshakeConfig::default()
                },
            )
        };
        OrdersWorld {
            now: Time(1),
            nodes: [node(0), node(1)],
            pending: Vec::new(),
            losses: 0,
            repeats: 0,
            early_timers: 0,
            connects: connects.to_vec(),
            closes: Vec::new(),
            kinds: [LaneKind::Rc; 2],
            changes: Vec::new(),
            leaves: Vec::new(),
            cancels: Vec::new(),
        }
    }

    fn add(&mut self, at: usize, effects: Vec<NodeEffect>) {
        self.pending
            .extend(effects.into_iter().map(|effect| match &effect {
                NodeEffect::Send { to, .. } => (index_of(to), effect),
                NodeEffect::Make(_) | NodeEffect::Connect(_) => (at, effect),
            }));
    }

    fn happen(&mut self, at: usize, effect: &NodeEffect) {
        let node = &mut self.nodes[at];
        let effects = match effect {
            NodeEffect::Send { bytes, .. } => node.receive(self.now, bytes),
            NodeEffect::Make(lane) => node.make(self.now, *lane),
            NodeEffect::Connect(lane) => node.connect_lane(self.now, *lane),
        };
        self.add(at, effects);
    }

    fn fire(&mut self, at: usize) {
        if let Some(next) = self.nodes[at].connector.next_timeout() {
            self.now = self.now.max(next);
            let effects = self.nodes[at].timeout(self.now);
            self.add(at, effects);
        }
    }

    /// A fingerprint of all that decides the future. Order and number of equal datagrams do not.
    fn fingerprint(&self) -> u64 {
        let mut pending: Vec<String> = self.pending.iter().map(|p| format!("{p:?}")).collect();
        pending.sort();
        let mut hasher = DefaultHasher::new();
        (pending, self.losses, self.repeats, self.early_timers).hash(&mut hasher);
        (&self.connects, &self.closes, &self.changes, self.now).hash(&mut hasher);
        (&self.leaves, &self.cancels).hash(&mut hasher);
        for node in &self.nodes {
            format!("{node:?}").hash(&mut hasher);
        }
        hasher.finish()
    }

    fn has_requests(&self) -> bool {
        self.nodes.iter().any(|node| !node.requested.is_empty())
            || self
                .nodes
                .iter()
                .any(|node| node.lanes.values().any(|lane| !lane.may_send))
            || self.nodes.iter().any(|node| {
                node.connector.next_timeout().is_some()
                    && !node.connector.is_idle()
                    && node.lanes.is_empty()
            })
    }
}

impl OrderSearch {
    fn run(world: OrdersWorld, check: fn(&OrdersWorld)) -> usize {
        let mut search = OrderSearch {
            open: vec![(world, 0)],
            seen: HashSet::new(),
            ends: 0,
            check,
        };
        while let Some((world, quiet_fires)) = search.open.pop() {
            search.visit(world, quiet_fires);
        }
        search.ends
    }

    fn open_up(&mut self, world: OrdersWorld, quiet_fires: u32) {
        self.open.push((world, quiet_fires));
    }

    fn visit(&mut self, world: OrdersWorld, quiet_fires: u32) {
        if !self.seen.insert(world.fingerprint()) {
            return;
        }
        assert!(self.seen.len() < 3_000_000, "the search has no end");
        for (index, &(at, to)) in world.connects.iter().enumerate() {
            let mut next = world.clone();
            next.connects.remove(index);
            let kind = next.kinds[at];
            let effects = next.nodes[at].connect_by(next.now, key_of(to, 0), kind);
            next.add(at, effects);
            self.open_up(next, 0);
        }
        for (index, &(at, to)) in world.closes.iter().enumerate() {
            if world.nodes[at].usable(&key_of(to, 0)).is_some() {
                let mut next = world.clone();
                next.closes.remove(index);
                let effects = next.nodes[at].close(next.now, key_of(to, 0));
                next.add(at, effects);
                self.open_up(next, 0);
            }
        }
        for (index, &(at, to)) in world.leaves.iter().enumerate() {
            if let Some((lane, _)) = world.nodes[at].usable(&key_of(to, 0)) {
                let mut next = world.clone();
                next.leaves.remove(index);
                let effects = next.nodes[at].leave(next.now, lane);
                next.add(at, effects);
                self.open_up(next, 0);
            }
        }
        for (index, &(at, to)) in world.cancels.iter().enumerate() {
            if world.nodes[at].requested.contains(&key_of(to, 0)) {
                let mut next = world.clone();
                next.cancels.remove(index);
                let effects = next.nodes[at].cancel(next.now, key_of(to, 0));
                next.add(at, effects);
                self.open_up(next, 0);
            }
        }
        for (index, &at) in world.changes.iter().enumerate() {
            let lanes = world.nodes[at].lanes.iter();
            let up = lanes
                .filter(|(_, lane)| lane.up.is_some())
                .map(|(&key, _)| key);
            for lane in up {
                let mut next = world.clone();
                next.changes.remove(index);
                let effects = next.nodes[at].change(next.now, lane);
                next.add(at, effects);
                self.open_up(next, 0);
            }
        }
        for index in 0..world.pending.len() {
            let (at, effect) = world.pending[index].clone();
            if world.pending[..index].contains(&(at, effect.clone())) {
                continue;
            }
            // The steps of one node's service thread keep their order.
            let is_step = |other: &NodeEffect| !matches!(other, NodeEffect::Send { .. });
            if is_step(&effect)
                && world.pending[..index]
                    .iter()
                    .any(|(node, other)| *node == at && is_step(other))
            {
                continue;
            }
            let mut next = world.clone();
            next.pending.remove(index);
            if !is_step(&effect) {
                if world.losses > 0 {
                    let mut lost = next.clone();
                    lost.losses -= 1;
                    self.open_up(lost, quiet_fires);
                }
                if world.repeats > 0 {
                    let mut repeated = world.clone();
                    repeated.repeats -= 1;
                    repeated.happen(at, &effect);
                    self.open_up(repeated, 0);
                }
            }
            next.happen(at, &effect);
            self.open_up(next, 0);
        }
        for at in 0..2 {
            if world.early_timers > 0
                && !world.pending.is_empty()
                && world.nodes[at].connector.next_timeout().is_some()
            {
                let mut next = world.clone();
                next.early_timers -= 1;
                next.fire(at);
                self.open_up(next, 0);
            }
        }
        if !world.pending.is_empty() || !world.connects.is_empty() || !world.changes.is_empty() {
            return;
        }
        if world.has_requests() {
            assert!(quiet_fires < 40, "stalled: {:#?}", world.nodes);
            let mut next = world.clone();
            let due = |at: usize| {
                world.nodes[at]
                    .connector
                    .next_timeout()
                    .unwrap_or(Time(u64::MAX))
            };
            next.fire(usize::from(due(1) < due(0)));
            self.open_up(next, quiet_fires + 1);
            return;
        }
        let mut ended = world.closes.iter().chain(&world.leaves);
        if ended.all(|&(at, to)| world.nodes[at].usable(&key_of(to, 0)).is_none()) {
            self.ends += 1;
            (self.check)(&world);
        }
    }
}

/// One lane, the same at both ends, one queue pair made by each.
fn one_lane(world: &OrdersWorld) {
    let [a, b] = &world.nodes;
    let (to_b, to_a) = (
        a.usable(&b.key).expect("a's lane"),
        b.usable(&a.key).expect("b's lane"),
    );
    assert_one_lane(to_b, to_a);
    assert_eq!((a.lanes.len(), b.lanes.len()), (1, 1));
    assert!(a.failures.is_empty() && b.failures.is_empty());
    assert!(a.downs.is_empty() && b.downs.is_empty());
}

fn one_lane_from_one_queue_pair(world: &OrdersWorld) {
    one_lane(world);
    assert_eq!(
        (world.nodes[0].makes, world.nodes[1].makes),
        (1, 1),
        "a queue pair was made in vain"
    );
}

/// Either nothing is left, or both have one lane: a fresh one, since someone asked once more.
fn none_or_one(world: &OrdersWorld) {
    let [a, b] = &world.nodes;
    match (a.usable(&b.key), b.usable(&a.key)) {
        (Some(a), Some(b)) => assert_one_lane(a, b),
        (None, None) => assert!(a.lanes.is_empty() && b.lanes.is_empty()),
        (Some(_), None) | (None, Some(_)) => panic!("half a lane: {:#?}", world.nodes),
    }
}

const BOTH: [(usize, usize); 2] = [(0, 1), (1, 0)];

#[test]
fn one_side_connects() {
    for connects in [[(0, 1)], [(1, 0)]] {
        let world = OrdersWorld {
            losses: 1,
            repeats: 1,
            early_timers: 1,
            ..OrdersWorld::new(&connects)
        };
        assert!(OrderSearch::run(world, one_lane_from_one_queue_pair) > 0);
    }
}

#[test]
fn both_connect_at_once() {
    let world = OrdersWorld {
        repeats: 1,
        early_timers: 1,
        ..OrdersWorld::new(&BOTH)
    };
    assert!(OrderSearch::run(world, one_lane_from_one_queue_pair) > 0);
    let world = OrdersWorld {
        losses: 2,
        ..OrdersWorld::new(&BOTH)
    };
    assert!(OrderSearch::run(world, one_lane_from_one_queue_pair) > 0);
}

#[test]
fn connecting_to_itself_takes_one_queue_pair() {
    let ends = OrderSearch::run(OrdersWorld::new(&[(0, 0)]), |world| {
        let node = &world.nodes[0];
        let own = node.usable(&node.key).expect("a lane");
        assert_one_lane(own, own);
        assert_eq!(node.makes, 1);
    });
    assert_eq!(ends, 1);
}

#[test]
fn close_and_connect_cross() {
    for closes in [vec![(0, 1)], vec![(1, 0)], vec![(0, 1), (1, 0)]] {
        let world = OrdersWorld {
            closes,
            repeats: 1,
            losses: 1,
            ..OrdersWorld::new(&[(0, 1)])
        };
        assert!(OrderSearch::run(world, none_or_one) > 0);
    }
    let world = OrdersWorld {
        closes: vec![(0, 1)],
        ..OrdersWorld::new(&[(0, 1), (1, 0), (0, 1)])
    };
    assert!(OrderSearch::run(world, none_or_one) > 0);
}

/// Both ends have the same lane, also if one was left on the way.
fn agreed(world: &OrdersWorld) {
    let [a, b] = &world.nodes;
    let (a, b) = (a.usable(&b.key), b.usable(&a.key));
    assert_one_lane(a.expect("a lane"), b.expect("a lane"));
}

#[test]
fn both_request_different_kinds() {
    for kinds in [[LaneKind::Rc, LaneKind::Ud], [LaneKind::Ud, LaneKind::Rc]] {
        let world = OrdersWorld {
            kinds,
            repeats: 1,
            ..OrdersWorld::new(&BOTH)
        };
        assert!(OrderSearch::run(world, agreed) > 0);
        let world = OrdersWorld {
            kinds,
            losses: 1,
            ..OrdersWorld::new(&BOTH)
        };
        assert!(OrderSearch::run(world, agreed) > 0);
    }
}

#[test]
fn a_lane_is_left_for_one_of_the_other_kind() {
    for changes in [vec![0], vec![1], vec![0, 1]] {
        let world = OrdersWorld {
            kinds: [LaneKind::Ud; 2],
            losses: usize::from(changes.len() == 1) as u32,
            changes,
            ..OrdersWorld::new(&[(0, 1)])
        };
        assert!(OrderSearch::run(world, agreed) > 0);
    }
}

/// A lane is left by one side or both, while either may request it again: each time both ends learn
/// it.
///
/// Covers: AV-17
#[test]
fn a_lane_is_left_and_requested_again() {
    for leaves in [vec![(0, 1)], vec![(1, 0)], vec![(0, 1), (1, 0)]] {
        for again in [(0, 1), (1, 0)] {
            let world = OrdersWorld {
                leaves: leaves.clone(),
                repeats: 1,
                ..OrdersWorld::new(&[(0, 1), again])
            };
            assert!(OrderSearch::run(world, none_or_one) > 0);
        }
    }
}

/// An engine cancels its request for a lane, at any time; the other side may request one as well.
///
/// Covers: AV-17
#[test]
fn a_request_is_cancelled() {
    for connects in [&[(0, 1)][..], &BOTH] {
        for losses in [0, 1] {
            let world = OrdersWorld {
                cancels: vec![(0, 1)],
                losses,
                repeats: 1 - losses,
                ..OrdersWorld::new(connects)
            };
            assert!(OrderSearch::run(world, none_or_one) > 0);
        }
    }
}
