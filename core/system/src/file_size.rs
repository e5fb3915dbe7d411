//! The limit of file sizes (`ulimit -f`), which the kernel applies to shared memory, too.
//!
//! Whoever makes a file longer than the limit gets `EFBIG`, and the thread a signal, SIGXFSZ, which
//! ends the process. The application has set no handler for what a library does.

use libc::{SIG_BLOCK, SIG_SETMASK, SIGXFSZ, siginfo_t, sigset_t, timespec};

/// Makes calls that may go beyond the limit: they return `EFBIG`, and no signal stays behind.
pub fn without_signal<R>(calls: impl FnOnce() -> R) -> R {
    let blocked = Blocked::begin();
    let result = calls();
    drop(blocked);
    result
}

/// The signal is blocked in this thread as long as this is there.
struct Blocked {
    before: sigset_t,
    /// One was pending before.
    was_pending: bool,
}

impl Blocked {
    fn begin() -> Self {
        let (set, mut before) = (only(), empty());
        // SAFETY: the sets are initialised, and those of this thread are read and set.
        let was_pending = unsafe {
            libc::pthread_sigmask(SIG_BLOCK, &raw const set, &raw mut before);
            let mut pending = empty();
            libc::sigpending(&raw mut pending);
            libc::sigismember(&raw const pending, SIGXFSZ) == 1
        };
        Self {
            before,
            was_pending,
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // The kernel's set of signals, in bytes.
        const SET_BYTES: usize = 8;
        let (set, info) = (only(), std::ptr::null_mut::<siginfo_t>());
        let now = timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: the set and the time live. (`sigtimedwait` would be a cancellation point.) Then the
        // mask of before comes back.
        unsafe {
            if !self.was_pending {
                let (set, now) = (&raw const set, &raw const now);
                libc::syscall(libc::SYS_rt_sigtimedwait, set, info, now, SET_BYTES);
            }
            libc::pthread_sigmask(SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

fn empty() -> sigset_t {
    // SAFETY: the call initialises the set.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

/// The set of this signal.
fn only() -> sigset_t {
    let mut set = empty();
    // SAFETY: the set is initialised.
    unsafe { libc::sigaddset(&raw mut set, SIGXFSZ) };
    set
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn is_blocked() -> bool {
        let mut mask = empty();
        // SAFETY: a place for the mask of this thread, which stays what it is.
        unsafe {
            libc::pthread_sigmask(SIG_BLOCK, std::ptr::null(), &raw mut mask);
            libc::sigismember(&raw const mask, SIGXFSZ) == 1
        }
    }

    /// It limits its whole process: cargo-nextest gives each test one.
    #[test]
    fn a_file_beyond_the_limit_ends_nobody() {
        let few = nix::sys::resource::Resource::RLIMIT_FSIZE;
        nix::sys::resource::setrlimit(few, 8192, 8192).unwrap();
        let flags = nix::sys::memfd::MFdFlags::MFD_CLOEXEC;
        let file = nix::sys::memfd::memfd_create(c"limited", flags).unwrap();
        for _ in 0..2 {
            let long = without_signal(|| nix::unistd::ftruncate(&file, 1 << 20));
            assert_eq!(long, Err(nix::errno::Errno::EFBIG));
            assert!(!is_blocked());
        }
        assert_eq!(
            without_signal(|| nix::unistd::ftruncate(&file, 4096)),
            Ok(())
        );
    }

    #[test]
    fn a_signal_that_was_blocked_stays_so() {
        // SAFETY: the mask of this thread.
        unsafe {
            let all = only();
            libc::pthread_sigmask(SIG_BLOCK, &raw const all, std::ptr::null_mut());
            libc::raise(SIGXFSZ);
        }
        without_signal(|| ());
        assert!(is_blocked());
        let mut pending = empty();
        // SAFETY: a place for the signals that are pending.
        let stays = unsafe {
            libc::sigpending(&raw mut pending);
            libc::sigismember(&raw const pending, SIGXFSZ) == 1
        };
        assert!(stays, "the application's own signal is gone");
    }
}
