//! Lanes that end, and queue pairs that start again, once all completions that existed at that time
//! were taken from the completion queue.
//!
//! The length of a completion queue cannot be queried. A poll that finds less than it has room for
//! has taken everything. While packets come so fast that no poll does, a bounded number of polls is
//! enough: the number that empties a full queue. A queue gives its completions in order, so these
//! polls have taken everything that was there when the first of them began. So a flood of packets
//! from other peers delays no ending for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneKey;

use super::POLL;
use crate::qp::RcQp;

/// An object that ends once the completion queue is empty.
pub(super) enum Ending {
    /// A lane that is down, and may carry a session by now.
    Lane(LaneKey),
    /// A queue pair in error that belongs to no lane any more. Its completions would go with it,
    /// and so would the receive buffers of the endpoint that they name.
    QueuePair(RetiredQueuePair),
    /// The data queue pair, in error: it has to be revived. Until this time it waits for its
    /// receives.
    DataQueuePair(Time),
    /// The data queue pair was revived without some of its receives: they are free.
    DataReceives,
    /// The next step of the search for lost receives.
    Search,
}

/// A queue pair that waits for its end.
pub(super) struct RetiredQueuePair {
    pub(super) qp: Arc<RcQp>,
    /// The slot that its Resume may lie in.
    pub(super) slot: Option<u32>,
    /// How long it waits for the report of its last receive.
    pub(super) until: Time,
    /// All completions of its receives are in the completion queue.
    pub(super) has_last_receive: bool,
}

/// The endings that wait, in the order of their start.
pub(super) struct Endings {
    /// Each with the number of polls after which it is due.
    waiting: VecDeque<(u64, Ending)>,
    /// Polls so far, counted while an ending waits.
    looks: u64,
    /// Polls that empty a full queue, and the poll under way.
    enough: u64,
    /// The number of endings that the last poll covered, if it found the queue's end.
    emptied: usize,
}

impl Endings {
    /// Starts without endings, for a completion queue that `polls` polls empty.
    pub(super) fn new(polls: usize) -> Self {
        Self {
            waiting: VecDeque::new(),
            looks: 0,
            enough: polls as u64 + 1,
            emptied: 0,
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether a queue pair waits for its end.
    pub(super) fn has_queue_pair(&self) -> bool {
        let mut waiting = self.waiting.iter();
        waiting.any(|(_, ending)| matches!(ending, Ending::QueuePair(_)))
    }

    pub(super) fn push(&mut self, ending: Ending) {
        self.waiting.push_back((self.looks + self.enough, ending));
    }

    /// Counts a poll of the completion queue that found `found` completions. When it began,
    /// `waiting` endings waited: for later endings there may be completions behind it. Returns
    /// whether any ending is due.
    #[cold]
    pub(super) fn looked(&mut self, waiting: usize, found: usize) -> bool {
        self.looks += 1;
        self.emptied = if found < POLL { waiting } else { 0 };
        self.emptied > 0 || (self.waiting.front()).is_some_and(|(due, _)| *due <= self.looks)
    }

    /// The endings that are due.
    pub(super) fn take_due(&mut self) -> VecDeque<(u64, Ending)> {
        let due = self.waiting.partition_point(|(due, _)| *due <= self.looks);
        let later = self.waiting.split_off(due.max(self.emptied));
        std::mem::replace(&mut self.waiting, later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(number: u64) -> Ending {
        Ending::Lane(LaneKey::from_bits(number))
    }

    fn sessions(due: VecDeque<(u64, Ending)>) -> Vec<u32> {
        due.into_iter()
            .filter_map(|(_, ending)| match ending {
                Ending::Lane(lane) => Some(lane.session().0),
                _ => None,
            })
            .collect()
    }

    #[test]
    fn each_waits_for_a_queue_of_looks_and_no_longer() {
        // Two polls empty it.
        let mut endings = Endings::new(2);
        endings.push(lane(1));
        assert!(!endings.looked(1, POLL));
        endings.push(lane(2));
        assert!(!endings.looked(2, POLL));
        assert!(endings.looked(2, POLL));
        assert_eq!(sessions(endings.take_due()), [1]);
        assert!(endings.looked(1, POLL));
        assert_eq!(sessions(endings.take_due()), [2]);
        assert!(endings.is_empty());
    }

    #[test]
    fn the_end_of_the_queue_is_the_time_of_those_that_waited_for_it() {
        let mut endings = Endings::new(1 << 16);
        endings.push(lane(1));
        assert!(!endings.looked(1, POLL));
        endings.push(lane(2));
        // An ending starts while the poll's completions are handled.
        endings.push(lane(3));
        assert!(endings.looked(2, POLL - 1));
        assert_eq!(sessions(endings.take_due()), [1, 2]);
        assert!(endings.looked(1, 0));
        assert_eq!(sessions(endings.take_due()), [3]);
    }
}
