//! Messages by which an endpoint notices that a peer is gone for whose messages an operation waits.
//!
//! A receive does not fail when its sender dies, a send does. So an operation that has waited for a
//! while sends an empty message to each member that it waits for, and again after twice the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::FiAddr;

use super::operations::Operations;

/// The time before the first probe of an operation, and the longest between two.
const FIRST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(8);

/// The probes of an endpoint.
#[derive(Default)]
pub(crate) struct Probes {
    /// When operations are to probe, and how much later again.
    due: BTreeMap<u64, (Instant, Duration)>,
    /// Probes that are under way, by their numbers.
    pub(crate) under_way: BTreeMap<u64, ProbedPeer>,
    failed: Vec<FailedProbe>,
}

/// A peer for whose message an operation waits.
#[derive(Clone, Copy)]
pub(crate) struct ProbedPeer {
    pub(crate) operation: u64,
    pub(crate) peer: FiAddr,
}

/// A probe that has failed. Its peer may have closed its endpoint because it has done its part, and
/// its message may be in the queue of receives.
struct FailedProbe {
    probed: ProbedPeer,
    errno: Errno,
    /// The last call that had begun to take completions out of that queue.
    begun_drives: u64,
}

impl Probes {
    /// An operation begins.
    pub(crate) fn begin(&mut self, number: u64) {
        self.due.insert(number, (Instant::now() + FIRST, 2 * FIRST));
    }

    /// The operations that are to probe now, each with the peers that it waits for.
    pub(crate) fn take_due(&mut self, operations: &Operations) -> Vec<(u64, BTreeSet<FiAddr>)> {
        if operations.under_way.is_empty() {
            self.due.clear();
            return Vec::new();
        }
        let now = Instant::now();
        self.due
            .retain(|number, _| operations.under_way.contains_key(number));
        let mut all = Vec::new();
        for &number in operations.under_way.keys() {
            let (at, next) = self.due.entry(number).or_insert((now + FIRST, 2 * FIRST));
            if *at <= now {
                (*at, *next) = (now + *next, LONGEST.min(2 * *next));
                all.push(number);
            }
        }
        if all.is_empty() {
            return Vec::new();
        }
        let mut peers = operations.awaited_peers();
        let of = |number| Some((number, peers.remove(&number)?));
        all.into_iter().filter_map(of).collect()
    }

    /// A probe has failed.
    pub(crate) fn fail(&mut self, probed: ProbedPeer, errno: Errno, begun_drives: u64) {
        // The level of a probe is not supported here, so it says nothing of the peer.
        if errno != Errno::EOPNOTSUPP {
            self.failed.push(FailedProbe {
                probed,
                errno,
                begun_drives,
            });
        }
    }

    /// The failed probes since which the queue of receives was empty, up to this call.
    pub(crate) fn take_failed(&mut self, drained_drives: u64) -> Vec<(ProbedPeer, Errno)> {
        let is_over = |one: &FailedProbe| one.begun_drives < drained_drives;
        let over: Vec<_> = (self.failed.iter().filter(|one| is_over(one)))
            .map(|one| (one.probed, one.errno))
            .collect();
        self.failed.retain(|one| !is_over(one));
        over
    }

    /// When an operation is to probe next, or the message of a failed probe is to be looked for.
    pub(crate) fn next(&self) -> Option<Instant> {
        match self.failed.is_empty() {
            true => self.due.values().map(|(at, _)| *at).min(),
            false => Some(Instant::now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_probe_counts_once_the_queue_was_empty_after_it() {
        let mut probes = Probes::default();
        let probed = ProbedPeer {
            operation: 1,
            peer: FiAddr(2),
        };
        probes.fail(probed, Errno::EOPNOTSUPP, 4);
        assert!(probes.next().is_none());
        probes.fail(probed, Errno::ESHUTDOWN, 5);
        assert!(probes.next().is_some());
        // The fifth call had begun before.
        assert!(probes.take_failed(5).is_empty());
        let failed = probes.take_failed(6);
        assert_eq!(failed.len(), 1);
        assert_eq!(
            (failed[0].0.peer, failed[0].1),
            (FiAddr(2), Errno::ESHUTDOWN)
        );
        assert!(probes.take_failed(7).is_empty());
        assert!(probes.next().is_none());
    }
}
