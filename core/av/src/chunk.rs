//! A piece of a table: so many entries, and which of them are taken.
//!
//! An entry is 64 bytes of address and an incarnation: the generation, which is odd while an address
//! is in, and above it the number of addresses that replaced each other under one generation. A
//! reader takes the incarnation, then the address, then the incarnation again: if that is the same,
//! the address is whole (the pairs of orderings are named where they are).

use super::marks::{self, EntryMarks};
use super::words::MappedWords;
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeWords};
use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU32, AtomicU64, fence};

/// An address as the table holds it: by the word, so that none is taken apart or put together on
/// the way.
pub(super) type NameWords = NativeWords;

/// The bits of an entry's incarnation that are its generation. Those above count how often another
/// endpoint has replaced the one in the entry, which keeps its address (`docs/adr/0087`).
pub(super) const GENERATION: u32 = (1 << 24) - 1;

const NAME_WORDS: usize = NATIVE_LEN / 8;

/// Words of an address that are kept.
#[cfg(not(loom))]
const KEPT: usize = NAME_WORDS;
/// Two can be torn as well as all: the others are zeros in the addresses of the models.
#[cfg(loom)]
const KEPT: usize = 2;

/// Bytes that a piece of so many entries takes.
pub(super) const fn bytes(entries: usize) -> usize {
    marks_at(entries) + marks::bytes(entries)
}

const fn generations_at(entries: usize) -> usize {
    entries * NATIVE_LEN
}

const fn marks_at(entries: usize) -> usize {
    generations_at(entries) + entries * 4
}

/// A piece of `len` entries, a power of two of 64 at least.
#[derive(Clone, Copy)]
pub(super) struct EntryChunk<'a> {
    words: &'a MappedWords,
    len: usize,
}

impl<'a> EntryChunk<'a> {
    pub(super) fn new(words: &'a MappedWords, len: usize) -> Self {
        Self { words, len }
    }

    #[inline]
    fn generation_word(&self, at: usize) -> &'a AtomicU32 {
        &self.words.u32s(generations_at(self.len), self.len)[at]
    }

    #[inline]
    fn name_words(&self, at: usize) -> Option<&'a [AtomicU64; KEPT]> {
        self.words.u64s(at * NATIVE_LEN, KEPT).first_chunk::<KEPT>()
    }

    /// Which entries are taken.
    pub(super) fn marks(&self) -> EntryMarks<'a> {
        EntryMarks::new(self.words, marks_at(self.len), self.len)
    }

    /// The incarnation of an entry.
    #[inline]
    pub(super) fn incarnation(&self, at: usize) -> u32 {
        self.generation_word(at).load(Relaxed)
    }

    /// The address of an entry and its incarnation; `None` when none is in.
    #[inline(always)]
    pub(super) fn read(&self, at: usize) -> Option<(NameWords, u32)> {
        let (word, words) = (self.generation_word(at), self.name_words(at)?);
        loop {
            // Pairs with the Release store in `put`: a reader of the generation sees the address.
            let generation = word.load(Acquire);
            if generation & 1 == 0 {
                return None;
            }
            let name = loaded(words);
            // Pairs with the Release fence in `put`: a reader of a word of the next address sees
            // the end of this one's generation.
            fence(Acquire);
            if word.load(Relaxed) == generation {
                return Some((name, generation));
            }
        }
    }

    /// Has an entry brought closer that will be looked at soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        self.words.prefetch(generations_at(self.len) + 4 * at);
        self.words.prefetch(at * NATIVE_LEN);
    }

    /// The bytes of an entry, which may be changing.
    #[inline]
    pub(super) fn name(&self, at: usize) -> NameWords {
        self.name_words(at).map_or([0; NAME_WORDS], loaded)
    }

    /// The incarnation with which this address is in an entry; `None` when it is not.
    #[inline]
    pub(super) fn incarnation_of(&self, at: usize, name: &NameWords) -> Option<u32> {
        let (word, words) = (self.generation_word(at), self.name_words(at)?);
        // The orderings are those of `read`. A changing entry is for some moment not this
        // address's.
        let generation = word.load(Acquire);
        let differ = (0..KEPT).fold(0, |all, i| all | (words[i].load(Relaxed) ^ name[i]));
        fence(Acquire);
        let is_whole = generation & 1 == 1 && word.load(Relaxed) == generation;
        (differ == 0 && is_whole).then_some(generation)
    }

    /// Puts an address in a taken entry, and returns its incarnation.
    pub(super) fn put(&self, at: usize, name: &NameWords) -> u32 {
        // Pairs with the Acquire fence in `read`.
        fence(Release);
        for (word, value) in self.name_words(at).into_iter().flatten().zip(name) {
            word.store(*value, Relaxed);
        }
        let generation = self.generation_word(at);
        let new = generation.load(Relaxed).wrapping_add(1) | 1;
        // Pairs with the Acquire load in `read`.
        generation.store(new, Release);
        new
    }

    /// Takes the address out of an entry, and returns its next generation, which exceeds
    /// [`GENERATION`] once they are used up.
    pub(super) fn clear(&self, at: usize) -> u32 {
        let word = self.generation_word(at);
        let before = word.load(Relaxed);
        let next = (before & GENERATION | 1) + 1;
        word.store(before & !GENERATION | next & GENERATION, Release);
        next
    }

    /// Takes the address out of an entry that another one is put in, with the same generation.
    pub(super) fn vacate(&self, at: usize) {
        let word = self.generation_word(at);
        let replaced = word.load(Relaxed).wrapping_add(GENERATION + 1);
        word.store(replaced & !1, Release);
    }
}

/// The words of an entry now. A fixed number is read without a loop.
#[inline(always)]
fn loaded(words: &[AtomicU64; KEPT]) -> NameWords {
    std::array::from_fn(|i| words.get(i).map_or(0, |word| word.load(Relaxed)))
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use ferrofabric_system::sync::explore;

    const LEN: usize = 2;

    fn name(number: u64) -> NameWords {
        std::array::from_fn(|i| if i < KEPT { number } else { 0 })
    }

    /// Looks at an entry while another thread empties it and puts in an address. Returns the
    /// entry's incarnations before and after that, what was seen, and the entry.
    fn look_while_replaced<R>(
        empty: fn(&EntryChunk<'_>),
        look: impl FnOnce(&EntryChunk<'_>) -> R,
    ) -> (u32, R, u32, Arc<MappedWords>) {
        let words = Arc::new(MappedWords::private(bytes(LEN)).unwrap());
        let first = EntryChunk::new(&words, LEN).put(0, &name(1));
        let theirs = Arc::clone(&words);
        let writer = thread::spawn(move || {
            let chunk = EntryChunk::new(&theirs, LEN);
            empty(&chunk);
            chunk.put(0, &name(2))
        });
        let seen = look(&EntryChunk::new(&words, LEN));
        (first, seen, writer.join().unwrap(), words)
    }

    /// An entry becomes another's while it is compared with both addresses: each is in with its own
    /// generation or not at all. Fails without the second look at the generation, and without the
    /// fence before it.
    #[test]
    fn an_address_is_held_with_its_own_generation() {
        explore(2, || {
            let (first, seen, second, words) = look_while_replaced(
                |chunk| {
                    chunk.clear(0);
                },
                |chunk| chunk.incarnation_of(0, &name(2)),
            );
            assert!(
                first != second && [None, Some(second)].contains(&seen),
                "{seen:?}"
            );
            let after = EntryChunk::new(&words, LEN).incarnation_of(0, &name(2));
            assert_eq!(after, Some(second));
        });
    }

    /// An address replaces another one in its entry, under one generation, while the entry is read:
    /// each is read whole or not at all. Fails where `vacate` leaves the incarnation's upper bits as
    /// they are.
    #[test]
    fn an_address_that_is_replaced_is_read_whole() {
        explore(2, || {
            let (first, seen, second, _) =
                look_while_replaced(|chunk| chunk.vacate(0), |chunk| chunk.read(0));
            assert_eq!(first & GENERATION, second & GENERATION);
            let may_be = [None, Some((name(1), first)), Some((name(2), second))];
            assert!(may_be.contains(&seen), "{seen:?}");
        });
    }
}
