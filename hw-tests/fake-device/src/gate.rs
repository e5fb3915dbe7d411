//! A gate in front of the completion queues: a test can stop one thread there, with the locks that
//! the thread has taken.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The thread that is to stand; 0 for none.
static STOPPED: AtomicI32 = AtomicI32::new(0);

/// It does.
static STANDS: AtomicBool = AtomicBool::new(false);

pub(crate) fn stop(thread: i32) {
    STOPPED.store(thread, Ordering::SeqCst);
}

pub(crate) fn has_stopped_a_thread() -> bool {
    STANDS.load(Ordering::SeqCst)
}

/// Before a poll. Costs a load unless a thread is to stand.
pub(crate) fn pass() {
    if STOPPED.load(Ordering::Relaxed) != 0 {
        stand();
    }
}

#[cold]
fn stand() {
    // SAFETY: takes nothing.
    let this = unsafe { libc::gettid() };
    while STOPPED.load(Ordering::SeqCst) == this {
        STANDS.store(true, Ordering::SeqCst);
        std::thread::yield_now();
    }
    STANDS.store(false, Ordering::SeqCst);
}
