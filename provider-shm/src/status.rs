//! What each side of a link lets the other one know at a glance: that it sleeps, that it waits for
//! room, that it has closed.
//!
//! A sender loads its peer's status after each message, and no fence stands between the two: the
//! sleeper pays. It sets its flag, then has the kernel run a barrier on every processor that runs a
//! registered process (membarrier(2)), then looks at its rings once more. So either the sender's
//! load comes after the barrier and sees the flag, or its message was stored before the barrier and
//! the second look sees that. Where membarrier is missing on a side, senders pay for a fence.

use crate::sync::{AtomicU32, Ordering, fence};

/// Wake me when a message comes.
pub(crate) const SLEEPS: u32 = 1;
/// Wake me when you have consumed something, too.
pub(crate) const WANTS_ROOM: u32 = 2;
/// I have left; nothing more comes.
pub(crate) const CLOSED: u32 = 4;

/// A side's status word, in a line of its own: its owner writes it, the peer reads it and takes the
/// wish to be woken.
#[repr(C, align(128))]
pub(crate) struct Status {
    word: AtomicU32,
}

impl Status {
    #[cfg(all(test, loom))]
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
        }
    }

    /// The flags.
    #[inline(always)]
    pub(crate) fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Sleeper: asks to be woken. A barrier and another look at the rings must follow.
    pub(crate) fn sleep(&self, flags: u32) {
        self.word.fetch_or(flags, Ordering::SeqCst);
    }

    /// Sleeper: is awake.
    pub(crate) fn awake(&self) {
        self.word
            .fetch_and(!(SLEEPS | WANTS_ROOM), Ordering::Relaxed);
    }

    /// Waker: takes the wish, so that it is fulfilled once. True when it is the caller's to fulfil.
    #[cold]
    pub(crate) fn take_wish(&self) -> bool {
        let before = self
            .word
            .fetch_and(!(SLEEPS | WANTS_ROOM), Ordering::AcqRel);
        before & SLEEPS != 0
    }

    /// Owner: leaves. What it published before is seen by who sees this; whoever sees what it does
    /// with its memory after that sees this, too ([`Self::has_closed_by_now`]).
    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Peer: whether the owner has left. If not, what was read of its memory before was still meant
    /// to be read.
    pub(crate) fn has_closed_by_now(&self) -> bool {
        fence(Ordering::Acquire);
        self.load() & CLOSED != 0
    }
}

/// A waker's half of the barrier, where the sleeper can not make the kernel do both.
#[inline(always)]
pub(crate) fn waker_fence(needed: bool) {
    if needed {
        fence(Ordering::SeqCst);
    } else {
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A sleeper's half. False: the kernel has not done it, and senders may not see that the sleeper
/// wants to be woken.
#[cfg(not(loom))]
#[must_use]
pub(crate) fn sleeper_barrier(registered: bool) -> bool {
    fence(Ordering::SeqCst);
    !registered
        || membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0
        // Slow, and there where the other one is for want of memory.
        || membarrier(libc::MEMBARRIER_CMD_GLOBAL) == 0
        || warn_of_no_barrier()
}

/// A filter of system calls may have come since the process has registered.
#[cfg(not(loom))]
#[cold]
fn warn_of_no_barrier() -> bool {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| tracing::warn!("membarrier(2) fails: who waits for messages does not sleep"));
    false
}

/// Registers this process for the barriers of others; false when the kernel has none.
#[cfg(not(loom))]
pub(crate) fn register() -> bool {
    let commands = membarrier(libc::MEMBARRIER_CMD_QUERY);
    commands > 0
        && commands & i64::from(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) != 0
        && membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> i64 {
    // SAFETY: membarrier(2) takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) as i64 }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Every order of a message and a sleep: whoever has gone to sleep is woken if there is a
    /// message. (With fences on both sides, which is what membarrier(2) makes of the sleeper's.)
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let status = Arc::new(Status::new());
            let message = Arc::new(AtomicU32::new(0));
            let (theirs, sent) = (Arc::clone(&status), Arc::clone(&message));
            let sender = thread::spawn(move || {
                sent.store(1, Ordering::Release);
                waker_fence(true);
                theirs.load() & SLEEPS != 0 && theirs.take_wish()
            });
            status.sleep(SLEEPS);
            fence(Ordering::SeqCst);
            let sleeps = message.load(Ordering::Acquire) == 0;
            let rang = sender.join().unwrap();
            assert!(!sleeps || rang, "asleep, and nobody rings");
        });
    }

    /// Who reads a message where it lies and finds something else there sees that the owner has
    /// left. Fails without either fence.
    #[test]
    fn memory_is_used_anew_after_its_owner_has_left() {
        loom::model(|| {
            let status = Arc::new(Status::new());
            let memory = Arc::new(AtomicU32::new(0));
            let (ours, used) = (Arc::clone(&status), Arc::clone(&memory));
            let owner = thread::spawn(move || {
                ours.close();
                used.store(1, Ordering::Relaxed);
            });
            let read = memory.load(Ordering::Relaxed);
            let closed = status.has_closed_by_now();
            assert!(read == 0 || closed, "foreign bytes are taken for a message");
            owner.join().unwrap();
        });
    }
}
