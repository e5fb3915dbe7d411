//! Counts of unknown sources and of failed resolutions, for the threads of both: an unknown source
//! may be an endpoint whose resolution failed before it was there.
//!
//! A resolver stores whether any has failed, then looks whether an unknown source came since it
//! began; an unknown source is counted, then looks for failures. With a fence between the two on
//! both sides, one of them sees the other, and the resolution starts anew.

use ferrofabric_system::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Both, as their threads see them.
#[derive(Default)]
pub(crate) struct UnknownSourceEpoch {
    came: AtomicU64,
    in_vain: AtomicBool,
}

impl UnknownSourceEpoch {
    /// Unknown sources before the attempts that begin now.
    pub(crate) fn current(&self) -> u64 {
        // Acquire pairs with `advance`: an endpoint that is counted here was there before, and is
        // found.
        self.came.load(Ordering::Acquire)
    }

    /// An unknown source came. Returns whether a resolution has failed, which may be its own.
    pub(crate) fn advance(&self) -> bool {
        self.came.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.in_vain.load(Ordering::Relaxed)
    }

    /// Whether the resolution of an entry has failed, by attempts that began when `since` unknown
    /// sources had come. Returns whether others came meanwhile.
    pub(crate) fn note_failed(&self, has_failed: bool, since: u64) -> bool {
        self.in_vain.store(has_failed, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        has_failed && self.came.load(Ordering::Relaxed) != since
    }

    /// All failed resolutions start anew.
    pub(crate) fn restart_failed(&self) {
        self.in_vain.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use ferrofabric_system::sync::{Mutex, explore};

    /// An endpoint that appears, and whether an attempt has found it.
    #[derive(Default)]
    struct TestPeer {
        is_listening: AtomicBool,
        source_epoch: UnknownSourceEpoch,
        found: Mutex<bool>,
    }

    impl TestPeer {
        /// As a resolver's thread: one attempt, and another if a source came meanwhile.
        fn search(&self) {
            loop {
                let since = self.source_epoch.current();
                let answered = self.is_listening.load(Ordering::Relaxed);
                let mut found = self.found.lock();
                *found |= answered;
                if !self.source_epoch.note_failed(!*found, since) {
                    return;
                }
                self.source_epoch.restart_failed();
            }
        }
    }

    /// An endpoint appears during an attempt: it is found. Fails without either fence, and where
    /// `current` or `advance` is relaxed.
    #[test]
    fn an_endpoint_that_appears_during_an_attempt_is_found() {
        explore(3, || {
            let peer = Arc::new(TestPeer::default());
            let theirs = Arc::clone(&peer);
            let newcomer = thread::spawn(move || {
                theirs.is_listening.store(true, Ordering::Relaxed);
                if theirs.source_epoch.advance() {
                    let found = theirs.found.lock();
                    theirs.source_epoch.restart_failed();
                    drop(found);
                    theirs.search();
                }
            });
            peer.search();
            newcomer.join().unwrap();
            assert!(*peer.found.lock(), "the endpoint is there and not found");
        });
    }
}
