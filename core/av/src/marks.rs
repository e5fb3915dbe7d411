//! The marks of the entries that are taken, of one piece: a bit for each, and a bit for each 64 of
//! those that are all set.
//!
//! Only writers, who take turns, read and write them. The upper bits follow from the lower ones, so
//! a writer that mends a table needs the lower ones alone.

use super::words::MappedWords;
use ferrofabric_system::sync::AtomicU64;
use ferrofabric_system::sync::Ordering::Relaxed;

/// Bytes that the marks of so many entries take.
pub(super) const fn bytes(entries: usize) -> usize {
    8 * (entries.div_ceil(64) + entries.div_ceil(64 * 64))
}

/// The marks of a piece. Only writers have to do with them.
pub(super) struct EntryMarks<'a> {
    used: &'a [AtomicU64],
    full: &'a [AtomicU64],
}

impl<'a> EntryMarks<'a> {
    /// The marks of so many entries, a power of two of 64 at least, that start at byte `at`.
    pub(super) fn new(words: &'a MappedWords, at: usize, entries: usize) -> Self {
        Self {
            used: words.u64s(at, entries.div_ceil(64)),
            full: words.u64s(at + 8 * entries.div_ceil(64), entries.div_ceil(64 * 64)),
        }
    }

    /// The lowest entry that is free.
    pub(super) fn lowest_free(&self) -> Option<usize> {
        for (group, full) in self.full.iter().enumerate() {
            let full = full.load(Relaxed);
            if full != u64::MAX {
                let word = group * 64 + full.trailing_ones() as usize;
                let used = self.used.get(word)?.load(Relaxed);
                return Some(word * 64 + used.trailing_ones() as usize);
            }
        }
        None
    }

    /// Marks an entry as taken or free.
    pub(super) fn mark(&self, at: usize, taken: bool) {
        let word = &self.used[at / 64];
        let used = with_bit(word.load(Relaxed), at, taken);
        word.store(used, Relaxed);
        let full = &self.full[at / (64 * 64)];
        full.store(
            with_bit(full.load(Relaxed), at / 64, used == u64::MAX),
            Relaxed,
        );
    }

    /// Makes up what is free of the marks alone, and returns how many are.
    pub(super) fn recount(&self) -> usize {
        let mut free = 0;
        for (at, word) in self.used.iter().enumerate() {
            let used = word.load(Relaxed);
            free += used.count_zeros() as usize;
            let full = &self.full[at / 64];
            full.store(with_bit(full.load(Relaxed), at, used == u64::MAX), Relaxed);
        }
        free
    }
}

fn with_bit(word: u64, at: usize, set: bool) -> u64 {
    let bit = 1 << (at % 64);
    match set {
        true => word | bit,
        false => word & !bit,
    }
}
