//! A time in which nothing breaks: all that waits arrives, and nothing is left.

use super::*;

/// Rounds after which something waits for ever.
const PATIENCE: u32 = 20_000;

impl LanesWorld {
    /// Goes on without a fault until all has arrived.
    pub(in super::super) fn settle(&mut self) {
        for _ in 0..PATIENCE {
            if self.is_done() {
                return;
            }
            self.round();
        }
        panic!("some messages never arrive: {}", self.what_waits());
    }

    /// Removes all peers, and goes on until no lane is left.
    pub(in super::super) fn remove_all(&mut self) {
        for (at, pair) in all() {
            self.set_removed(at, pair, true);
        }
        for _ in 0..PATIENCE {
            if all().all(|(at, pair)| !self.ends[at].life.is_linked(pair as u32)) {
                return self.check_nothing_is_left();
            }
            self.now = self.now + Duration::from_secs(1);
            (0..2).for_each(|at| self.close_idle(at));
            self.round();
        }
        panic!("some lanes never go: {}", self.what_waits());
    }

    fn check_nothing_is_left(&mut self) {
        for _ in 0..2 {
            self.round();
        }
        for at in 0..2 {
            assert_eq!(self.queue_pairs(at), 0, "queue pairs are left");
            self.ends[at].life.check_nothing_is_left();
            let lanes = self.pairs.iter().flat_map(|pair| &pair.lanes);
            let mut states = lanes.map(|lane| lane.state[at]);
            assert!(
                states.all(|state| state == SimLaneState::Gone),
                "a lane is left"
            );
        }
        assert!(self.unconfirmed.is_empty() || self.amnesia);
    }

    fn is_done(&self) -> bool {
        let is_over = |peer: &SimPeer| peer.kept.is_empty() && peer.waiting.is_empty();
        self.ends.iter().flat_map(|end| &end.peers).all(is_over)
    }

    /// Each lane gets all its events, and each packet arrives.
    fn round(&mut self) {
        self.now = self.now + Duration::from_millis(10);
        for pair in 0..PAIRS {
            self.handshake(pair);
            let count = self.pairs[pair].lanes.len();
            for lane in 0..count {
                if self.lane(pair, lane).state == [SimLaneState::Gone; 2] {
                    continue;
                }
                for at in 0..2 {
                    self.come_up(at, pair, lane);
                    self.receive_end(at, pair, lane);
                    self.drain(at, pair, lane);
                    self.taken(at, pair, lane);
                    self.may_send(at, pair, lane);
                    self.repeat_resume(at, pair, lane);
                }
                self.fail_lanes_without_peer(pair, lane);
                for at in [0, 1, 0] {
                    while !self.lane(pair, lane).to[at].is_empty()
                        && self.lane(pair, lane).state[at] == SimLaneState::Up
                    {
                        self.arrive(at, pair, lane);
                    }
                }
            }
            (0..2).for_each(|at| self.repeat(at, pair));
        }
    }

    /// A queue pair whose peer's is released fails by exhausted retries.
    fn fail_lanes_without_peer(&mut self, pair: usize, lane: usize) {
        let this = &self.pairs[pair].lanes[lane];
        for at in 0..2 {
            if this.kind == LaneKind::Rc && this.state[1 - at] == SimLaneState::Gone {
                return self.break_lane(at, pair, lane);
            }
        }
    }

    fn what_waits(&self) -> String {
        let mut waits = String::new();
        for (at, pair) in all() {
            let peer = &self.ends[at].peers[pair];
            let kind = self.pairs[pair].requested[at];
            waits += &format!(
                "\nend {at} pair {pair}: on {:?}, {} kept, {} waiting, requests {kind:?}",
                peer.on,
                peer.kept.len(),
                peer.waiting.len()
            );
        }
        waits
    }
}

/// Both ends, each with each pair.
fn all() -> impl Iterator<Item = (usize, usize)> {
    (0..2).flat_map(|at| (0..PAIRS).map(move |pair| (at, pair)))
}
