//! An index of entries for holders that identify them by a part of their address: of one holder,
//! growing with it.

use super::index::{self, FEWEST_LOG2, HashIndex, log2_for, mix};
use ferrofabric_system::sync::AtomicU64;

/// Entries by hashes of that part. The index has the hashes alone; the holder compares the parts.
pub struct EntryIndex {
    places: Box<[AtomicU64]>,
    log2: u32,
    len: usize,
    seed: u64,
}

impl Default for EntryIndex {
    fn default() -> Self {
        Self {
            places: places(FEWEST_LOG2),
            log2: FEWEST_LOG2,
            len: 0,
            seed: index::seed(),
        }
    }
}

impl EntryIndex {
    fn index(&self) -> HashIndex<'_> {
        HashIndex::new(&self.places, self.log2)
    }

    /// The hash of something, by the word; each index has its own.
    #[inline]
    pub fn hash(&self, words: impl IntoIterator<Item = u64>) -> u32 {
        (words.into_iter().fold(self.seed, mix) >> 32) as u32
    }

    /// Has the places brought closer where a search for this hash will start.
    #[inline]
    pub fn prefetch(&self, hash: u32) {
        self.index().prefetch(hash);
    }

    /// The first result of `held` for an entry with this hash.
    #[inline]
    pub fn find<T>(&self, hash: u32, held: impl FnMut(u32) -> Option<T>) -> Option<T> {
        self.index().find(hash, held)
    }

    /// Enters an entry.
    pub fn insert(&mut self, hash: u32, entry: u32) {
        if index::is_full(self.len, self.log2) {
            let log2 = log2_for(2 * self.len);
            let larger = places(log2);
            self.index().copy_to(&HashIndex::new(&larger, log2));
            (self.places, self.log2) = (larger, log2);
        }
        self.index().insert(hash, entry);
        self.len += 1;
    }

    /// Takes an entry out, if it is there by this hash.
    pub fn remove(&mut self, hash: u32, entry: u32) {
        self.len -= usize::from(self.index().remove(hash, entry));
    }
}

fn places(log2: u32) -> Box<[AtomicU64]> {
    (0..1usize << log2).map(|_| AtomicU64::new(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Entries of few hashes, each several times with others: an entry is found while the index
        /// grows, until it is taken out.
        ///
        /// Covers: AV-25
        #[test]
        fn an_index_does_as_a_set_while_it_grows(ops in proptest::collection::vec((0u8..4, 0u32..300), 0..600)) {
            let mut index = EntryIndex::default();
            let mut model = BTreeSet::new();
            let hash = |index: &EntryIndex, entry: u32| index.hash([u64::from(entry % 100), 7]);
            for (kind, entry) in ops {
                let with = hash(&index, entry);
                match kind {
                    0 => {
                        index.remove(with, entry);
                        model.remove(&entry);
                    }
                    _ if model.insert(entry) => index.insert(with, entry),
                    _ => {}
                }
            }
            prop_assert_eq!(index.len, model.len());
            for entry in 0..300 {
                let found = index.find(hash(&index, entry), |e| (e == entry).then_some(e));
                prop_assert_eq!(found, model.contains(&entry).then_some(entry));
            }
        }
    }
}
