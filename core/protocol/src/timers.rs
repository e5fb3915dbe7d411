//! One deadline for each of many objects, cheap to move later: the heap is corrected only when an
//! object comes up.
//!
//! An object has a key, and the key a place: dense, and another object's once the first is gone. A
//! place has one deadline, that of the object which came there last. The one before may not have
//! left yet, and has no say in it any more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Time;
use super::table::Key;
use super::wire::SessionId;

/// A key of something that has a place.
pub trait HasPlace: Copy + Eq {
    /// The place: dense, so that an array can be indexed by it.
    fn place(self) -> usize;
}

impl HasPlace for Key {
    fn place(self) -> usize {
        self.index()
    }
}

impl HasPlace for SessionId {
    #[inline]
    fn place(self) -> usize {
        self.index()
    }
}

/// The deadlines of objects with such keys. The memory follows the number of places, not how often
/// deadlines move or objects come and go.
#[derive(Clone, Debug)]
pub struct Timers<K> {
    heap: BinaryHeap<Reverse<(Time, u32)>>,
    places: Vec<TimerPlace<K>>,
}

#[derive(Clone, Copy, Debug)]
struct TimerPlace<K> {
    owner: Option<K>,
    at: Option<Time>,
    /// The earliest item in the heap.
    queued: Option<Time>,
}

impl<K> Default for Timers<K> {
    fn default() -> Self {
        Timers {
            heap: BinaryHeap::new(),
            places: Vec::new(),
        }
    }
}

impl<K> TimerPlace<K> {
    const EMPTY: Self = TimerPlace {
        owner: None,
        at: None,
        queued: None,
    };
}

impl<K: HasPlace> Timers<K> {
    /// An object has come to its place; it has no deadline yet.
    pub fn begin(&mut self, key: K) {
        let index = key.place();
        if self.places.len() <= index {
            self.places.resize(index + 1, TimerPlace::EMPTY);
        }
        let place = &mut self.places[index];
        (place.owner, place.at) = (Some(key), None);
    }

    /// Sets, moves or (`None`) clears the deadline of an object, unless its place is another's by
    /// now.
    #[inline]
    pub fn set(&mut self, key: K, at: Option<Time>) {
        let index = key.place();
        let Some(place) = self.places.get_mut(index) else {
            return;
        };
        if place.owner != Some(key) {
            return;
        }
        place.at = at;
        if let Some(at) = at {
            self.queue(index, at);
        }
    }

    /// Sees to it that a place comes up at a time, or earlier.
    #[inline]
    fn queue(&mut self, index: usize, at: Time) {
        let queued = self.places[index].queued;
        if queued.is_some_and(|queued| queued <= at) {
            return;
        }
        if self.heap.len() == self.heap.capacity() {
            self.make_room();
        }
        self.places[index].queued = Some(at);
        self.heap.push(Reverse((at, index as u32)));
    }

    /// Leaves one item for each place, the earliest. The heap grows only where most items count.
    #[cold]
    fn make_room(&mut self) {
        self.heap.clear();
        for (index, place) in self.places.iter().enumerate() {
            (self.heap).extend(place.queued.map(|at| Reverse((at, index as u32))));
        }
        let counting = self.heap.len();
        if counting * 2 >= self.heap.capacity() {
            self.heap.reserve(counting + 4);
        }
    }

    /// The next object whose deadline has passed; the deadline is cleared.
    pub fn pop(&mut self, now: Time) -> Option<K> {
        while let Some(&Reverse((queued, index))) = self.heap.peek() {
            if queued > now {
                return None;
            }
            self.heap.pop();
            let place = &mut self.places[index as usize];
            if place.queued != Some(queued) {
                continue; // an earlier item of the same place came up and took care
            }
            place.queued = None;
            match place.at {
                Some(at) if at <= now => {
                    place.at = None;
                    return place.owner;
                }
                Some(at) => self.queue(index as usize, at),
                None => {}
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
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// A place, and how many objects were there before.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    struct TimedObject(usize, u32);

    impl HasPlace for TimedObject {
        fn place(self) -> usize {
            self.0
        }
    }

    fn begun(places: usize) -> (Timers<TimedObject>, Vec<TimedObject>) {
        let objects: Vec<_> = (0..places).map(|place| TimedObject(place, 0)).collect();
        let mut timers = Timers::default();
        objects.iter().for_each(|object| timers.begin(*object));
        (timers, objects)
    }

    #[derive(Clone, Copy, Debug)]
    enum TimerStep {
        /// An object comes to a place.
        Begin(usize),
        /// A deadline of the object there, or of the one before.
        Set(usize, bool, Option<u64>),
        /// Time passes.
        Pass(u64),
    }

    fn step() -> impl Strategy<Value = TimerStep> {
        let at = proptest::option::of(0u64..100);
        prop_oneof![
            1 => (0usize..8).prop_map(TimerStep::Begin),
            8 => (0usize..8, any::<bool>(), at).prop_map(|(p, old, at)| TimerStep::Set(p, old, at)),
            2 => (0u64..10).prop_map(TimerStep::Pass),
        ]
    }

    proptest! {
        /// Objects come, and their deadlines are set, moved and cleared. Each deadline that stands
        /// comes up once, at its time. A map from places to objects with their deadlines does the
        /// same.
        #[test]
        fn exactly_what_stands_comes_up(steps in vec(step(), 0..200)) {
            let mut timers = Timers::default();
            let mut model: BTreeMap<usize, (TimedObject, Option<Time>)> = BTreeMap::new();
            let mut now = 0;
            for step in steps.into_iter().chain([TimerStep::Pass(1000)]) {
                match step {
                    TimerStep::Begin(place) => {
                        let before = model.get(&place).map_or(0, |(object, _)| object.1);
                        let object = TimedObject(place, before + 1);
                        timers.begin(object);
                        model.insert(place, (object, None));
                    }
                    TimerStep::Set(place, old, at) => {
                        let at = at.map(|at| Time(now + at));
                        let Some((object, stands)) = model.get_mut(&place) else {
                            timers.set(TimedObject(place, 0), at);
                            continue;
                        };
                        timers.set(TimedObject(place, object.1 - u32::from(old)), at);
                        if !old {
                            *stands = at;
                        }
                    }
                    TimerStep::Pass(time) => {
                        now += time;
                        let mut came = Vec::new();
                        while let Some(object) = timers.pop(Time(now)) {
                            came.push(object);
                        }
                        came.sort();
                        let due = model.values_mut().filter_map(|(object, at)| {
                            at.take_if(|at| at.0 <= now).map(|_| *object)
                        });
                        prop_assert_eq!(came, due.collect::<Vec<_>>());
                    }
                }
                let earliest = model.values().filter_map(|(_, at)| *at).min();
                prop_assert!(earliest.is_none_or(|at| timers.next().is_some_and(|next| next <= at)));
            }
            prop_assert!(timers.heap.is_empty());
        }
    }

    /// Objects whose probes stand, and whose acknowledgements fall due at once, again and again.
    #[test]
    fn deadlines_that_stand_take_no_memory() {
        let (mut timers, objects) = begun(8);
        let round = |timers: &mut Timers<TimedObject>| {
            for object in &objects {
                timers.set(*object, Some(Time(0)));
                assert_eq!(timers.pop(Time(1)), Some(*object));
                timers.set(*object, Some(Time(1_000_000)));
            }
        };
        (0..10).for_each(|_| round(&mut timers));
        let capacity = timers.heap.capacity();
        (0..10_000).for_each(|_| round(&mut timers));
        assert_eq!(timers.heap.capacity(), capacity);
    }

    /// An object whose probe is always far ahead, and whose acknowledgement falls due before that
    /// again and again.
    #[test]
    fn deadlines_that_move_take_no_memory() {
        let (mut timers, objects) = begun(1);
        let object = objects[0];
        let mut capacity = None;
        for now in (0..100_000).step_by(10) {
            timers.set(object, Some(Time(now + 50_000)));
            timers.set(object, Some(Time(now + 1)));
            assert_eq!(timers.pop(Time(now + 1)), Some(object));
            assert_eq!(timers.pop(Time(now + 1)), None);
            let now = timers.heap.capacity();
            assert_eq!(*capacity.get_or_insert(now), now);
        }
    }

    /// The items of objects that are gone do not pile up; the valid items come up all the same.
    #[test]
    fn objects_that_come_and_go_take_no_memory() {
        let (mut timers, objects) = begun(2);
        timers.set(objects[0], Some(Time(5)));
        for number in 1..100_000 {
            let object = TimedObject(1, number);
            timers.begin(object);
            timers.set(object, Some(Time(7 + u64::from(number % 3))));
            timers.set(object, None);
            assert!(timers.heap.capacity() <= 16, "{}", timers.heap.capacity());
        }
        assert_eq!(timers.pop(Time(6)), Some(objects[0]));
        assert_eq!(timers.pop(Time(20)), None);
    }
}
