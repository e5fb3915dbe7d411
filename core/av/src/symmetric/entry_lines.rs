//! A piece of a symmetric table: entries, six in a cache line of 64 bytes, and which of them are
//! taken.
//!
//! An entry is 80 bits. The last word of a line says which of its entries have an address, and
//! counts removals: a reader takes it, then the entry, then it again, and if nothing was removed
//! meanwhile the entry is whole.

use crate::marks::{self, EntryMarks};
use crate::words::MappedWords;
use ferrofabric_contracts::addr::NUMBER_BITS;
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU64, fence};

/// Bytes of a line.
const LINE: usize = 64;

/// Words of a line: one for the lower part of each entry, then the upper parts of four, then those
/// of two below the state.
const WORDS: usize = LINE / 8;
const ENTRIES: usize = 6;
const UPPER: usize = 6;
const STATE: usize = 7;

/// Bits of an entry's upper part.
const UPPER_BITS: usize = 16;

/// Upper parts in a word of their own.
const FOUR: usize = 4;

/// In the state: from here a bit for each entry, set while it has an address; above them the
/// removals.
const THERE: usize = 2 * UPPER_BITS;
const REMOVALS: usize = THERE + ENTRIES;

/// Bits that number a node.
pub(super) const NODE_BITS: u32 = 24;

/// Bits of a node's number in an entry's lower part.
const LOW_NODE_BITS: u32 = u64::BITS - NUMBER_BITS;

const _: () = assert!((NODE_BITS - LOW_NODE_BITS) as usize == UPPER_BITS);

/// The part of an address that its entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PackedName {
    /// Where the part is that it shares with others.
    pub(super) node: u32,
    /// The endpoint's own number.
    pub(super) number: u64,
}

impl PackedName {
    #[inline]
    fn from_parts(low: u64, high: u64) -> Self {
        let node = (high << LOW_NODE_BITS) | (low >> NUMBER_BITS);
        Self {
            node: node as u32,
            number: low & ((1 << NUMBER_BITS) - 1),
        }
    }

    /// The lower part.
    #[inline]
    pub(super) fn low(self) -> u64 {
        (u64::from(self.node) << NUMBER_BITS) | self.number
    }

    /// The upper part.
    #[inline]
    pub(super) fn high(self) -> u64 {
        u64::from(self.node) >> LOW_NODE_BITS
    }
}

/// Bytes that a piece of so many entries takes.
pub(super) const fn bytes(entries: usize) -> usize {
    marks_at(entries) + marks::bytes(entries)
}

const fn marks_at(entries: usize) -> usize {
    entries.div_ceil(ENTRIES) * LINE
}

/// A piece of `len` entries, a power of two of 64 at least.
#[derive(Clone, Copy)]
pub(super) struct EntryLines<'a> {
    words: &'a MappedWords,
    len: usize,
}

/// An entry as a reader found it.
#[derive(Clone, Copy)]
pub(super) struct EntrySnapshot {
    pub(super) key: PackedName,
    state: u64,
}

impl<'a> EntryLines<'a> {
    pub(super) fn new(words: &'a MappedWords, len: usize) -> Self {
        Self { words, len }
    }

    /// The line of an entry, and which of its entries it is.
    #[inline]
    fn line(&self, at: usize) -> (&'a [AtomicU64], usize) {
        let (line, slot) = (at / ENTRIES, at % ENTRIES);
        (self.words.u64s(line * LINE, WORDS), slot)
    }

    /// Has the line of an entry brought closer that will be looked at soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        self.words.prefetch(at / ENTRIES * LINE);
    }

    /// Which entries are taken.
    pub(super) fn marks(&self) -> EntryMarks<'a> {
        EntryMarks::new(self.words, marks_at(self.len), self.len)
    }

    /// Whether an entry has an address.
    #[inline]
    pub(super) fn has_address(&self, at: usize) -> bool {
        let (line, slot) = self.line(at);
        has_address(line[STATE].load(Relaxed), slot)
    }

    /// An entry that has an address. It holds if [`still`](Self::still) says so.
    #[inline]
    pub(super) fn look(&self, at: usize) -> Option<EntrySnapshot> {
        let (line, slot) = self.line(at);
        // Pairs with the Release store in `put`: a reader of the bit of an address sees the
        // address.
        let state = line[STATE].load(Acquire);
        has_address(state, slot).then(|| EntrySnapshot {
            key: key(line, slot, state),
            state,
        })
    }

    /// Whether what was read of an entry, and after it, is still so.
    #[inline]
    pub(super) fn still(&self, at: usize, seen: &EntrySnapshot) -> bool {
        let (line, slot) = self.line(at);
        // Pairs with the Release fences in `put` and `clear`: a reader of words from after a
        // removal sees the removal.
        fence(Acquire);
        let now = line[STATE].load(Relaxed);
        has_address(now, slot) && now >> REMOVALS == seen.state >> REMOVALS
    }

    /// The node of an entry, which may be changing, if it has an address with this number.
    #[inline]
    pub(super) fn node_of(&self, at: usize, number: u64) -> Option<u32> {
        let (line, slot) = self.line(at);
        let state = line[STATE].load(Relaxed);
        let key = key(line, slot, state);
        (has_address(state, slot) && key.number == number).then_some(key.node)
    }

    /// The part of an address that an entry holds, for a writer.
    pub(super) fn key(&self, at: usize) -> PackedName {
        let (line, slot) = self.line(at);
        key(line, slot, line[STATE].load(Relaxed))
    }

    /// Puts an address in a taken entry.
    pub(super) fn put(&self, at: usize, key: PackedName) {
        let (line, slot) = self.line(at);
        // Pairs with the Acquire fence in `still`.
        fence(Release);
        line[slot].store(key.low(), Relaxed);
        let (word, shift) = upper(slot);
        let with_upper =
            |value: u64| value & !(((1 << UPPER_BITS) - 1) << shift) | (key.high() << shift);
        let mut state = line[STATE].load(Relaxed);
        match word {
            STATE => state = with_upper(state),
            _ => line[word].store(with_upper(line[word].load(Relaxed)), Relaxed),
        }
        // Pairs with the Acquire load in `look`.
        line[STATE].store(state | (1 << (THERE + slot)), Release);
    }

    /// Takes the address out of an entry.
    pub(super) fn clear(&self, at: usize) {
        let (line, slot) = self.line(at);
        let state = line[STATE].load(Relaxed) & !(1 << (THERE + slot));
        line[STATE].store(state.wrapping_add(1 << REMOVALS), Release);
        // Pairs with the Acquire fence in `still`.
        fence(Release);
    }
}

#[inline]
fn has_address(state: u64, slot: usize) -> bool {
    (state >> (THERE + slot)) & 1 == 1
}

/// The word that an entry's upper part lies in, and its lowest bit there.
#[inline]
fn upper(slot: usize) -> (usize, usize) {
    (UPPER + slot / FOUR, slot % FOUR * UPPER_BITS)
}

#[inline]
fn key(line: &[AtomicU64], slot: usize, state: u64) -> PackedName {
    let (word, shift) = upper(slot);
    let upper = match word {
        STATE => state,
        _ => line[word].load(Relaxed),
    };
    let high = (upper >> shift) & ((1 << UPPER_BITS) - 1);
    PackedName::from_parts(line[slot].load(Relaxed), high)
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use ferrofabric_system::sync::explore;

    /// A reader gets an entry whole while that becomes another's, in whichever word its upper part
    /// lies. Fails without the look at the state afterwards and without the fence before it.
    #[test]
    fn entries_are_read_whole() {
        for at in [0, FOUR] {
            explore(2, move || {
                let words = Arc::new(MappedWords::private(bytes(FOUR)).unwrap());
                let lines = EntryLines::new(&words, FOUR);
                let [before, after] = [1, 2].map(|n| PackedName {
                    node: n << LOW_NODE_BITS | n,
                    number: n.into(),
                });
                lines.put(at, before);
                let theirs = Arc::clone(&words);
                let writer = thread::spawn(move || {
                    let lines = EntryLines::new(&theirs, FOUR);
                    lines.clear(at);
                    lines.put(at, after);
                });
                if let Some(seen) = lines.look(at) {
                    let whole = [before, after].contains(&seen.key);
                    assert!(whole || !lines.still(at, &seen), "{:?}", seen.key);
                }
                writer.join().unwrap();
                assert_eq!(lines.look(at).map(|seen| seen.key), Some(after));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn any_key() -> impl Strategy<Value = PackedName> {
        (0u32..1 << NODE_BITS, 0u64..1 << NUMBER_BITS)
            .prop_map(|(node, number)| PackedName { node, number })
    }

    proptest! {
        /// Entries share words; none is changed with another.
        ///
        /// Covers: AV-9
        #[test]
        fn entries_of_a_line_are_apart(ops in proptest::collection::vec((0usize..64, proptest::option::of(any_key())), 0..200)) {
            let words = MappedWords::private(bytes(64)).unwrap();
            let lines = EntryLines::new(&words, 64);
            let mut model = BTreeMap::new();
            for (at, key) in ops {
                let before = lines.look(at);
                match key {
                    Some(key) if before.is_none() => {
                        lines.put(at, key);
                        model.insert(at, key);
                    }
                    _ if before.is_some() => {
                        lines.clear(at);
                        model.remove(&at);
                        prop_assert!(!lines.still(at, &before.unwrap()));
                    }
                    _ => {}
                }
                for at in 0..64 {
                    let there = model.get(&at).copied();
                    prop_assert_eq!(lines.look(at).map(|seen| seen.key), there);
                    prop_assert_eq!(lines.has_address(at), there.is_some());
                    prop_assert!(there.is_none_or(|key| lines.node_of(at, key.number) == Some(key.node) && lines.key(at) == key));
                }
            }
        }
    }

    /// Covers: AV-9
    #[test]
    fn a_snapshot_holds_until_the_entry_is_removed() {
        let words = MappedWords::private(bytes(64)).unwrap();
        let lines = EntryLines::new(&words, 64);
        let key = PackedName { node: 7, number: 9 };
        lines.put(5, key);
        let seen = lines.look(5).unwrap();
        lines.put(4, PackedName { node: 1, number: 2 });
        assert!(lines.still(5, &seen));
        lines.clear(5);
        assert!(!lines.still(5, &seen));
        lines.put(5, key);
        assert!(!lines.still(5, &seen), "another address in the same entry");
    }
}
