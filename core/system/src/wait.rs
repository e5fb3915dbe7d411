//! Sleep until a domain has something to do, for blocking calls, the progress thread and
//! applications that wait on a descriptor.
//!
//! A wake-up is never lost: one that comes after a [`Sleeper`] was made ends its next sleep. A
//! sleep may end for nothing, so callers look again.

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};

use ferrofabric_contracts::error::{Errno, Error, Result};

use crate::locks::Mutex;

/// The descriptors that wake the sleepers of a domain: the transports' and a signal of our own.
///
/// Each sleeper has an epoll set of its own, in which the signal is edge-triggered: nobody has to
/// take it away, so nobody can take it from another.
pub struct WaitSet {
    sources: Epoll,
    signal: EventFd,
    /// Sets of those who have slept.
    spare: Mutex<Vec<Epoll>>,
}

/// A descriptor that an application waits on by itself (`FI_WAIT_FD`, fi_trywait(3)): readable
/// while a descriptor of its set is, or from when its bell was rung until that is cleared.
pub struct WaitFd {
    epoll: Epoll,
    bell: WakeBell,
}

/// An event descriptor that makes one [`WaitFd`] readable, or wakes all sleepers of a set.
#[derive(Clone)]
pub struct WakeBell(Arc<EventFd>);

impl WaitFd {
    /// One that its bell alone makes readable, until it is [added](Self::add) to.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn new() -> Result<Self> {
        let (bell, epoll) = (WakeBell::new()?, epoll()?);
        watch(&epoll, bell.0.as_fd(), EpollFlags::EPOLLIN)?;
        Ok(Self { epoll, bell })
    }

    /// Has it be readable while `fd` is, too. It may be added already.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the descriptor.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        match self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN, 0)) {
            Ok(()) | Err(nix::errno::Errno::EEXIST) => Ok(()),
            Err(e) => Err(failed(e, "wait on", "descriptor")),
        }
    }

    /// Its bell.
    pub fn bell(&self) -> &WakeBell {
        &self.bell
    }
}

impl AsFd for WaitFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl AsFd for WakeBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl WakeBell {
    /// A bell that was not rung.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn new() -> Result<Self> {
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK);
        let bell = bell.map_err(|e| failed(e, "create", "event descriptor"))?;
        Ok(Self(Arc::new(bell)))
    }

    /// Makes the descriptor readable.
    pub fn ring(&self) {
        // It can not overflow: the waiting thread clears it.
        let _ = self.0.write(1);
    }

    /// Takes that back.
    pub fn clear(&self) {
        let _ = self.0.read();
    }
}

impl PartialEq for WakeBell {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl std::fmt::Debug for WakeBell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WakeBell")
    }
}

/// A thread that may go to sleep. A wake-up between its creation and its sleep ends that sleep:
/// create it first, then look whether there is anything to do, then [`sleep`](Self::sleep).
pub struct Sleeper<'a> {
    set: &'a WaitSet,
    epoll: Option<Epoll>,
}

impl WaitSet {
    /// A set that only [`signal`](Self::signal) wakes.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn new() -> Result<Self> {
        let signal = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| failed(e, "create", "event descriptor"))?;
        Ok(Self {
            sources: epoll()?,
            signal,
            spare: Mutex::new(Vec::new()),
        })
    }

    /// Wakes sleepers whenever `fd` is readable.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the descriptor.
    pub fn add(&self, fd: BorrowedFd<'_>) -> Result<()> {
        watch(&self.sources, fd, EpollFlags::EPOLLIN)
    }

    /// A bell that wakes sleepers, and makes each [`WaitFd`] readable, from when it is rung until
    /// it is cleared.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn bell(&self) -> Result<WakeBell> {
        let bell = WakeBell::new()?;
        self.add(bell.0.as_fd())?;
        Ok(bell)
    }

    /// Somebody who may sleep.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn sleeper(&self) -> Result<Sleeper<'_>> {
        Ok(Sleeper {
            set: self,
            epoll: Some(self.take_set()?),
        })
    }

    /// A set for one who sleeps, to be [put back](Self::put_back).
    pub fn take_set(&self) -> Result<Epoll> {
        if let Some(epoll) = self.spare.lock().pop() {
            return Ok(epoll);
        }
        let epoll = epoll()?;
        watch(&epoll, self.sources.0.as_fd(), EpollFlags::EPOLLIN)?;
        let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
        watch(&epoll, self.signal.as_fd(), edge)?;
        Ok(epoll)
    }

    /// Keeps a set for the next who sleeps.
    pub fn put_back(&self, epoll: Option<Epoll>) {
        self.spare.lock().extend(epoll);
    }

    /// Sleeps as [`Sleeper::sleep`], where only one thread ever sleeps: a wake-up since its last
    /// sleep ends this one.
    ///
    /// # Errors
    ///
    /// As [`sleeper`](Self::sleeper) and [`Sleeper::sleep`].
    pub fn sleep(&self, deadline: Option<Instant>) -> Result<bool> {
        self.sleeper()?.sleep(deadline)
    }

    /// A descriptor for an application to wait on by itself.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn descriptor(&self) -> Result<WaitFd> {
        let descriptor = WaitFd::new()?;
        self.make_readable(&descriptor)?;
        Ok(descriptor)
    }

    /// Has a descriptor be readable while one of the set is. That may be so already.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub fn make_readable(&self, descriptor: &WaitFd) -> Result<()> {
        descriptor.add(self.sources.0.as_fd())
    }

    /// Takes that back.
    pub fn leave(&self, descriptor: &WaitFd) {
        // It is not there, or stays: then the descriptor is readable for nothing.
        let _ = descriptor.epoll.delete(self.sources.0.as_fd());
    }

    /// Wakes all who sleep.
    pub fn signal(&self) {
        // Each write is an edge, whatever the count is.
        let _ = self.signal.write(1);
    }
}

impl Sleeper<'_> {
    /// Sleeps until a descriptor is readable, somebody signals, or the deadline is there. Says
    /// whether it was woken; that may have been for nothing.
    ///
    /// # Errors
    ///
    /// When the kernel can not wait.
    pub fn sleep(&self, deadline: Option<Instant>) -> Result<bool> {
        let Some(epoll) = &self.epoll else {
            return Ok(true);
        };
        match sleep_on(epoll, deadline)? {
            Woken::Interrupted => Ok(true),
            woken => Ok(woken == Woken::BySomething),
        }
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.set.put_back(self.epoll.take());
    }
}

/// The event that ended a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// A descriptor, or the signal of the set.
    BySomething,
    /// The deadline.
    ByTime,
    /// A signal came to the thread (signal(7)).
    Interrupted,
}

/// Sleeps until something wakes the set, or the deadline is there.
///
/// # Errors
///
/// When the kernel can not wait.
pub fn sleep_on(epoll: &Epoll, deadline: Option<Instant>) -> Result<Woken> {
    let mut events = [EpollEvent::empty(); 2];
    let timeout = EpollTimeout::try_from(ms_until(deadline)).unwrap_or(EpollTimeout::NONE);
    match epoll.wait(&mut events, timeout) {
        Ok(0) => Ok(Woken::ByTime),
        Ok(_) => Ok(Woken::BySomething),
        Err(nix::errno::Errno::EINTR) => Ok(Woken::Interrupted),
        Err(e) => Err(failed(e, "wait on", "epoll set")),
    }
}

/// How long a system call may sleep, in milliseconds: -1 for ever. Rounded up, for waking early
/// would spin through the last millisecond.
pub fn ms_until(deadline: Option<Instant>) -> i32 {
    let Some(deadline) = deadline else {
        return -1;
    };
    let left = deadline.saturating_duration_since(Instant::now());
    let left_ms = left
        .saturating_add(Duration::from_nanos(999_999))
        .as_millis();
    left_ms.min(i32::MAX as u128) as i32
}

/// A sleep that the caller of a wait carries out itself, before it looks again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nap {
    /// On what.
    pub on: NapOn,
    /// At most so many milliseconds; negative: for ever.
    pub timeout_ms: i32,
}

/// The object whose event ends the sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NapOn {
    /// An epoll set, which reports some of its events once: to be waited on with epoll_wait(2).
    Set(RawFd),
    /// A descriptor that becomes readable.
    Descriptor(RawFd),
}

fn epoll() -> Result<Epoll> {
    Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| failed(e, "create", "epoll set"))
}

fn watch(epoll: &Epoll, fd: BorrowedFd<'_>, flags: EpollFlags) -> Result<()> {
    epoll
        .add(fd, EpollEvent::new(flags, 0))
        .map_err(|e| failed(e, "wait on", "descriptor"))
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

    #[test]
    fn a_signal_wakes_all_that_may_sleep() {
        let set = WaitSet::new().unwrap();
        let mut sleepers = Vec::new();
        for _ in 0..4 {
            sleepers.push(set.sleeper().unwrap());
            set.signal();
            for sleeper in &sleepers {
                assert!(sleeper.sleep(None).unwrap());
                assert!(!sleeper.sleep(Some(Instant::now())).unwrap());
            }
        }
        // Used again by the next, who do not miss what comes after they were made.
        drop(sleepers);
        let (one, two) = (set.sleeper().unwrap(), set.sleeper().unwrap());
        set.signal();
        assert!(one.sleep(None).unwrap());
        drop(one);
        assert!(two.sleep(None).unwrap());
    }

    #[test]
    fn a_wait_descriptor_is_readable_by_its_bell_and_by_the_sources() {
        let set = WaitSet::new().unwrap();
        let (one, two) = (set.descriptor().unwrap(), set.descriptor().unwrap());
        let readable = |fd: &WaitFd| {
            let mut fds = [nix::poll::PollFd::new(
                fd.as_fd(),
                nix::poll::PollFlags::POLLIN,
            )];
            nix::poll::poll(&mut fds, nix::poll::PollTimeout::ZERO).unwrap() == 1
        };
        assert!(!readable(&one) && !readable(&two));
        one.bell().ring();
        one.bell().ring();
        assert!(readable(&one) && !readable(&two));
        one.bell().clear();
        assert!(!readable(&one));
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        set.add(fd.as_fd()).unwrap();
        fd.write(1).unwrap();
        assert!(readable(&one) && readable(&two));
        fd.read().unwrap();
        assert!(!readable(&one) && !readable(&two));
        // The signal is for threads in calls.
        set.signal();
        assert!(!readable(&one));
        // A bell of the set is for all.
        let bell = set.bell().unwrap();
        bell.ring();
        assert!(readable(&one) && readable(&two));
        assert!(set.sleep(Some(Instant::now())).unwrap());
        bell.clear();
        assert!(!readable(&one) && !readable(&two));
        assert!(!set.sleep(Some(Instant::now())).unwrap());
        // One of no set is that of two sets, until it leaves one of them.
        let (both, other) = (WaitFd::new().unwrap(), WaitSet::new().unwrap());
        for of in [&set, &other, &set] {
            of.make_readable(&both).unwrap();
        }
        let bells = [bell, other.bell().unwrap()];
        for bell in &bells {
            assert!(!readable(&both));
            bell.ring();
            assert!(readable(&both));
            bell.clear();
        }
        other.leave(&both);
        bells[1].ring();
        assert!(!readable(&both));
        bells[0].ring();
        assert!(readable(&both));
    }

    #[test]
    fn a_descriptor_wakes_all_until_it_is_read() {
        let set = WaitSet::new().unwrap();
        let (one, two) = (set.sleeper().unwrap(), set.sleeper().unwrap());
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        set.add(fd.as_fd()).unwrap();
        assert!(!one.sleep(Some(Instant::now())).unwrap());
        fd.write(1).unwrap();
        for sleeper in [&one, &two, &one] {
            assert!(sleeper.sleep(None).unwrap());
        }
        fd.read().unwrap();
        assert!(!two.sleep(Some(Instant::now())).unwrap());
    }
}
