//! Threads of a child of fork wait for locks of its own while its parent's threads wait, too.

use std::panic::catch_unwind;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use ferrofabric_system::locks::{Condvar, Mutex};

/// Threads of either process.
const THREADS: usize = 64;

/// A child that takes longer than this is ended by the kernel.
const CHILDS_SECONDS: u32 = 20;

/// A thread that waits for a change of its own.
struct WaitingThread {
    waits: Arc<(Mutex<WaitState>, Condvar)>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct WaitState {
    has_begun: bool,
    is_over: bool,
}

impl WaitingThread {
    /// Returns when it waits.
    fn start() -> Self {
        let waits = Arc::new((Mutex::new(WaitState::default()), Condvar::new()));
        let its = Arc::clone(&waits);
        let thread = thread::spawn(move || {
            let (state, changed) = &*its;
            let mut state = state.lock();
            state.has_begun = true;
            while !state.is_over {
                state = changed.wait(state);
            }
        });
        while !waits.0.lock().has_begun {
            thread::yield_now();
        }
        Self { waits, thread }
    }

    fn end(self) {
        let (state, changed) = &*self.waits;
        state.lock().is_over = true;
        changed.notify_one();
        assert!(self.thread.join().is_ok(), "it panics");
    }
}

fn threads_wait_and_end() {
    let threads: Vec<_> = (0..THREADS).map(|_| WaitingThread::start()).collect();
    threads.into_iter().for_each(WaitingThread::end);
}

/// The child's threads have the places in memory of the parent's, which are not there.
#[test]
fn a_childs_threads_are_woken() {
    let parents: Vec<_> = (0..THREADS).map(|_| WaitingThread::start()).collect();
    // SAFETY: the child uses nothing of its parent's, and ends without a return.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: takes a number.
        unsafe { libc::alarm(CHILDS_SECONDS) };
        let went_well = catch_unwind(threads_wait_and_end).is_ok();
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(i32::from(!went_well)) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0), "how the child has ended");
    parents.into_iter().for_each(WaitingThread::end);
}
