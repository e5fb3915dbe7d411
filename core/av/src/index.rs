//! The way back: a hash table from an address to its entry, with linear probing.
//!
//! A place holds 32 bits of hash and the entry's number plus one; 0 is an empty place. The hash's
//! upper bits say where the search starts, so a table can be copied to a larger one, and be mended
//! after a removal, with no look at an address.

use super::chunk::NameWords;
use ferrofabric_system::prefetch::prefetch;
use ferrofabric_system::sync::AtomicU64;
use ferrofabric_system::sync::Ordering::{Relaxed, Release};

/// Logarithm of the number of places of the smallest index.
pub(super) const FEWEST_LOG2: u32 = if cfg!(loom) { 1 } else { 6 };

/// Bytes that an index of 2 to the power of `log2` places takes.
pub(super) const fn bytes(log2: u32) -> usize {
    8 << log2
}

/// Logarithm of the number of places for so many entries.
pub(super) fn log2_for(entries: usize) -> u32 {
    (entries.saturating_mul(16) / 13 + 1)
        .next_power_of_two()
        .trailing_zeros()
        .clamp(FEWEST_LOG2, 32)
}

/// Whether so many entries are all that an index takes: 13 of 16 places.
pub(super) fn is_full(entries: usize, log2: u32) -> bool {
    entries >= (13usize << log2) / 16
}

/// The start of a new table's hashes: a peer that chooses addresses cannot make them collide.
#[cfg(not(loom))]
pub(super) fn seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

/// Each interleaving is of the same table.
#[cfg(loom)]
pub(super) fn seed() -> u64 {
    1
}

/// The hash of an address.
#[inline]
pub(super) fn hash(name: &NameWords, seed: u64) -> u32 {
    (wide_hash(name, seed) >> 32) as u32
}

/// The same, twice as long.
#[inline]
pub(super) fn wide_hash(name: &NameWords, seed: u64) -> u64 {
    // No product of two words waits for that of two others.
    let [a, b, c, d, e, f, g, h] = *name;
    let seed = seed ^ KEYS[4];
    let first = folded(a ^ seed, b ^ KEYS[0]) ^ folded(c ^ seed, d ^ KEYS[1]).rotate_left(21);
    let second = folded(e ^ seed, f ^ KEYS[2]) ^ folded(g ^ seed, h ^ KEYS[3]).rotate_left(43);
    folded(first ^ KEYS[0], second ^ seed)
}

/// A hash that goes on with a word.
#[inline]
pub(super) fn mix(state: u64, word: u64) -> u64 {
    folded(state ^ word, KEYS[0]).wrapping_add(KEYS[0])
}

/// Both halves of a product, of which each has something of every bit of both factors.
#[inline]
fn folded(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Odd, with no pattern in their bits (the fractions of the golden ratio and of the roots of 2, 3,
/// 5 and 7).
const KEYS: [u64; 5] = [
    0x9e37_79b9_7f4a_7c15,
    0x6a09_e667_f3bc_c909,
    0xbb67_ae85_84ca_a73b,
    0x3c6e_f372_fe94_f82b,
    0xa54f_f53a_5f1d_36f1,
];

/// An index.
#[derive(Clone, Copy)]
pub(super) struct HashIndex<'a> {
    places: &'a [AtomicU64],
    log2: u32,
}

impl<'a> HashIndex<'a> {
    pub(super) fn new(places: &'a [AtomicU64], log2: u32) -> Self {
        Self { places, log2 }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (u64::from(hash) << self.log2 >> 32) as usize
    }

    #[inline]
    fn mask(&self) -> usize {
        (1 << self.log2) - 1
    }

    /// The first result of `held` for an entry with this hash.
    #[inline]
    pub(super) fn find<T>(&self, hash: u32, mut held: impl FnMut(u32) -> Option<T>) -> Option<T> {
        let mut at = self.home(hash);
        // While a writer is at work there may be no empty place in sight.
        for _ in 0..self.places.len() {
            let place = self.places[at].load(Relaxed);
            if place == 0 {
                return None;
            }
            if (place >> 32) as u32 == hash {
                let entry = (place as u32).wrapping_sub(1);
                let found = held(entry);
                if found.is_some() {
                    return found;
                }
            }
            at = (at + 1) & self.mask();
        }
        None
    }

    /// Has the places brought closer where a search for this hash will start.
    #[inline(always)]
    pub(super) fn prefetch(&self, hash: u32) {
        prefetch(self.places.as_ptr().wrapping_add(self.home(hash)));
    }

    /// Enters an entry. There is room.
    pub(super) fn insert(&self, hash: u32, entry: u32) {
        let mut at = self.home(hash);
        while self.places[at].load(Relaxed) != 0 {
            at = (at + 1) & self.mask();
        }
        let place = (u64::from(hash) << 32) | u64::from(entry.wrapping_add(1));
        self.places[at].store(place, Release);
    }

    /// Takes an entry out, and moves those up that its place kept from theirs. False: it was not
    /// there.
    pub(super) fn remove(&self, hash: u32, entry: u32) -> bool {
        let wanted = (u64::from(hash) << 32) | u64::from(entry.wrapping_add(1));
        let mut gap = self.home(hash);
        loop {
            match self.places[gap].load(Relaxed) {
                0 => return false,
                place if place == wanted => break,
                _ => gap = (gap + 1) & self.mask(),
            }
        }
        let mut at = gap;
        loop {
            at = (at + 1) & self.mask();
            let place = self.places[at].load(Relaxed);
            if place == 0 {
                break;
            }
            let from_home = at.wrapping_sub(self.home((place >> 32) as u32)) & self.mask();
            if from_home >= at.wrapping_sub(gap) & self.mask() {
                self.places[gap].store(place, Relaxed);
                gap = at;
            }
        }
        self.places[gap].store(0, Relaxed);
        true
    }

    /// Copies all entries to an empty index.
    pub(super) fn copy_to(&self, to: &HashIndex<'_>) {
        for place in self.places {
            let place = place.load(Relaxed);
            if place != 0 {
                to.insert((place >> 32) as u32, (place as u32).wrapping_sub(1));
            }
        }
    }

    /// Empties it.
    pub(super) fn clear(&self) {
        for place in self.places {
            place.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Few hashes, close to each other and around the end: an entry is found until it is taken
        /// out.
        #[test]
        fn an_index_does_as_a_map(ops in proptest::collection::vec((any::<bool>(), 0u32..40), 0..300)) {
            let places: Vec<_> = (0..64).map(|_| AtomicU64::new(0)).collect();
            let index = HashIndex::new(&places, 6);
            let hash = |entry: u32| (entry % 5).wrapping_sub(2) << 26;
            let mut model = BTreeMap::new();
            for (insert, entry) in ops {
                match insert {
                    true if model.insert(entry, ()).is_none() => index.insert(hash(entry), entry),
                    true => {}
                    false => {
                        model.remove(&entry);
                        index.remove(hash(entry), entry);
                    }
                }
                for entry in 0..40 {
                    let found = index.find(hash(entry), |e| (e == entry).then_some(e));
                    prop_assert_eq!(found, model.contains_key(&entry).then_some(entry));
                }
            }
            let more: Vec<_> = (0..128).map(|_| AtomicU64::new(0)).collect();
            let larger = HashIndex::new(&more, 7);
            index.copy_to(&larger);
            for entry in 0..40 {
                prop_assert_eq!(larger.find(hash(entry), |e| (e == entry).then_some(e)).is_some(), model.contains_key(&entry));
            }
        }
    }

    #[test]
    fn hashes_of_addresses_that_differ_in_one_bit_spread() {
        let mut homes = std::collections::HashSet::new();
        let names = |bit: usize| {
            let mut name = [0; 8];
            name[bit / 64] = 1 << (bit % 64);
            name
        };
        for bit in 0..512 {
            homes.insert(hash(&names(bit), 1) >> 20);
        }
        assert!(homes.len() > 450, "{}", homes.len());
        assert_ne!(hash(&[0; 8], 1), hash(&[0; 8], 2));
    }

    #[test]
    fn an_index_has_room_for_its_stated_entries() {
        for entries in [0, 1, 51, 52, 53, 1000, 1 << 20] {
            let log2 = log2_for(entries);
            assert!(entries == 0 || !is_full(entries - 1, log2), "{entries}");
        }
    }
}
