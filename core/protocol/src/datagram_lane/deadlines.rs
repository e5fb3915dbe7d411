//! The deadlines of an endpoint's lanes, cheap to move later: the heap is corrected only when an
//! entry comes up.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::Time;

/// One deadline for each of many lanes, which are numbered densely.
#[derive(Clone, Debug, Default)]
pub struct Deadlines {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    lanes: Vec<Deadline>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Deadline {
    at: Option<Time>,
    /// The earliest item in the heap.
    queued: Option<Time>,
}

impl Deadlines {
    /// Sets, moves or (`None`) clears the deadline of a lane: call it with
    /// [`super::DatagramLane::deadline`] after whatever was done with the lane.
    #[inline]
    pub fn set(&mut self, lane: u32, at: Option<Time>) {
        let index = lane as usize;
        if self.lanes.len() <= index {
            if at.is_none() {
                return;
            }
            self.lanes.resize(index + 1, Deadline::default());
        }
        self.lanes[index].at = at;
        let Some(at) = at else {
            return;
        };
        if self.lanes[index].queued.is_none_or(|queued| at < queued) {
            if self.heap.len() == self.heap.capacity() {
                self.make_room();
            }
            self.lanes[index].queued = Some(at);
            self.heap.push(Reverse((at, lane)));
        }
    }

    /// Leaves one item for each lane, the earliest. The heap grows only where most items count: its
    /// size follows the number of lanes, not how often their deadlines move.
    #[cold]
    fn make_room(&mut self) {
        self.heap.clear();
        for (lane, deadline) in self.lanes.iter().enumerate() {
            (self.heap).extend(deadline.queued.map(|at| Reverse((at, lane as u32))));
        }
        let counting = self.heap.len();
        if counting * 2 >= self.heap.capacity() {
            self.heap.reserve(counting + 4);
        }
    }

    /// The next lane whose deadline has passed; the deadline is cleared.
    pub fn pop(&mut self, now: Time) -> Option<u32> {
        while let Some(&Reverse((queued, lane))) = self.heap.peek() {
            if queued > now {
                return None;
            }
            self.heap.pop();
            let deadline = &mut self.lanes[lane as usize];
            if deadline.queued != Some(queued) {
                continue; // an earlier item of the same lane came up and took care
            }
            deadline.queued = None;
            match deadline.at {
                Some(at) if at <= now => {
                    deadline.at = None;
                    return Some(lane);
                }
                at => self.set(lane, at),
            }
        }
        None
    }

    /// When to look again: never later than the earliest deadline, at times earlier.
    #[must_use]
    pub fn next(&self) -> Option<Time> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is set, moved and cleared: each deadline that stands comes up once, at its
        /// time.
        #[test]
        fn fires_exactly_what_stands(
            ops in proptest::collection::vec((0u32..8, proptest::option::of(1u64..100)), 0..100),
        ) {
            let mut deadlines = Deadlines::default();
            let mut standing = std::collections::BTreeMap::new();
            for (lane, at) in ops {
                deadlines.set(lane, at.map(Time));
                match at {
                    Some(at) => standing.insert(lane, Time(at)),
                    None => standing.remove(&lane),
                };
            }
            let mut fired = std::collections::BTreeMap::new();
            for now in 0..100 {
                let next = deadlines.next();
                let left = standing.iter().filter(|(lane, _)| !fired.contains_key(*lane));
                prop_assert!(left.clone().all(|(_, at)| next.is_some_and(|next| next <= *at)));
                while let Some(lane) = deadlines.pop(Time(now)) {
                    prop_assert!(fired.insert(lane, Time(now)).is_none());
                }
            }
            prop_assert_eq!(fired, standing);
            prop_assert!(deadlines.heap.is_empty());
        }
    }

    /// Lanes whose probes stand, and whose acknowledgements fall due at once, again and again.
    #[test]
    fn deadlines_that_stand_take_no_memory() {
        const LANES: u32 = 8;
        let mut deadlines = Deadlines::default();
        let round = |deadlines: &mut Deadlines| {
            for lane in 0..LANES {
                deadlines.set(lane, Some(Time(0)));
                assert_eq!(deadlines.pop(Time(1)), Some(lane));
                deadlines.set(lane, Some(Time(1_000_000)));
            }
        };
        (0..10).for_each(|_| round(&mut deadlines));
        let capacity = deadlines.heap.capacity();
        (0..10_000).for_each(|_| round(&mut deadlines));
        assert_eq!(deadlines.heap.capacity(), capacity);
    }

    /// A lane whose probe is always far ahead, and whose acknowledgement falls due before that
    /// again and again.
    #[test]
    fn deadlines_that_move_take_no_memory() {
        let mut deadlines = Deadlines::default();
        let mut capacity = None;
        for now in (0..100_000).step_by(10) {
            deadlines.set(0, Some(Time(now + 50_000)));
            deadlines.set(0, Some(Time(now + 1)));
            assert_eq!(deadlines.pop(Time(now + 1)), Some(0));
            assert_eq!(deadlines.pop(Time(now + 1)), None);
            let now = deadlines.heap.capacity();
            assert_eq!(*capacity.get_or_insert(now), now);
        }
    }
}
