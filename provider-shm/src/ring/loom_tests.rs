//! The ring in every order in which the threads of its two sides can run.

use std::ptr::NonNull;

use super::{Head, LineSlot, RingConsumer, RingProducer, RingProgress, SLOTS};
use crate::status::{SLEEPS, Status, WANTS_ROOM, waker_fence};
use crate::sync::{Ordering, fence};
use loom::sync::Arc;
use loom::thread;

struct LoomRing {
    slots: [LineSlot; SLOTS],
    progress: RingProgress,
}

// SAFETY: shared as the segment is; loom checks the accesses.
unsafe impl Send for LoomRing {}
// SAFETY: as above.
unsafe impl Sync for LoomRing {}

impl LoomRing {
    fn new() -> Self {
        Self {
            slots: std::array::from_fn(|_| LineSlot::new()),
            progress: RingProgress::new(),
        }
    }

    /// # Safety
    ///
    /// The memory outlives both rings, and there is one of each.
    unsafe fn tx(&self) -> RingProducer {
        let (slots, progress) = (NonNull::from(&self.slots), NonNull::from(&self.progress));
        // SAFETY: the caller's contract; no records are used.
        unsafe { RingProducer::new(slots.cast(), progress, NonNull::dangling()) }
    }

    /// # Safety
    ///
    /// As above.
    unsafe fn rx(&self) -> RingConsumer {
        let (slots, progress) = (NonNull::from(&self.slots), NonNull::from(&self.progress));
        // SAFETY: as above.
        unsafe { RingConsumer::new(slots.cast(), progress, NonNull::dangling()) }
    }
}

/// A producer that found the ring full goes to sleep: the consumer wakes it, or the producer has
/// seen the room itself. A consumer that sleeps is woken by the next message. (Both sides have
/// fences here, as in the model of the status word.)
#[test]
fn a_producer_that_waits_for_room_is_woken() {
    loom::model(|| {
        let shared = Arc::new((LoomRing::new(), Status::new()));
        // SAFETY: `shared` outlives it.
        let mut tx = unsafe { shared.0.tx() };
        for i in 0..SLOTS as u64 {
            // SAFETY: a body has this word.
            tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i });
        }
        let theirs = Arc::clone(&shared);
        let consumer = thread::spawn(move || {
            // SAFETY: `theirs` outlives it.
            let mut rx = unsafe { theirs.0.rx() };
            assert!(rx.peek().is_some(), "published before the thread began");
            rx.consume(0);
            rx.publish_tail();
            waker_fence(true);
            theirs.1.load() & WANTS_ROOM != 0 && theirs.1.take_wake_request()
        });
        shared.1.sleep(SLEEPS | WANTS_ROOM);
        fence(Ordering::SeqCst);
        let sleeps = !tx.refresh_progress();
        let rang = consumer.join().unwrap();
        assert!(!sleeps || rang, "asleep with room, and nobody rings");
        assert!(tx.refresh_progress() || tx.has_slot(0));
    });
}

/// Every order of publish, consume and publication of the tail by two threads: each slot is read as
/// it was written, and never written while it is read.
#[test]
fn slots_are_passed_on_whole() {
    loom::model(|| {
        let memory = Arc::new(LoomRing::new());
        const MESSAGES: u64 = 3;
        let theirs = Arc::clone(&memory);
        let consumer = thread::spawn(move || {
            // SAFETY: `theirs` outlives it.
            let mut rx = unsafe { theirs.rx() };
            for i in 0..MESSAGES {
                while rx.peek().is_none() {
                    thread::yield_now();
                }
                let seen = rx.peek().unwrap();
                // SAFETY: a body has this word.
                assert_eq!(seen.with_body(|b| unsafe { *b }), i + 10);
                rx.consume(0);
                rx.publish_tail();
            }
        });
        // SAFETY: `memory` outlives it.
        let mut tx = unsafe { memory.tx() };
        for i in 0..MESSAGES {
            while !tx.has_slot(0) {
                tx.refresh().unwrap();
                thread::yield_now();
            }
            // SAFETY: a body has this word.
            tx.publish(Head::new(1, 0, 0), |b| unsafe { *b = i + 10 });
        }
        consumer.join().unwrap();
    });
}
