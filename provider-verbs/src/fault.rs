//! Faults on demand, for tests: what a device or a network may do at any moment, done at this one.

use std::sync::atomic::{AtomicU64, Ordering};

static BREAKS: AtomicU64 = AtomicU64::new(0);

/// Breaks all lanes of each endpoint of this process at its next progress: their queue pairs go to
/// the error state, and nobody is told.
pub fn break_lanes() {
    BREAKS.fetch_add(1, Ordering::SeqCst);
}

/// What an endpoint has seen of it.
#[derive(Default)]
pub(crate) struct Seen(u64);

impl Seen {
    /// Whether the lanes are to break now.
    pub(crate) fn take(&mut self) -> bool {
        let now = BREAKS.load(Ordering::SeqCst);
        std::mem::replace(&mut self.0, now) != now
    }
}
