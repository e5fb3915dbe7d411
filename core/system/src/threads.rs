//! Threads that this project starts in an application's process.
//!
//! Signals belong to the application: the kernel gives a signal of a process to any thread that
//! does not block it, and an application that waits for signals in a thread of its own (sigwait(3))
//! relies on all others blocking them. So every thread blocks all signals from its first
//! instruction on.

use std::io;
use std::thread::{Builder, JoinHandle};

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};

/// Starts a thread, as `builder` describes it, that blocks all signals.
///
/// # Errors
///
/// When the system has no thread to give.
pub fn spawn<T: Send + 'static>(
    builder: Builder,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    // A thread inherits the mask of the one that starts it. It must not block them by itself: a
    // signal may come before its first instruction.
    let _restored = Blocked::all()?;
    builder.spawn(work)
}

/// Has the kernel end the timed sleeps of the calling thread within a microsecond of their time. By
/// default it may take 50 more, to wake several threads at once (`PR_SET_TIMERSLACK`, prctl(2)).
pub fn wake_in_time() {
    // It can not fail for a number above 0; a thread that wakes late is correct, too.
    let _ = nix::sys::prctl::set_timerslack(1000);
}

/// The calling thread blocks all signals as long as this is there.
struct Blocked {
    before: SigSet,
}

impl Blocked {
    fn all() -> io::Result<Self> {
        let mut before = SigSet::empty();
        pthread_sigmask(
            SigmaskHow::SIG_SETMASK,
            Some(&SigSet::all()),
            Some(&mut before),
        )?;
        Ok(Self { before })
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // It fails for an unknown `how` alone.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::Signal;

    fn blocked_here() -> SigSet {
        let mut mask = SigSet::empty();
        pthread_sigmask(SigmaskHow::SIG_BLOCK, None, Some(&mut mask)).unwrap();
        mask
    }

    /// Issue 19 c: a thread of ours blocks every signal, and the mask of the thread that starts it
    /// is as before, also where no thread can be had.
    #[test]
    fn a_thread_blocks_all_signals_and_its_parent_those_of_before() {
        std::thread::spawn(|| {
            SigSet::from(Signal::SIGUSR2).thread_set_mask().unwrap();
            let before = blocked_here();
            let named = Builder::new().name("of-ours".to_owned());
            let theirs = spawn(named, blocked_here).unwrap().join().unwrap();
            for signal in Signal::iterator() {
                let never = [Signal::SIGKILL, Signal::SIGSTOP].contains(&signal);
                assert!(theirs.contains(signal) || never, "{signal} is not blocked");
            }
            assert_eq!(blocked_here(), before);

            let endless = Builder::new().stack_size(1 << 60);
            assert!(spawn(endless, || ()).is_err());
            assert_eq!(blocked_here(), before);
        })
        .join()
        .unwrap();
    }
}
