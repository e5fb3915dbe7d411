//! A flag beside a queue, for threads that look at the queue often: one load shows whether it may
//! have entries.
//!
//! The flag may be up while the queue is empty; once producers and consumers are done, it is never
//! down while the queue has entries.

use crate::sync::{AtomicBool, Ordering};

/// Whether a queue may have entries. A producer raises it after it has put an entry in; a consumer
/// lowers it before it takes entries out.
#[derive(Debug)]
pub struct PendingFlag(AtomicBool);

impl PendingFlag {
    /// A flag that is down.
    #[allow(clippy::new_without_default, reason = "a flag is part of something")]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Something was put in.
    #[inline]
    pub fn raise(&self) {
        // Release pairs with `lower`: the thread that lowers the flag finds the entry.
        self.0.store(true, Ordering::Release);
    }

    /// Whether there may be something.
    #[inline]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Something is about to be taken out; all that is there, or the flag has to be raised again.
    #[inline]
    pub fn lower(&self) {
        self.0.swap(false, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::{Arc, Mutex};
    use loom::thread;

    /// A queue and its flag, as the service threads of the providers and a domain's abandoned
    /// objects have them.
    struct Mailbox {
        letters: Mutex<Vec<u32>>,
        flag: PendingFlag,
    }

    impl Mailbox {
        fn put(&self, letter: u32) {
            self.letters.lock().unwrap().push(letter);
            self.flag.raise();
        }

        /// All that is there.
        fn take_all(&self) -> usize {
            if !self.flag.is_raised() {
                return 0;
            }
            self.flag.lower();
            self.letters.lock().unwrap().drain(..).count()
        }

        /// One, as long as there may be more.
        fn take_one(&self) -> usize {
            if !self.flag.is_raised() {
                return 0;
            }
            self.flag.lower();
            let taken = self.letters.lock().unwrap().pop().is_some();
            if taken {
                self.flag.raise();
            }
            usize::from(taken)
        }

        fn is_consistent(&self) -> bool {
            self.letters.lock().unwrap().is_empty() || self.flag.is_raised()
        }
    }

    fn nothing_is_forgotten(take: fn(&Mailbox) -> usize) {
        loom::model(move || {
            let mailbox = Arc::new(Mailbox {
                letters: Mutex::new(Vec::new()),
                flag: PendingFlag::new(),
            });
            let senders = [1, 2].map(|letter| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.put(letter))
            });
            let mut taken = take(&mailbox) + take(&mailbox);
            for sender in senders {
                sender.join().unwrap();
            }
            assert!(mailbox.is_consistent(), "letters, and the flag is down");
            while mailbox.flag.is_raised() {
                taken += take(&mailbox);
            }
            assert_eq!(taken, 2);
        });
    }

    #[test]
    fn nothing_is_forgotten_where_all_is_taken() {
        nothing_is_forgotten(Mailbox::take_all);
    }

    #[test]
    fn nothing_is_forgotten_where_one_is_taken() {
        nothing_is_forgotten(Mailbox::take_one);
    }

    /// A thread that sees the flag without a lock finds the entry that it was raised for, once the
    /// flag is lowered.
    #[test]
    fn the_entry_of_a_raised_flag_is_there() {
        use loom::cell::UnsafeCell;
        loom::model(|| {
            let shared = Arc::new((UnsafeCell::new(0u32), PendingFlag::new()));
            let sender = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.0.with_mut(|value| {
                        // SAFETY: nobody looks before the flag is up; loom checks it.
                        unsafe { *value = 7 }
                    });
                    shared.1.raise();
                })
            };
            if shared.1.is_raised() {
                shared.1.lower();
                shared.0.with(|value| {
                    // SAFETY: as above.
                    assert_eq!(unsafe { *value }, 7);
                });
            }
            sender.join().unwrap();
        });
    }
}
