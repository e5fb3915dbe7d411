//! A piece of a table: so many entries, and which of them are taken.
//!
//! An entry is 64 bytes of address and a generation, which is odd while the address is in. A reader takes the generation,
//! then the address, then the generation again: if that is the same, the address is whole (the pairs of orderings are named
//! where they are).

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64, fence};

use super::marks::{self, Marks};
use super::words::Words;
use crate::addr::NATIVE_LEN;

/// Bytes of an address as the table holds it.
pub(super) type Name = [u8; NATIVE_LEN];

const NAME_WORDS: usize = NATIVE_LEN / 8;

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
pub(super) struct Chunk<'a> {
    words: &'a Words,
    len: usize,
}

impl<'a> Chunk<'a> {
    pub(super) fn new(words: &'a Words, len: usize) -> Self {
        Self { words, len }
    }

    #[inline]
    fn generation_word(&self, at: usize) -> &'a AtomicU32 {
        &self.words.u32s(generations_at(self.len), self.len)[at]
    }

    #[inline]
    fn name_words(&self, at: usize) -> &'a [AtomicU64] {
        self.words.u64s(at * NATIVE_LEN, NAME_WORDS)
    }

    /// Which entries are taken.
    pub(super) fn marks(&self) -> Marks<'a> {
        Marks::new(self.words, marks_at(self.len), self.len)
    }

    /// The generation of an entry.
    #[inline]
    pub(super) fn generation(&self, at: usize) -> u32 {
        self.generation_word(at).load(Relaxed)
    }

    /// The address of an entry and its generation; `None` when none is in.
    #[inline]
    pub(super) fn read(&self, at: usize) -> Option<(Name, u32)> {
        let word = self.generation_word(at);
        loop {
            // Pairs with the Release store in `put`: who sees the generation sees the address.
            let generation = word.load(Acquire);
            if generation & 1 == 0 {
                return None;
            }
            let name = self.name(at);
            // Pairs with the Release fence in `put`: who has seen a word of the next address sees its generation's end.
            fence(Acquire);
            if word.load(Relaxed) == generation {
                return Some((name, generation));
            }
        }
    }

    /// The bytes of an entry, which may be changing.
    #[inline]
    pub(super) fn name(&self, at: usize) -> Name {
        // A fixed number of words is read without a loop.
        let words: [u64; NAME_WORDS] = match self.name_words(at).first_chunk::<NAME_WORDS>() {
            Some(words) => std::array::from_fn(|i| words[i].load(Relaxed)),
            None => [0; NAME_WORDS],
        };
        zerocopy::transmute!(words)
    }

    /// Whether the entry has these bytes, which may be changing.
    #[inline]
    pub(super) fn has(&self, at: usize, name: &Name) -> bool {
        let Some(words) = self.name_words(at).first_chunk::<NAME_WORDS>() else {
            return false;
        };
        let wanted = words_of(name);
        let differ = |all: u64, i: usize| all | (words[i].load(Relaxed) ^ wanted[i]);
        (0..NAME_WORDS).fold(0, differ) == 0
    }

    /// Puts an address in a taken entry, and returns its generation.
    pub(super) fn put(&self, at: usize, name: &Name) -> u32 {
        // Pairs with the Acquire fence in `read`.
        fence(Release);
        for (word, value) in self.name_words(at).iter().zip(words_of(name)) {
            word.store(value, Relaxed);
        }
        let generation = self.generation_word(at);
        let new = generation.load(Relaxed).wrapping_add(1) | 1;
        // Pairs with the Acquire load in `read`.
        generation.store(new, Release);
        new
    }

    /// Takes the address out of an entry, and returns its generation.
    pub(super) fn clear(&self, at: usize) -> u32 {
        let generation = self.generation_word(at);
        let new = (generation.load(Relaxed) | 1).wrapping_add(1);
        generation.store(new, Release);
        new
    }
}

/// An address as words.
#[inline]
pub(super) fn words_of(name: &Name) -> [u64; NAME_WORDS] {
    zerocopy::transmute!(*name)
}
