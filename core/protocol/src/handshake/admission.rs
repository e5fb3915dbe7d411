//! How many may initiate at a time, and how many uninvited peers may have a lane that is not up.

use std::collections::VecDeque;

use super::super::Time;
use super::super::table::Key;

/// Those that initiate, and those in line for a place among them.
#[derive(Clone, Debug)]
pub(super) struct Initiators {
    places: usize,
    taken: usize,
    line: VecDeque<Key>,
}

impl Initiators {
    /// A line with `places` places, at least one.
    pub(super) fn new(places: usize) -> Self {
        Self {
            places: places.max(1),
            taken: 0,
            line: VecDeque::new(),
        }
    }

    pub(super) fn has_room(&self) -> bool {
        self.taken < self.places
    }

    /// False: all places are taken.
    pub(super) fn take_place(&mut self) -> bool {
        let has_room = self.has_room();
        self.taken += usize::from(has_room);
        has_room
    }

    pub(super) fn leave(&mut self) {
        self.taken -= 1;
    }

    pub(super) fn line_up(&mut self, key: Key) {
        self.line.push_back(key);
    }

    /// The next peer in line; it may not need the place any more.
    pub(super) fn next_in_line(&mut self) -> Option<Key> {
        self.line.pop_front()
    }
}

/// The uninvited: peers whose lanes are not up, and which this side did not request.
#[derive(Clone, Debug)]
pub(super) struct HalfOpen {
    room: usize,
    count: usize,
    /// By age. Those that are uninvited no longer are skipped.
    by_age: VecDeque<(Time, Key)>,
}

impl HalfOpen {
    /// A table with room for `room` peers, at least one.
    pub(super) fn new(room: usize) -> Self {
        Self {
            room: room.max(1),
            count: 0,
            by_age: VecDeque::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.room
    }

    /// The one that came first, and when; it may be uninvited no longer.
    pub(super) fn oldest(&self) -> Option<(Time, Key)> {
        self.by_age.front().copied()
    }

    pub(super) fn drop_oldest(&mut self) {
        self.by_age.pop_front();
    }

    /// One more came. `still_counts` says whether an earlier one still does.
    pub(super) fn enter(&mut self, now: Time, key: Key, still_counts: impl Fn(Time, Key) -> bool) {
        self.count += 1;
        self.by_age.push_back((now, key));
        if self.by_age.len() > 2 * self.count + 64 {
            self.by_age
                .retain(|(since, key)| still_counts(*since, *key));
        }
    }

    /// One counts no longer.
    pub(super) fn leave(&mut self) {
        self.count -= 1;
    }
}
