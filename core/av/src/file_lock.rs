//! Locks on single bytes of a file, by open file description: such a lock goes with its holder,
//! however that ends.
//!
//! A child of fork shares its parent's descriptions, so both have each lock. Callers keep children
//! away from them.

use std::fs::File;
use std::io;
use std::time::Duration;

use nix::errno::Errno as Sys;
use nix::fcntl::{FcntlArg, fcntl};

/// The byte of a named table's file that all its holders have for reading.
pub(super) const PRESENCE: i64 = 0;
/// The byte that its writer has.
pub(super) const TURN: i64 = 1;

/// The lock that a holder has on a byte.
#[derive(Clone, Copy, Debug)]
pub(super) enum Lock {
    /// With others.
    Read,
    /// Alone.
    Write,
    /// Nothing.
    None,
}

/// Takes a lock, or gives it back. False: others have it.
pub(super) fn try_lock(file: &File, byte: i64, lock: Lock) -> io::Result<bool> {
    let kind = match lock {
        Lock::Read => nix::libc::F_RDLCK,
        Lock::Write => nix::libc::F_WRLCK,
        Lock::None => nix::libc::F_UNLCK,
    };
    let lock = nix::libc::flock {
        l_type: kind as i16,
        l_whence: nix::libc::SEEK_SET as i16,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    loop {
        match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
            Ok(_) => return Ok(true),
            Err(Sys::EINTR) => {}
            Err(Sys::EAGAIN | Sys::EACCES) => return Ok(false),
            Err(e) => return Err(io::Error::from_raw_os_error(e as i32)),
        }
    }
}

/// Tries in which a waiting thread only lets others run: most holders have a lock for some
/// microseconds.
const YIELDS: u32 = 50;

const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// The pauses of a thread that waits for a lock. The kernel has no call that waits for such a lock
/// for a limited time.
pub(super) struct Pauses {
    yields: u32,
    next: Duration,
}

impl Pauses {
    pub(super) fn new() -> Self {
        Self {
            yields: 0,
            next: FIRST_PAUSE,
        }
    }

    /// Pauses, and says for how long it meant to. A process that was stopped meanwhile has not
    /// waited for that time.
    pub(super) fn pause(&mut self) -> Duration {
        if self.yields < YIELDS {
            self.yields += 1;
            std::thread::yield_now();
            return Duration::ZERO;
        }
        let pause = self.next;
        std::thread::sleep(pause);
        self.next = (2 * pause).min(LONGEST_PAUSE);
        pause
    }
}
