//! Whether an object belongs to this process, or was inherited by a fork.
//!
//! A child has its parent's objects: the same sockets, the same shared memory, but none of its
//! threads. A use of such an object by the child would hit the parent. Each object that reaches
//! beyond its process keeps the [`Birth`] of its process, and does nothing in any other one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Forks between the first process that counts and this one. The handler that counts them runs in
/// each child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made. Comparing it costs one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    generation: u32,
    /// The process ID, where forks can not be counted; else 0.
    pid: u32,
}

impl Birth {
    /// This process.
    pub fn here() -> Self {
        let pid = match counts_forks() {
            true => 0,
            false => std::process::id(),
        };
        Self {
            generation: GENERATION.load(Ordering::Relaxed),
            pid,
        }
    }

    /// Whether it is this process that runs now. Safe to call in a child that has just been forked.
    #[inline]
    pub fn is_this_process(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
            && (self.pid == 0 || self.pid == std::process::id())
    }
}

/// Ends threads when the object that they work for goes: says to them that they are to end with
/// `stop`, and waits for them. A child of fork has none of them, and knows their handles alone: it
/// leaves the threads as well as the handles alone.
pub fn end_threads<T>(
    birth: Birth,
    threads: impl IntoIterator<Item = JoinHandle<T>>,
    stop: impl FnOnce(),
) {
    if !birth.is_this_process() {
        threads.into_iter().for_each(std::mem::forget);
        return;
    }
    stop();
    for thread in threads {
        // It panics no more than what it does for the application.
        let _ = thread.join();
    }
}

/// Has children counted, from the first call on; false where the system has no memory for that.
fn counts_forks() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    // SAFETY: the handler is a function of this library, which takes the handler back when it is
    // unloaded; the handler does nothing but count, which is allowed in a child.
    *COUNTS.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(is_child)) } == 0)
}

/// Runs in each child before `fork` returns there: it has one thread, and no order of memory
/// matters.
unsafe extern "C" fn is_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, and has the child say yes or no. The child may do no more than compare, for other
    /// threads hold locks.
    fn child_says(question: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child compares numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(question());
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_child_is_another_process_and_a_grandchild_a_third_one() {
        let birth = Birth::here();
        assert!(birth.is_this_process());
        assert!(!child_says(|| birth.is_this_process()));
        assert!(child_says(|| {
            let own = Birth::here();
            own.is_this_process() && own != birth
        }));
        assert!(child_says(|| {
            let own = Birth::here();
            !child_says(|| own.is_this_process() || birth.is_this_process())
        }));
        assert!(birth.is_this_process());
    }

    #[test]
    fn without_counted_forks_the_process_id_decides() {
        let mut birth = Birth::here();
        birth.pid = std::process::id();
        assert!(birth.is_this_process());
        birth.pid += 1;
        assert!(!birth.is_this_process());
    }
}
