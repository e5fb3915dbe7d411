//! The descriptor that wakes an application when an endpoint needs a call though no message comes.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ferrofabric_contracts::error::Errno;
use nix::sys::time::TimeSpec;
use nix::sys::timer::{Expiration, TimerSetTimeFlags};
use nix::sys::timerfd::{ClockId, TimerFd, TimerFlags};

/// A timer that is there once an application has prepared a wait on a descriptor.
#[derive(Default)]
pub(crate) struct CallTimer {
    fd: Option<TimerFd>,
    /// The time that it is set to.
    until: Option<Instant>,
}

impl CallTimer {
    /// The descriptor, which is readable from the time on to which the timer is set.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub(crate) fn descriptor(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        let fd = match self.fd.take() {
            Some(fd) => fd,
            None => {
                let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
                let fd = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags);
                fd.map_err(|errno| Errno(errno as i32))?
            }
        };
        let fd: &TimerFd = self.fd.insert(fd);
        Ok(fd.as_fd())
    }

    /// Whether there is a descriptor.
    pub(crate) fn is_there(&self) -> bool {
        self.fd.is_some()
    }

    /// Sets the timer; `None`: no call is due. A time to come that is too early stays: operations
    /// that end at once would have the timer set for each, and it wakes for nothing once.
    pub(crate) fn set(&mut self, at: Option<Instant>) {
        let Some(fd) = &self.fd else {
            return;
        };
        let now = Instant::now();
        let is_due = self.until.is_some_and(|until| until <= now);
        let stays = match (self.until, at) {
            (Some(until), Some(at)) => !is_due && until <= at,
            (Some(_), None) => !is_due,
            (None, at) => at.is_none(),
        };
        if stays {
            return;
        }
        let set = match at {
            Some(at) => {
                // A time of zero would stop it.
                let left = at
                    .saturating_duration_since(now)
                    .max(Duration::from_nanos(1));
                let time = Expiration::OneShot(TimeSpec::from_duration(left));
                fd.set(time, TimerSetTimeFlags::empty())
            }
            None => fd.unset(),
        };
        match set {
            Ok(()) => self.until = at,
            Err(errno) => tracing::warn!("a timer of collectives is not set: {errno}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::*;

    fn is_readable(timer: &mut CallTimer, timeout: PollTimeout) -> bool {
        let fd = timer.descriptor().unwrap();
        poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout).unwrap() == 1
    }

    #[test]
    fn a_timer_is_readable_from_its_time_until_it_is_set_again() {
        let mut timer = CallTimer::default();
        timer.set(Some(Instant::now()));
        assert!(!is_readable(&mut timer, PollTimeout::ZERO), "nobody waits");
        let hour = Duration::from_secs(3600);
        timer.set(Some(Instant::now() + hour));
        assert!(!is_readable(&mut timer, PollTimeout::ZERO));
        timer.set(Some(Instant::now()));
        assert!(is_readable(&mut timer, PollTimeout::NONE));
        timer.set(Some(Instant::now() + hour));
        assert!(!is_readable(&mut timer, PollTimeout::ZERO));
        // It stays set where no call is due any more, until its time has come.
        timer.set(Some(Instant::now() + Duration::from_millis(1)));
        timer.set(None);
        assert!(is_readable(&mut timer, PollTimeout::NONE));
        timer.set(None);
        assert!(!is_readable(&mut timer, PollTimeout::ZERO));
    }
}
