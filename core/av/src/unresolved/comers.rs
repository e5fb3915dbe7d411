//! Senders that are not in, and entries that were asked for in vain: a sender may be one that was
//! asked for before it was there.
//!
//! Who asks in vain says so and then looks whether somebody came since it began; who comes says so
//! and then looks whether somebody asked in vain. With a fence between the two on both sides, one
//! of them sees the other.

use ferrofabric_system::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Both, as their threads see them.
#[derive(Default)]
pub(crate) struct Comers {
    came: AtomicU64,
    in_vain: AtomicUsize,
}

impl Comers {
    /// Senders that came before what is asked for from now on.
    pub(crate) fn so_far(&self) -> u64 {
        // Acquire pairs with `come`: who is counted here has been there before, and is found.
        self.came.load(Ordering::Acquire)
    }

    /// A sender came. Whether something was asked for in vain, which may be that one.
    pub(crate) fn come(&self) -> bool {
        self.came.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        self.in_vain.load(Ordering::Relaxed) != 0
    }

    /// Entries of which there is still no word were asked for in vain, so many, `since` so many
    /// senders had come. Whether others came meanwhile.
    pub(crate) fn asked_in_vain(&self, entries: usize, since: u64) -> bool {
        self.in_vain.store(entries, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        entries != 0 && self.came.load(Ordering::Relaxed) != since
    }

    /// All that was asked for in vain is asked for anew.
    pub(crate) fn ask_anew(&self) {
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
    struct World {
        is_there: AtomicBool,
        comers: Comers,
        found: Mutex<bool>,
    }

    impl World {
        /// As a thread that asks: once, and anew if somebody came meanwhile.
        fn ask(&self) {
            loop {
                let since = self.comers.so_far();
                let answered = self.is_there.load(Ordering::Relaxed);
                let mut found = self.found.lock();
                *found |= answered;
                if !self.comers.asked_in_vain(usize::from(!*found), since) {
                    return;
                }
                self.comers.ask_anew();
            }
        }
    }

    /// Somebody is asked for while it comes: it is found. Fails without either fence, and where
    /// `so_far` or `come` is relaxed.
    #[test]
    fn who_comes_while_it_is_asked_for_is_found() {
        explore(3, || {
            let world = Arc::new(World::default());
            let theirs = Arc::clone(&world);
            let comer = thread::spawn(move || {
                theirs.is_there.store(true, Ordering::Relaxed);
                if theirs.comers.come() {
                    let found = theirs.found.lock();
                    theirs.comers.ask_anew();
                    drop(found);
                    theirs.ask();
                }
            });
            world.ask();
            comer.join().unwrap();
            assert!(*world.found.lock(), "nobody asks for who is there");
        });
    }
}
