//! The status word of each side of a link: the side sleeps, it waits for room, it is about to close,
//! it has closed.
//!
//! A sender loads its peer's status after each message, without a fence between the two: the
//! sleeper pays. The sleeper sets its flag, then has the kernel run a barrier on every processor
//! that runs a registered process (membarrier(2)), then looks at its rings once more. So either the
//! sender's load comes after the barrier and sees the flag, or its message was stored before the
//! barrier and the second look sees it. If a side has no membarrier, senders execute a fence.

use crate::sync::{AtomicU32, Ordering, fence};

/// The side sleeps: a message must wake it.
pub(crate) const SLEEPS: u32 = 1;
/// The side sleeps and waits for room: consumption must wake it, too.
pub(crate) const WANTS_ROOM: u32 = 2;
/// The side has closed; nothing more comes.
pub(crate) const CLOSED: u32 = 4;
/// The side is about to close, and messages of it wait for room.
pub(crate) const DELIVERS: u32 = 8;

/// A side's status word, in a line of its own. Its owner writes it; the peer reads it and clears
/// the request to be woken.
#[repr(C, align(64))]
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

    /// Sleeper: requests to be woken. A barrier and another look at the rings must follow.
    pub(crate) fn sleep(&self, flags: u32) {
        self.word.fetch_or(flags, Ordering::SeqCst);
    }

    /// Sleeper: clears its request after it woke.
    pub(crate) fn awake(&self) {
        self.word
            .fetch_and(!(SLEEPS | WANTS_ROOM), Ordering::Relaxed);
    }

    /// Waker: clears the request, so that one waker serves it. True if the caller is that waker.
    #[cold]
    pub(crate) fn take_wake_request(&self) -> bool {
        let before = self
            .word
            .fetch_and(!(SLEEPS | WANTS_ROOM), Ordering::AcqRel);
        before & SLEEPS != 0
    }

    /// Owner: whether it is about to close, and waits until the peer has taken its messages.
    #[cold]
    pub(crate) fn set_delivers(&self, delivers: bool) {
        match delivers {
            true => self.word.fetch_or(DELIVERS, Ordering::Relaxed),
            false => self.word.fetch_and(!DELIVERS, Ordering::Relaxed),
        };
    }

    /// Owner: closes. A reader of this flag sees everything that the owner published before. A
    /// reader of memory that the owner reused after this sees the flag
    /// ([`Self::has_closed_by_now`]).
    pub(crate) fn close(&self) {
        self.word.fetch_or(CLOSED, Ordering::Release);
        fence(Ordering::Release);
    }

    /// Peer: whether the owner has closed. If not, the bytes read from its memory before this call
    /// were still those of its message.
    pub(crate) fn has_closed_by_now(&self) -> bool {
        fence(Ordering::Acquire);
        self.load() & CLOSED != 0
    }
}

/// A waker's half of the barrier, where the sleeper's kernel can not do both halves.
#[inline(always)]
pub(crate) fn waker_fence(needed: bool) {
    if needed {
        fence(Ordering::SeqCst);
    } else {
        #[cfg(not(loom))]
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
    }
}

/// A sleeper's half of the barrier. False: the kernel failed, and senders may not see that the
/// sleeper must be woken.
#[cfg(not(loom))]
#[must_use]
pub(crate) fn sleeper_barrier(registered: bool) -> bool {
    fence(Ordering::SeqCst);
    !registered
        || membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED) == 0
        // Slow, and works where the other command fails for lack of memory.
        || membarrier(libc::MEMBARRIER_CMD_GLOBAL) == 0
        || warn_of_no_barrier()
}

/// A filter of system calls may have been installed since the process registered.
#[cfg(not(loom))]
#[cold]
fn warn_of_no_barrier() -> bool {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| {
        tracing::warn!("membarrier(2) fails: threads that wait for messages poll and do not sleep")
    });
    false
}

/// Registers this process for the barriers of others; false if the kernel has none.
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

    /// Every order of a message and a sleep: a sleeper is woken if there is a message. (Both sides
    /// have fences here; the sleeper's stands for membarrier(2).)
    #[test]
    fn no_wake_up_is_lost() {
        loom::model(|| {
            let status = Arc::new(Status::new());
            let message = Arc::new(AtomicU32::new(0));
            let (theirs, sent) = (Arc::clone(&status), Arc::clone(&message));
            let sender = thread::spawn(move || {
                sent.store(1, Ordering::Release);
                waker_fence(true);
                theirs.load() & SLEEPS != 0 && theirs.take_wake_request()
            });
            status.sleep(SLEEPS);
            fence(Ordering::SeqCst);
            let sleeps = message.load(Ordering::Acquire) == 0;
            let rang = sender.join().unwrap();
            assert!(!sleeps || rang, "asleep, and nobody rings");
        });
    }

    /// A reader finds other bytes in place of a message: it then sees that the owner has closed.
    /// Fails without either fence.
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
