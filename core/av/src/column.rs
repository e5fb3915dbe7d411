//! A number for each entry of a table, for state that only this process keeps (user IDs,
//! subscriptions).
//!
//! A number is 0 until it is set, and memory is taken only near entries whose numbers were set.
//! Readers take no lock.

use super::arena::{ArenaPieces, PieceArena};
use super::doubling::Doubling;
use ferrofabric_contracts::error::Result;
use ferrofabric_system::sync::{AtomicU64, Ordering};

const PIECES: Doubling = Doubling::new(if cfg!(loom) { 1 } else { 10 });

/// Numbers by entry, of this process alone.
#[derive(Default)]
pub(super) struct Column(ArenaPieces);

impl Column {
    /// The number of an entry.
    #[inline]
    pub(super) fn get(&self, entry: u32) -> u64 {
        self.there(entry)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// The number of an entry, where any near it was set.
    #[inline]
    pub(super) fn there(&self, entry: u32) -> Option<&AtomicU64> {
        let (piece, at) = PIECES.place(entry);
        let words = self.0.get(piece)?.get()?;
        words.u64s(8 * at, 1).first()
    }

    /// Has the number of an entry brought closer that will be looked at soon.
    #[inline]
    pub(super) fn prefetch(&self, entry: u32) {
        let (piece, at) = PIECES.place(entry);
        if let Some(words) = self.0.get(piece).and_then(|piece| piece.get()) {
            words.prefetch(8 * at);
        }
    }

    /// The number of an entry, to be set.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn make(&self, entry: u32) -> Result<&AtomicU64> {
        let (piece, at) = PIECES.place(entry);
        let made = (&AtomicU64::new(0), &AtomicU64::new(0));
        let words = PieceArena::Private.create(&self.0, piece, 8 * PIECES.len(piece), made)?;
        Ok(&words.u64s(8 * at, 1)[0])
    }

    /// Bytes that it takes when all of it is used.
    pub(super) fn bytes(&self) -> usize {
        let made = self
            .0
            .iter()
            .enumerate()
            .filter(|(_, one)| one.get().is_some());
        made.map(|(piece, _)| 8 * PIECES.len(piece)).sum()
    }
}
