//! The hazard word of each side of a link: the entry on the other side's board whose region this
//! side reads or writes at this moment.
//!
//! The peer sets its hazard and then looks at the entry again; the owner takes the region off the
//! board and then looks at the hazards. A fence lies between the two steps of either. So either the
//! peer sees that the region is gone, or the owner sees the hazard and waits for its end.

use crate::sync::{AtomicU64, Ordering, fence};

/// A side's hazard word, in a line of its own.
#[repr(C, align(64))]
pub(crate) struct Hazard {
    /// 0, or the number of an entry and 1.
    word: AtomicU64,
}

impl Hazard {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU64::new(0),
        }
    }

    /// Peer: names an entry until the result is dropped. `None` if `is_still` says, after that,
    /// that the entry or its owner is not there any more.
    pub(crate) fn protect(
        &self,
        entry: usize,
        is_still: impl FnOnce() -> bool,
    ) -> Option<Protection<'_>> {
        self.word.store(entry as u64 + 1, Ordering::Relaxed);
        let protection = Protection(&self.word);
        // Pairs with the fences of `BoardEntry::hide`, and of the end of a link.
        fence(Ordering::SeqCst);
        is_still().then_some(protection)
    }

    /// Owner: whether the peer is at work on any region, or on that of this entry.
    pub(crate) fn names(&self, entry: Option<usize>) -> bool {
        // Pairs with the end of the protection: the peer's bytes are in memory.
        let named = self.word.load(Ordering::Acquire);
        match entry {
            None => named != 0,
            Some(entry) => named == entry as u64 + 1,
        }
    }
}

/// A region stays what it is as long as this exists.
pub(crate) struct Protection<'a>(&'a AtomicU64);

impl Drop for Protection<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}
