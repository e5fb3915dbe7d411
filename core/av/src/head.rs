//! The head of a table: the words that have its length and the places of its pieces. For a named
//! table it is the beginning of the file, which all processes read.
//!
//! The order of the words is the file's format: a change of it is a new version in `Magic`.

use super::arena::PIECES;
use super::words::{ALIGN, MappedWords};
use ferrofabric_system::sync::{AtomicU32, AtomicU64};

/// Bytes of a head.
pub(super) const BYTES: usize = 8 * (SOCKETS_AT + PIECES);

/// Bytes of the head of a table in a file, with the ring behind it.
pub(super) const SHARED_BYTES: usize = RING_AT + 4 * RING;

/// Changes that the ring holds.
pub(super) const RING: usize = if cfg!(loom) { 3 } else { 4096 };

const RING_AT: usize = if cfg!(loom) { 512 } else { 4096 };

const _: () = assert!(BYTES <= RING_AT && SHARED_BYTES as u64 <= ALIGN);

const ENTRIES_AT: usize = 24;
const INDEX_AT: usize = ENTRIES_AT + PIECES;
const FREE: usize = INDEX_AT + PIECES;
const SOCKETS_AT: usize = FREE + PIECES;

/// The single words.
#[derive(Clone, Copy)]
#[repr(usize)]
pub(super) enum HeadWord {
    /// The kind of the file, and its version. Written last: a file without it is not ready.
    Magic,
    /// The start of the hashes, drawn at random.
    Seed,
    /// Logarithm of the number of entries in the first piece.
    FirstLog2,
    /// How addresses are made: type and bits.
    Model,
    /// Where the first process has the array of addresses.
    MapAddr,
    /// Odd while a writer is at work.
    Version,
    /// The change that the writer makes.
    Journal,
    /// Pieces of entries.
    Chunks,
    /// Addresses that are in.
    Len,
    /// The index in use, by its number from 1.
    Index,
    /// Logarithm of the number of places in the first index.
    IndexFirstLog2,
    /// Length of the file in bytes.
    End,
    /// Changes so far; the newest are listed in the ring.
    Changes,
    /// The process that has the turn of a table in a file, for errors; 0: none has, or it was
    /// killed.
    Writer,
    /// Beginnings and ends of turns so far.
    Turns,
}

/// A head.
pub(super) struct TableHead(pub(super) MappedWords);

impl TableHead {
    #[inline]
    pub(super) fn word(&self, word: HeadWord) -> &AtomicU64 {
        &self.0.u64s(0, FREE)[word as usize]
    }

    /// Where a piece of entries lies.
    pub(super) fn entries_at(&self, piece: usize) -> &AtomicU64 {
        &self.0.u64s(0, FREE)[ENTRIES_AT + piece.min(PIECES - 1)]
    }

    /// Where an index lies.
    pub(super) fn index_at(&self, piece: usize) -> &AtomicU64 {
        &self.0.u64s(0, FREE)[INDEX_AT + piece.min(PIECES - 1)]
    }

    /// Where a piece of socket addresses lies.
    pub(super) fn sockets_at(&self, piece: usize) -> &AtomicU64 {
        &self.0.u64s(0, SOCKETS_AT + PIECES)[SOCKETS_AT + piece.min(PIECES - 1)]
    }

    /// The entry that a change was of, by the change's number; only in a file.
    pub(super) fn ring(&self, change: u64) -> Option<&AtomicU32> {
        self.0.u32s(RING_AT, RING).get(change as usize % RING)
    }

    /// How many entries of a piece are free.
    pub(super) fn free_in(&self, piece: usize) -> &AtomicU64 {
        &self.0.u64s(0, FREE + PIECES)[FREE + piece.min(PIECES - 1)]
    }
}
