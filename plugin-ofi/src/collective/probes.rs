//! Messages by which an endpoint notices that a peer is gone for whose messages an operation waits.
//!
//! A receive does not fail when its sender dies, a send does. So an operation that has waited for a
//! while sends an empty message to each member that it waits for, and again after twice the time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

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
    /// The operations of probes that are under way, by the numbers of these.
    pub(crate) under_way: BTreeMap<u64, u64>,
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

    /// When an operation is to probe next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.values().map(|(at, _)| *at).min()
    }
}
