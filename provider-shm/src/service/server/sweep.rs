//! The schedule of the checks whether peers have closed or died, and the choice of peers for each.

use std::collections::HashSet;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use crate::liveness::Liveness;

/// Peers that one sweep checks: bounds its cost, however many peers there are.
const SWEPT: usize = 256;

/// The time to the next sweep while a peer is about to close.
const HURRY: Duration = Duration::from_millis(10);

pub(super) struct Sweep {
    liveness: Liveness,
    interval: Duration,
    next: Instant,
    /// Index of the next sweep's first peer among all peers.
    from: usize,
    /// Peers whose link was closed idle, and whose end must be reported all the same.
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

    /// The descriptor that it owns.
    pub(super) fn descriptor(&self) -> RawFd {
        self.liveness.descriptor()
    }

    /// The link with this peer was closed idle, and the peer's end must be reported.
    pub(super) fn watch(&mut self, id: u64) {
        self.left.insert(id);
    }

    /// There is a link with this peer again, or its end need not be reported any more.
    pub(super) fn unwatch(&mut self, id: u64) {
        self.left.remove(&id);
    }

    /// Peers that are checked without a link.
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

    /// The next sweep comes soon: a peer waits for it.
    pub(super) fn hurry(&mut self) {
        self.next = self.next.min(Instant::now() + HURRY);
    }

    /// Whether it is time for a sweep; the next one comes after an interval.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.next <= now;
        if is_due {
            self.next = now + self.interval;
        }
        is_due
    }

    /// The peers among these that this sweep checks.
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

    /// Whether the endpoint of this id exists.
    pub(super) fn exists(&self, id: u64) -> bool {
        self.liveness.exists(id)
    }
}
