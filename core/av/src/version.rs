//! A count of changes, odd while a writer is at work, for readers that take no lock: if it is even
//! and the same before and after, all that they read is of one moment.

use ferrofabric_system::sync::Ordering::{Acquire, Relaxed, Release};
use ferrofabric_system::sync::{AtomicU64, fence};

/// Looks before a reader waits for its turn among the writers.
const TRIES: usize = if cfg!(loom) { 2 } else { 100 };

/// The count.
#[derive(Clone, Copy)]
pub(super) struct Version<'a>(pub(super) &'a AtomicU64);

impl Version<'_> {
    /// Whether a writer is at work, or died at it.
    pub(super) fn is_odd(self) -> bool {
        self.0.load(Acquire) & 1 == 1
    }

    /// A writer starts: readers that read meanwhile read again.
    pub(super) fn begin(self) {
        self.0.store(self.0.load(Relaxed) | 1, Relaxed);
        // Pairs with the Acquire fence in `is_still`.
        fence(Release);
    }

    /// It is done.
    pub(super) fn end(self) {
        let next = (self.0.load(Relaxed) | 1).wrapping_add(1);
        // Pairs with the Acquire load in `now`.
        self.0.store(next, Release);
    }

    /// Readers that have begun read again.
    pub(super) fn pass(self) {
        let next = self.0.load(Relaxed).wrapping_add(2) & !1;
        self.0.store(next, Release);
        // Pairs with the Acquire fence in `is_still`: a reader of later words sees the change.
        fence(Release);
    }

    /// The result of `look` at a time without a writer. `Err`: one always was at work.
    #[inline]
    pub(super) fn read<T>(self, mut look: impl FnMut() -> T) -> Result<T, Busy> {
        for _ in 0..TRIES {
            if let Some(version) = self.now() {
                let seen = look();
                if self.is_still(version) {
                    return Ok(seen);
                }
            }
            std::hint::spin_loop();
        }
        Err(Busy)
    }

    /// The count, for a reader who begins; `None` while a writer is at work.
    #[inline]
    pub(super) fn now(self) -> Option<u64> {
        // Pairs with the Release store in `end`: the next reads are not from before.
        let version = self.0.load(Acquire);
        (version & 1 == 0).then_some(version)
    }

    /// Whether all that was read since that count is of one moment.
    #[inline]
    pub(super) fn is_still(self, version: u64) -> bool {
        // Pairs with the Release fence in `begin`.
        fence(Acquire);
        self.0.load(Relaxed) == version
    }
}

/// Writers were at work whenever a reader looked; it takes its turn with them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Busy;
