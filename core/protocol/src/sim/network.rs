//! Many nodes, a lossy, repeating, reordering network between them, and a clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::time::Duration;

use fastrand::Rng;

use super::node::{NodeEffect, NodeLane, SimNode, assert_one_lane, index_of, key_of};
use crate::handshake::{HandshakeConfig, LaneKey};
use crate::{PeerKey, Time};

/// How datagrams fare.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weather {
    /// Parts of a million that get lost.
    pub(super) loss_ppm: u64,
    /// Parts of a million that arrive twice.
    pub(super) repeat_ppm: u64,
    /// Shortest way.
    pub(super) delay: Duration,
    /// Added to it at random: as this exceeds the gaps between datagrams, they overtake each other.
    pub(super) jitter: Duration,
    /// Parts of a million that come very late, by up to a second.
    pub(super) late_ppm: u64,
    /// Time that the service thread spends on each queue pair step, one after the other.
    pub(super) step: Duration,
}

impl Weather {
    pub(super) const FAIR: Weather = Weather {
        loss_ppm: 0,
        repeat_ppm: 0,
        delay: Duration::from_micros(5),
        jitter: Duration::from_micros(5),
        late_ppm: 0,
        step: Duration::from_micros(100),
    };
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NetworkEvent {
    Arrive { to: usize, bytes: Box<[u8]> },
    Make { at: usize, life: u64, lane: LaneKey },
    Connect { at: usize, life: u64, lane: LaneKey },
    Timer { at: usize },
}

pub(super) struct SimNetwork {
    pub(super) now: Time,
    pub(super) nodes: Vec<SimNode>,
    pub(super) weather: Weather,
    pub(super) datagrams: u64,
    config: HandshakeConfig,
    lives: Vec<u64>,
    busy_until: Vec<Time>,
    /// The earliest timer event queued for each node.
    timer: Vec<Option<Time>>,
    events: BinaryHeap<Reverse<(Time, u64, NetworkEvent)>>,
    order: u64,
    rng: Rng,
}

impl SimNetwork {
    pub(super) fn new(nodes: usize, config: HandshakeConfig, weather: Weather, seed: u64) -> Self {
        let mut network = SimNetwork {
            now: Time(1),
            nodes: Vec::new(),
            weather,
            datagrams: 0,
            config,
            lives: vec![0; nodes],
            busy_until: vec![Time(0); nodes],
            timer: vec![None; nodes],
            events: BinaryHeap::new(),
            order: 0,
            rng: Rng::with_seed(seed),
        };
        for index in 0..nodes {
            let node = network.fresh(index, 0);
            network.nodes.push(node);
        }
        network
    }

    fn fresh(&mut self, index: usize, life: u64) -> SimNode {
        SimNode::new(
            index,
            life,
            HandshakeConfig {
                seed: self.rng.u64(..).into(),
                ..self.config
            },
        )
    }

    /// The process at `index` dies and another takes its place.
    pub(super) fn restart(&mut self, index: usize) {
        self.lives[index] += 1;
        self.nodes[index] = self.fresh(index, self.lives[index]);
        self.busy_until[index] = self.now;
    }

    pub(super) fn key(&self, index: usize) -> PeerKey {
        key_of(index, self.lives[index])
    }

    pub(super) fn connect(&mut self, at: usize, to: usize) {
        let peer = self.key(to);
        let effects = self.nodes[at].connect(self.now, peer);
        self.schedule(at, effects);
    }

    /// Runs `step` on a node, and all effects that follow.
    pub(super) fn act(
        &mut self,
        at: usize,
        step: impl FnOnce(&mut SimNode, Time) -> Vec<NodeEffect>,
    ) {
        let effects = step(&mut self.nodes[at], self.now);
        self.schedule(at, effects);
    }

    /// Handles one event; `false` if there is none up to `until`.
    pub(super) fn step(&mut self, until: Time) -> bool {
        match self.events.peek() {
            Some(Reverse((at, _, _))) if *at <= until => {}
            _ => {
                self.now = self.now.max(until);
                return false;
            }
        }
        let Some(Reverse((time, _, event))) = self.events.pop() else {
            return false;
        };
        self.now = time;
        let (at, effects) = match event {
            NetworkEvent::Arrive { to, bytes } => (to, self.nodes[to].receive(time, &bytes)),
            NetworkEvent::Make { at, life, lane } if life == self.lives[at] => {
                (at, self.nodes[at].make(time, lane))
            }
            NetworkEvent::Connect { at, life, lane } if life == self.lives[at] => {
                (at, self.nodes[at].connect_lane(time, lane))
            }
            NetworkEvent::Make { .. } | NetworkEvent::Connect { .. } => return true,
            NetworkEvent::Timer { at } => {
                if self.timer[at] == Some(time) {
                    self.timer[at] = None;
                }
                (at, self.nodes[at].timeout(time))
            }
        };
        self.schedule(at, effects);
        true
    }

    /// Runs until `done`, at most for `limit` of virtual time; says whether it got there.
    pub(super) fn run_until(
        &mut self,
        limit: Duration,
        done: impl Fn(&SimNetwork) -> bool,
    ) -> bool {
        let end = self.now + limit;
        let mut steps = 0u64;
        loop {
            // Looking at everything after each event would cost too much in the big runs.
            if steps % (1 + self.nodes.len() as u64 * 4) == 0 && done(self) {
                return true;
            }
            if !self.step(end) {
                return done(self);
            }
            steps += 1;
        }
    }

    pub(super) fn run_for(&mut self, span: Duration) {
        let end = self.now + span;
        while self.step(end) {}
    }

    pub(super) fn no_request_is_open(&self) -> bool {
        self.nodes.iter().all(|node| node.requested.is_empty())
    }

    /// Whether no node is in the middle of a handshake.
    pub(super) fn settled(&self) -> bool {
        self.no_request_is_open()
            && self
                .nodes
                .iter()
                .all(|node| node.lanes.values().all(|lane| lane.may_send))
    }

    /// Reports a broken lane to each end without another end, as RC's exhausted retries would once
    /// the lane is used.
    pub(super) fn break_widows(&mut self) {
        for at in 0..self.nodes.len() {
            let from = self.key(at);
            let is_widow = |lane: &NodeLane| {
                let (Some(peer), Some(joined)) = (lane.peer, lane.connected) else {
                    return false;
                };
                let other = &self.nodes[index_of(&peer)];
                let is_other_end =
                    |end: &NodeLane| end.peer == Some(from) && end.qpn == Some(joined.remote_qpn);
                other.key != peer || !other.lanes.values().any(is_other_end)
            };
            let lanes = self.nodes[at].lanes.iter();
            let widows: Vec<LaneKey> = lanes
                .filter(|(_, lane)| is_widow(lane))
                .map(|(&key, _)| key)
                .collect();
            for lane in widows {
                self.act(at, |node, now| node.broken(now, lane));
            }
        }
    }

    fn schedule(&mut self, at: usize, effects: Vec<NodeEffect>) {
        for effect in effects {
            match effect {
                NodeEffect::Send { to, bytes } => self.send(index_of(&to), bytes.into()),
                NodeEffect::Make(lane) => {
                    let when = self.service(at);
                    self.push(
                        when,
                        NetworkEvent::Make {
                            at,
                            life: self.lives[at],
                            lane,
                        },
                    );
                }
                NodeEffect::Connect(lane) => {
                    let when = self.service(at);
                    self.push(
                        when,
                        NetworkEvent::Connect {
                            at,
                            life: self.lives[at],
                            lane,
                        },
                    );
                }
            }
        }
        if let Some(next) = self.nodes[at].connector.next_timeout() {
            if self.timer[at].is_none_or(|timer| next < timer) {
                self.timer[at] = Some(next);
                self.push(next.max(self.now), NetworkEvent::Timer { at });
            }
        }
    }

    fn service(&mut self, at: usize) -> Time {
        let when = self.busy_until[at].max(self.now) + self.weather.step;
        self.busy_until[at] = when;
        when
    }

    fn send(&mut self, to: usize, bytes: Box<[u8]>) {
        self.datagrams += 1;
        let weather = self.weather;
        if to >= self.nodes.len() || self.rng.u64(..1_000_000) < weather.loss_ppm {
            return;
        }
        let copies = 1 + usize::from(self.rng.u64(..1_000_000) < weather.repeat_ppm);
        for _ in 0..copies {
            let mut delay = weather.delay
                + Duration::from_nanos(self.rng.u64(..=weather.jitter.as_nanos() as u64));
            if self.rng.u64(..1_000_000) < weather.late_ppm {
                delay += Duration::from_nanos(self.rng.u64(..1_000_000_000));
            }
            self.push(
                self.now + delay,
                NetworkEvent::Arrive {
                    to,
                    bytes: bytes.clone(),
                },
            );
        }
    }

    fn push(&mut self, at: Time, event: NetworkEvent) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// Every lane is the one lane of its pair, and each end has its other end. Call when settled.
    pub(super) fn assert_agreement(&self) {
        let mut ends: BTreeMap<(PeerKey, PeerKey), LaneKey> = BTreeMap::new();
        for node in &self.nodes {
            for (&key, lane) in &node.lanes {
                let peer = lane.peer.expect("a lane of a peer");
                assert!(lane.may_send, "half a lane at {:?} to {peer:?}", node.key);
                assert!(
                    ends.insert((node.key, peer), key).is_none(),
                    "two lanes to one peer"
                );
            }
        }
        for (&(from, to), &key) in &ends {
            let (a, b) = (&self.nodes[index_of(&from)], &self.nodes[index_of(&to)]);
            let other = ends
                .get(&(to, from))
                .unwrap_or_else(|| panic!("{from:?} has a lane that {to:?} has not"));
            assert_one_lane((key, &a.lanes[&key]), (*other, &b.lanes[other]));
        }
    }
}
