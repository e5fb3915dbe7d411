//! Sleeping until a domain has something to do: one descriptor that gathers what may wake it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::error::{Errno, Error, Result};

/// What the sleepers of a domain wait on: an epoll set of the transports' descriptors and a signal of our own.
pub struct WaitSet {
    epoll: Epoll,
    signal: EventFd,
}

impl WaitSet {
    /// A set that only [`signal`](Self::signal) wakes.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn new() -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)
            .map_err(|e| failed(e, "create", "epoll set"))?;
        let signal = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| failed(e, "create", "event descriptor"))?;
        let set = Self { epoll, signal };
        set.add(set.signal.as_fd())?;
        Ok(set)
    }

    /// Wakes sleepers whenever `fd` is readable.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the descriptor.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0))
            .map_err(|e| failed(e, "wait on", "descriptor"))
    }

    /// The descriptor that becomes readable when somebody should look.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Sleeps until a descriptor is readable or the deadline is there. Says whether it was woken.
    ///
    /// # Errors
    ///
    /// When the kernel can not wait.
    pub fn sleep(&self, deadline: Option<Instant>) -> Result<bool> {
        let mut events = [EpollEvent::empty(); 4];
        let timeout = match deadline {
            None => EpollTimeout::NONE,
            Some(at) => {
                let left = at.saturating_duration_since(Instant::now());
                // Rounded up: waking early would spin through the last millisecond.
                let left_ms = left
                    .saturating_add(Duration::from_nanos(999_999))
                    .as_millis();
                EpollTimeout::try_from(left_ms.min(i32::MAX as u128) as i32)
                    .unwrap_or(EpollTimeout::ZERO)
            }
        };
        match self.epoll.wait(&mut events, timeout) {
            Ok(n) => {
                // Whatever the count was: who is woken looks at everything.
                let _ = self.signal.read();
                Ok(n > 0)
            }
            Err(nix::errno::Errno::EINTR) => Ok(true),
            Err(e) => Err(failed(e, "wait on", "epoll set")),
        }
    }

    /// Wakes all who sleep.
    pub fn signal(&self) {
        // A full counter is as good a signal as one more.
        let _ = self.signal.write(1);
    }
}

fn failed(e: nix::errno::Errno, doing: &'static str, object: &str) -> Error {
    let error = Error::new(Errno(e as i32), doing, object);
    match e {
        nix::errno::Errno::EMFILE => error.mend("raise the limit of open files (ulimit -n)"),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_signal_wakes_a_sleeper_and_is_used_up() {
        let set = Arc::new(WaitSet::new().unwrap());
        let sleeper = {
            let set = set.clone();
            std::thread::spawn(move || set.sleep(None).unwrap())
        };
        set.signal();
        assert!(sleeper.join().unwrap());
        assert!(!set.sleep(Some(Instant::now())).unwrap());
    }
}
