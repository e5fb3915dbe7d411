//! Senders that are not in, and entries that were asked for in vain: a sender may be one that was
//! asked for before it was there.
//!
//! Who asks in vain says so and then looks whether somebody came since it began; who comes says so
//! and then looks whether somebody asked in vain. With a fence between the two on both sides, one
//! of them sees the other.

use ferrofabric_system::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Both, as their threads see them.
#[derive(Default)]
pub(crate) struct UnknownSourceEpoch {
    came: AtomicU64,
    in_vain: AtomicUsize,
}

impl UnknownSourceEpoch {
    /// Senders that came before what is asked for from now on.
    pub(crate) fn current(&self) -> u64 {
        // Acquire pairs with `advance`: who is counted here has been there before, and is found.
        self.came.load(Ordering::Acquire)
    }

    /// A sender came. Whether something was asked for in vain, which may be that one.
    pub(crate) fn advance(&self) -> bool {
        self.came.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.in_vain.load(Ordering::Relaxed) != 0
    }

    /// Entries of which there is still no word were asked for in vain, so many, `since` so many
    /// senders had come. Whether others came meanwhile.
    pub(crate) fn note_failed(&self, entries: usize, since: u64) -> bool {
        self.in_vain.store(entries, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        entries != 0 && self.came.load(Ordering::Relaxed) != since
    }

    /// All that was asked for in vain is asked for anew.
    pub(crate) fn restart_failed(&self) {
        self.in_vain.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use ferrofabric_system::sync::{AtomicBool, Mutex, explore};

    /// An endpoint that comes, and whether it has been asked for with success.
    #[derive(Default)]
    struct TestPeer {
        is_there: AtomicBool,
        source_epoch: UnknownSourceEpoch,
        found: Mutex<bool>,
    }

    impl TestPeer {
        /// As a thread that asks: once, and anew if somebody came meanwhile.
        fn search(&self) {
            loop {
                let since = self.source_epoch.current();
                let answered = self.is_there.load(Ordering::Relaxed);
                let mut found = self.found.lock();
                *found |= answered;
                if !self.source_epoch.note_failed(usize::from(!*found), since) {
                    return;
                }
                self.source_epoch.restart_failed();
            }
        }
    }

    /// Somebody is asked for while it comes: it is found. Fails without either fence, and where
    /// `current` or `advance` is relaxed.
    #[test]
    fn who_comes_while_it_is_asked_for_is_found() {
        explore(3, || {
            let world = Arc::new(TestPeer::default());
            let theirs = Arc::clone(&world);
            let comer = thread::spawn(move || {
                theirs.is_there.store(true, Ordering::Relaxed);
                if theirs.source_epoch.advance() {
                    let found = theirs.found.lock();
                    theirs.source_epoch.restart_failed();
                    drop(found);
                    theirs.search();
                }
            });
            world.search();
            comer.join().unwrap();
            assert!(*world.found.lock(), "nobody asks for who is there");
        });
    }
}
