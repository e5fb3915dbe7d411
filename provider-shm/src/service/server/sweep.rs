//! When to ask which peers have left or died, and which of them in one sweep.

use std::collections::HashSet;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::super::liveness::Liveness;

/// Peers that are asked after in one sweep: keeps its cost small however many there are.
const SWEPT: usize = 256;

pub(super) struct Sweep {
    liveness: Liveness,
    interval: Duration,
    next: Instant,
    /// Where among all peers the next one begins.
    from: usize,
    /// With whom there was a link until neither side had more to say, who are asked after all the
    /// same.
    left: HashSet<u64>,
}

impl Sweep {
    pub(super) fn new(interval: Duration) -> nix::Result<Self> {
        Ok(Self {
            liveness: Liveness::new()?,
            interval,
            next: Instant::now() + interval,
            from: 0,
            left: HashSet::new(),
        })
    }

    /// What it owns as long as it lives.
    pub(super) fn descriptor(&self) -> RawFd {
        self.liveness.descriptor()
    }

    /// There was a link with this peer, who is asked after all the same.
    pub(super) fn watch(&mut self, id: u64) {
        self.left.insert(id);
    }

    /// There is a link with this peer again, or nobody has to hear of it any more.
    pub(super) fn unwatch(&mut self, id: u64) {
        self.left.remove(&id);
    }

    /// Peers that are asked after without a link.
    pub(super) fn watched(&self) -> impl Iterator<Item = u64> {
        self.left.iter().copied()
    }

    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// The next sweep comes after a whole interval.
    pub(super) fn postpone(&mut self) {
        self.next = Instant::now() + self.interval;
    }

    /// Whether it is time for a sweep; the next one comes after an interval.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// Which of these peers it is the turn of.
    pub(super) fn choose(&mut self, mut ids: Vec<u64>) -> Vec<u64> {
        if ids.is_empty() {
            return ids;
        }
        ids.sort_unstable();
        let from = self.from % ids.len();
        self.from = from + SWEPT;
        let chosen = ids.iter().cycle().skip(from).take(ids.len().min(SWEPT));
        chosen.copied().collect()
    }

    /// Whether the endpoint of this id is there.
    pub(super) fn exists(&self, id: u64) -> bool {
        self.liveness.exists(id)
    }
}
