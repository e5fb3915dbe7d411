//! The reverse index of a symmetric table: from the part of an address in an entry to that entry,
//! with linear probing.
//!
//! A place is 32 bits: the entry's number plus one, as many bits as the table has entries for, and
//! as much of the hash as is left above it, so that hardly ever another entry than the right one is
//! looked at. The hash's upper half says where the search starts; places are as many as wanted, not
//! a power of two. Moving an entry takes its hash, which its holder makes up anew.

use crate::words::MappedWords;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU32, AtomicUsize, OnceLock};

/// Places of a line of memory.
const LINE: usize = if cfg!(loom) { 1 } else { 16 };

/// Places of the smallest index.
const FEWEST: usize = if cfg!(loom) { 2 } else { 64 };

/// Up to so many places, an index grows to twice its size; above, by an eighth.
const SMALL: usize = 4096;

/// Tenths of the places that are used at most.
const MOST_TENTHS: usize = 9;

/// An index of a table of entries below 2 to the power of `entry_bits`, less one.
pub(super) struct ReverseIndex {
    words: MappedWords,
    len: usize,
    entry_bits: u32,
}

impl ReverseIndex {
    /// An empty index with room for so many entries, all of them below `bound`.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn new(entries: usize, bound: usize) -> Result<Self> {
        let wanted = entries.saturating_mul(10).div_ceil(MOST_TENTHS) + 1;
        Self::with(wanted.max(FEWEST), bound)
    }

    fn with(places: usize, bound: usize) -> Result<Self> {
        let len = places.next_multiple_of(LINE);
        let words = MappedWords::private(len.saturating_mul(4))
            .map_err(|e| Error::from_io(&e, "map", "the index of an address vector"))?;
        Ok(Self {
            words,
            len,
            entry_bits: usize::BITS - bound.leading_zeros(),
        })
    }

    /// A larger one, or one as large where only the entries are more.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn larger(&self, entries: usize, bound: usize) -> Result<Self> {
        let len = match self.has_room(entries) {
            true => self.len,
            false => next(self.len),
        };
        Self::with(len, bound)
    }

    /// Whether there is room for one more beside so many entries.
    pub(super) fn has_room(&self, entries: usize) -> bool {
        entries * 10 < self.len * MOST_TENTHS
    }

    /// Whether an entry's number has room in a place.
    pub(super) fn takes(&self, entry: u32) -> bool {
        (u64::from(entry) + 1) >> self.entry_bits == 0
    }

    pub(super) fn bytes(&self) -> usize {
        4 * self.len
    }

    #[inline]
    fn places(&self) -> &[AtomicU32] {
        self.words.u32s(0, self.len)
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash >> 32) * self.len as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        match at + 1 {
            next if next == self.len => 0,
            next => next,
        }
    }

    #[inline]
    fn place(&self, hash: u64, entry: u32) -> u32 {
        ((hash as u32) >> self.entry_bits << self.entry_bits) | (entry + 1)
    }

    #[inline]
    fn entry(&self, place: u32) -> u32 {
        (place & ((1 << self.entry_bits) - 1)).wrapping_sub(1)
    }

    /// The entry with this hash of which `is_it` says yes.
    #[inline]
    pub(super) fn find(&self, hash: u64, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        let tag = (hash as u32) >> self.entry_bits;
        // From its home to the end, and from the start: while a writer is at work there may be no
        // empty place in sight.
        let (before, from) = self.places().split_at(self.home(hash));
        for places in [from, before] {
            for place in places {
                let place = place.load(Relaxed);
                if place == 0 {
                    return None;
                }
                if place >> self.entry_bits == tag {
                    let entry = self.entry(place);
                    if is_it(entry) {
                        return Some(entry);
                    }
                }
            }
        }
        None
    }

    /// Has the places brought closer where a search for this hash will be: in a full index it often
    /// goes on to the next line.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u64) {
        let at = 4 * self.home(hash);
        self.words.prefetch(at);
        self.words.prefetch(at + 4 * LINE);
    }

    /// Enters an entry. There is room.
    pub(super) fn insert(&self, hash: u64, entry: u32) {
        let places = self.places();
        let mut at = self.home(hash);
        while places[at].load(Relaxed) != 0 {
            at = self.after(at);
        }
        places[at].store(self.place(hash, entry), Release);
    }

    /// The place of an entry, if it is there by this hash.
    fn place_of(&self, hash: u64, entry: u32) -> Option<usize> {
        let (places, wanted) = (self.places(), self.place(hash, entry));
        let mut at = self.home(hash);
        loop {
            match places[at].load(Relaxed) {
                0 => return None,
                place if place == wanted => return Some(at),
                _ => at = self.after(at),
            }
        }
    }

    /// Passes on the entries whose hashes it takes to [`remove`](Self::remove) this one.
    pub(super) fn following(&self, hash: u64, entry: u32, mut visit: impl FnMut(u32)) {
        let places = self.places();
        let Some(mut at) = self.place_of(hash, entry) else {
            return;
        };
        loop {
            at = self.after(at);
            match places[at].load(Relaxed) {
                0 => return,
                place => visit(self.entry(place)),
            }
        }
    }

    /// Takes an entry out, and moves those up that its place kept from theirs.
    pub(super) fn remove(&self, hash: u64, entry: u32, hash_of: impl Fn(u32) -> u64) {
        let places = self.places();
        let Some(mut gap) = self.place_of(hash, entry) else {
            return;
        };
        let distance = |from: usize, to: usize| match to >= from {
            true => to - from,
            false => to + self.len - from,
        };
        let mut at = gap;
        loop {
            at = self.after(at);
            let place = places[at].load(Relaxed);
            if place == 0 {
                break;
            }
            let home = self.home(hash_of(self.entry(place)));
            if distance(home, at) >= distance(gap, at) {
                places[gap].store(place, Relaxed);
                gap = at;
            }
        }
        places[gap].store(0, Relaxed);
    }

    /// Gives its memory back. A reader that still searches there finds nothing.
    fn discard(&self) {
        self.words.discard();
    }
}

/// Places of the next larger index.
fn next(places: usize) -> usize {
    match places < SMALL {
        true => 2 * places,
        false => places + places / 8,
    }
}

/// Indices that a table may have had: more than it takes to grow from the smallest to the largest.
const GENERATIONS: usize = if cfg!(loom) { 3 } else { 256 };

/// The indices of a table, one after the other; the last is in use. Readers take no lock, so the
/// others stay, without memory.
pub(super) struct ReverseIndices {
    made: Box<[OnceLock<ReverseIndex>]>,
    count: AtomicUsize,
}

impl ReverseIndices {
    /// With the first.
    pub(super) fn new(first: ReverseIndex) -> Self {
        let made: Box<[_]> = (0..GENERATIONS).map(|_| OnceLock::new()).collect();
        let indices = Self {
            made,
            count: AtomicUsize::new(1),
        };
        let _ = indices.made[0].set(first);
        indices
    }

    /// The one in use.
    #[inline]
    pub(super) fn last(&self) -> Option<&ReverseIndex> {
        let count = self.count.load(Acquire);
        self.made.get(count.wrapping_sub(1))?.get()
    }

    /// Puts another in use; `passed` is called before the memory of the one before is given back.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: there were too many.
    pub(super) fn replace(&self, by: ReverseIndex, passed: impl FnOnce()) -> Result<()> {
        let count = self.count.load(Relaxed);
        let full = || Error::new(Errno::ENOSPC, "grow", "the index of an address vector");
        let slot = self.made.get(count).ok_or_else(full)?;
        slot.set(by).map_err(|_| full())?;
        let before = self.last();
        self.count.store(count + 1, Release);
        passed();
        if let Some(before) = before {
            before.discard();
        }
        Ok(())
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::version::Version;
    use ferrofabric_system::sync::{AtomicU64, explore};

    /// An entry is found while a larger index replaces one whose memory is given back. Fails where
    /// a reader does not learn that the index has passed.
    #[test]
    fn an_entry_is_found_while_the_index_grows() {
        explore(2, || {
            let indices = ReverseIndices::new(ReverseIndex::new(1, 4).unwrap());
            let shared = Arc::new((indices, AtomicU64::new(0)));
            shared.0.last().unwrap().insert(5, 0);
            let theirs = Arc::clone(&shared);
            let writer = thread::spawn(move || {
                let (indices, version) = &*theirs;
                let larger = indices.last().unwrap().larger(2, 4).unwrap();
                larger.insert(5, 0);
                let passed = || Version(version).pass();
                indices.replace(larger, passed).unwrap();
            });
            let (indices, version) = &*shared;
            let search = || indices.last()?.find(5, |entry| entry == 0);
            if let Ok(found) = Version(version).read(search) {
                assert_eq!(found, Some(0));
            }
            writer.join().unwrap();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Few homes, close to each other and around the end; entries of one hash, too.
    fn hash(entry: u32) -> u64 {
        let home = (entry % 5).wrapping_sub(2) << 26;
        (u64::from(home) << 32) | (u64::from(entry / 7) << 30)
    }

    proptest! {
        /// An entry is found until it is taken out.
        ///
        /// Covers: AV-9
        #[test]
        fn an_index_does_as_a_set(ops in proptest::collection::vec((any::<bool>(), 0u32..50), 0..300)) {
            let places = ReverseIndex::new(50, 64).unwrap();
            let mut model = BTreeSet::new();
            for (insert, entry) in ops {
                match insert {
                    true if model.insert(entry) => places.insert(hash(entry), entry),
                    false if model.remove(&entry) => places.remove(hash(entry), entry, hash),
                    _ => {}
                }
                for entry in 0..50 {
                    let found = places.find(hash(entry), |e| e == entry);
                    prop_assert_eq!(found, model.contains(&entry).then_some(entry));
                }
            }
        }
    }

    /// Covers: AV-9
    #[test]
    fn an_index_is_at_least_four_fifths_full_when_it_has_grown() {
        let (mut len, mut steps) = (64, 0);
        while len < 1 << 31 {
            let before = len;
            len = next(len).next_multiple_of(LINE);
            steps += 1;
            let used = (before * MOST_TENTHS / 10) as f64 / len as f64;
            assert!(len <= SMALL || used > 0.79, "{used} of {len}");
        }
        // And one for each doubling of the entries.
        assert!(steps + 30 < GENERATIONS, "{steps}");
    }

    #[test]
    fn an_index_has_room_for_its_stated_entries() {
        for entries in [0, 1, 57, 58, 1000, 1 << 20] {
            let places = ReverseIndex::new(entries, entries.max(1)).unwrap();
            assert!(entries == 0 || places.has_room(entries - 1), "{entries}");
            assert!(places.takes(entries.max(1) as u32 - 1));
        }
    }

    #[test]
    fn the_one_before_has_no_memory() {
        let indices = ReverseIndices::new(ReverseIndex::new(10, 64).unwrap());
        indices.last().unwrap().insert(5, 5);
        let before = indices.last().unwrap();
        let larger = before.larger(1000, 64).unwrap();
        assert!(larger.bytes() > before.bytes());
        indices.replace(larger, || {}).unwrap();
        assert_eq!(before.find(5, |_| true), None);
        assert!(!std::ptr::eq(before, indices.last().unwrap()));
    }
}
