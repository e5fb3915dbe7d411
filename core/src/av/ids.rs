//! The users' own IDs of addresses (`FI_AV_USER_ID`, fi_av(3)): what completions report in place of an address. They are a
//! process's own, also where it shares the addresses.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::arena::{Arena, Pieces};
use super::words::Words;
use crate::error::Result;
use crate::types::FiAddr;

/// IDs of the first piece; each further one is as long as all before.
const FIRST_LOG2: u32 = 10;

/// The IDs of one address vector, by entry. Memory is taken where IDs are set.
pub(super) struct Ids {
    pieces: Pieces,
    any: AtomicBool,
    /// Every address has one; until it is set it is [`FiAddr::NOTAVAIL`].
    all: bool,
}

impl Ids {
    /// No IDs yet. With `all` (the flag at opening) completions never report an address.
    pub(super) fn new(all: bool) -> Self {
        Self {
            pieces: Pieces::default(),
            any: AtomicBool::new(all),
            all,
        }
    }

    /// Whether every address has one.
    pub(super) fn are_all(&self) -> bool {
        self.all
    }

    /// Whether completions report other than addresses. Costs a load.
    #[inline]
    pub(super) fn are_any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// The ID of an entry; `addr` if it has none of its own.
    pub(super) fn of(&self, entry: u32, addr: FiAddr) -> FiAddr {
        let (number, at) = place(entry);
        let word = self.pieces.get(number).and_then(|piece| piece.get());
        match word.map_or(0, |piece| {
            word_at(piece, number, at).load(Ordering::Relaxed)
        }) {
            0 if self.all => FiAddr::NOTAVAIL,
            0 => addr,
            // Kept inverted: memory starts as zeros, which is "none".
            inverted => FiAddr(!inverted),
        }
    }

    /// Gives an entry an ID.
    ///
    /// # Errors
    ///
    /// `ENOMEM`: there is no memory.
    pub(super) fn set(&self, entry: u32, id: FiAddr) -> Result<()> {
        let (number, at) = place(entry);
        let made = (&AtomicU64::new(0), &AtomicU64::new(0));
        let piece = Arena::Private.create(&self.pieces, number, 8 * len(number), made)?;
        word_at(piece, number, at).store(!id.0, Ordering::Relaxed);
        self.any.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// An entry has another address now, or none.
    pub(super) fn forget(&self, entry: u32) {
        let (number, at) = place(entry);
        if let Some(piece) = self.pieces.get(number).and_then(|piece| piece.get()) {
            word_at(piece, number, at).store(0, Ordering::Relaxed);
        }
    }
}

fn len(number: usize) -> usize {
    1 << (FIRST_LOG2 as usize + number.saturating_sub(1))
}

fn place(entry: u32) -> (usize, usize) {
    let number = (u32::BITS - (entry >> FIRST_LOG2).leading_zeros()) as usize;
    let first = match number {
        0 => 0,
        number => len(number),
    };
    (number, entry as usize - first)
}

fn word_at(piece: &Words, number: usize, at: usize) -> &AtomicU64 {
    &piece.u64s(0, len(number))[at]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_its_entrys_alone() {
        let ids = Ids::new(false);
        assert!(!ids.are_any());
        let entries = [0, 1, 1023, 1024, 2047, 2048, 4096, 1 << 20];
        for entry in entries {
            let (addr, id) = (FiAddr(entry.into()), FiAddr(u64::from(entry) + 5));
            assert_eq!(ids.of(entry, addr), addr);
            ids.set(entry, id).unwrap();
            assert_eq!(ids.of(entry, addr), id);
        }
        assert!(ids.are_any());
        for entry in entries {
            assert_eq!(ids.of(entry, FiAddr(9)), FiAddr(u64::from(entry) + 5));
            ids.forget(entry);
            assert_eq!(ids.of(entry, FiAddr(9)), FiAddr(9));
        }
        assert_eq!(Ids::new(true).of(7, FiAddr(7)), FiAddr::NOTAVAIL);
    }
}
