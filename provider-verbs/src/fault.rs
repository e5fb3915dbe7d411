//! Faults on demand, for tests: failures that a device or a network may have at any moment, at a
//! chosen one.

use std::sync::atomic::{AtomicU64, Ordering};

static BREAKS: AtomicU64 = AtomicU64::new(0);

/// Breaks all lanes of each endpoint of this process at its next progress: their queue pairs go to
/// the error state without a notice to anybody.
pub fn break_lanes() {
    BREAKS.fetch_add(1, Ordering::SeqCst);
}

/// The number of breaks that an endpoint has carried out.
#[derive(Default)]
pub(crate) struct SeenBreaks(u64);

impl SeenBreaks {
    /// Whether the lanes are to break now.
    pub(crate) fn take(&mut self) -> bool {
        let now = BREAKS.load(Ordering::SeqCst);
        std::mem::replace(&mut self.0, now) != now
    }
}
