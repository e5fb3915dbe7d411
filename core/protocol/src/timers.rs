//! One deadline per table entry, cheap to move later: the heap is corrected only when an entry
//! comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Time;
use super::table::{Key, Table};

/// Pending wake-ups of a table's entries. The heap holds few items per entry, since moving a
/// deadline later pushes nothing; items of entries that are gone are dropped as they come up.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    heap: BinaryHeap<Reverse<(Time, Key)>>,
}

/// Items for each entry, and beside those, that are no reason to tidy up.
const ITEMS_PER_ENTRY: usize = 4;
const SOME_ITEMS: usize = 1024;

/// The timer part of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deadline {
    at: Option<Time>,
    /// The earliest heap item of this entry.
    queued: Option<Time>,
}

/// An entry with a deadline.
pub(crate) trait Timed {
    fn deadline(&mut self) -> &mut Deadline;
}

impl Deadline {
    #[cfg(test)]
    pub(crate) fn at(&self) -> Option<Time> {
        self.at
    }

    pub(crate) fn clear(&mut self) {
        self.at = None;
    }
}

impl Timers {
    /// Sets the deadline of the entry `key`.
    pub(crate) fn set(&mut self, key: Key, deadline: &mut Deadline, at: Time) {
        deadline.at = Some(at);
        if deadline.queued.is_none_or(|queued| at < queued) {
            deadline.queued = Some(at);
            self.heap.push(Reverse((at, key)));
        }
    }

    /// The next entry whose deadline has passed; its deadline is cleared.
    pub(crate) fn pop<T: Timed>(&mut self, now: Time, table: &mut Table<T>) -> Option<Key> {
        while let Some(&Reverse((queued, key))) = self.heap.peek() {
            if queued > now {
                return None;
            }
            self.heap.pop();
            let Some(deadline) = table.get_mut(key).map(Timed::deadline) else {
                continue;
            };
            if deadline.queued != Some(queued) {
                continue; // an earlier item of the same entry came up and took care
            }
            deadline.queued = None;
            match deadline.at {
                Some(at) if at <= now => {
                    deadline.at = None;
                    return Some(key);
                }
                Some(at) => self.set(key, deadline, at),
                None => {}
            }
        }
        None
    }

    /// Drops the items that stand for nothing, once they are most of all: entries that are gone
    /// leave theirs behind until the time that they had set.
    pub(crate) fn tidy<T: Timed>(&mut self, table: &mut Table<T>) {
        if self.heap.len() <= ITEMS_PER_ENTRY * table.len() + SOME_ITEMS {
            return;
        }
        self.heap.retain(|Reverse((queued, key))| {
            let deadline = table.get_mut(*key).map(Timed::deadline);
            deadline.is_some_and(|deadline| deadline.queued == Some(*queued))
        });
        self.heap.shrink_to(2 * self.heap.len());
    }

    /// When to look again: never later than the earliest deadline, at times earlier.
    pub(crate) fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Timed for Deadline {
        fn deadline(&mut self) -> &mut Deadline {
            self
        }
    }

    /// What entries that are gone have left behind goes; what stands comes up all the same.
    #[test]
    fn items_of_the_gone_do_not_pile_up() {
        let mut table: Table<Deadline> = Table::new(100_000);
        let mut timers = Timers::default();
        let stays = table.insert(Deadline::default()).unwrap();
        timers.set(stays, table.get_mut(stays).unwrap(), Time(5));
        for _ in 0..100_000 {
            let key = table.insert(Deadline::default()).unwrap();
            timers.set(key, table.get_mut(key).unwrap(), Time(7));
            table.remove(key);
            timers.tidy(&mut table);
            assert!(timers.heap.len() <= ITEMS_PER_ENTRY + SOME_ITEMS);
        }
        assert_eq!(timers.pop(Time(6), &mut table), Some(stays));
    }

    proptest! {
        /// Whatever is set, moved and cleared: each deadline that stands comes up once, at its
        /// time.
        #[test]
        fn fires_exactly_what_stands(
            ops in proptest::collection::vec((0usize..8, proptest::option::of(1u64..100)), 0..100),
        ) {
            let mut table: Table<Deadline> = Table::new(8);
            let keys: Vec<Key> = (0..8).map(|_| table.insert(Deadline::default()).unwrap()).collect();
            let mut timers = Timers::default();
            for (which, at) in ops {
                let deadline = table.get_mut(keys[which]).unwrap();
                match at {
                    Some(at) => timers.set(keys[which], deadline, Time(at)),
                    None => deadline.clear(),
                }
            }
            let mut standing: Vec<(Time, Key)> =
                table.iter().filter_map(|(key, d)| Some((d.at()?, key))).collect();
            let mut fired = Vec::new();
            for now in 0..100 {
                prop_assert!(standing.iter().all(|(at, _)| at.0 < now || timers.next().is_some_and(|n| n <= *at)));
                while let Some(key) = timers.pop(Time(now), &mut table) {
                    fired.push((Time(now), key));
                }
            }
            standing.sort();
            fired.sort();
            prop_assert_eq!(fired, standing);
            prop_assert!(timers.heap.is_empty());
        }
    }
}
