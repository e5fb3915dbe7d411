//! A barrier of memory between two threads of this process, one of which pays for both
//! (membarrier(2)): for a flag of a data path that is written often, and rarely looked at.

#[cfg(loom)]
use crate::sync::{Ordering, fence};

/// The half of the frequent side, between its write and its read: only the compiler keeps the
/// order.
#[inline(always)]
pub(crate) fn frequent_half() {
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(loom)]
    fence(Ordering::SeqCst);
}

/// The half of the rare side, between its write and its read: a barrier on each processor that runs
/// a thread of this process. False: the system has none, and the frequent side may not see the
/// write.
#[cfg(not(loom))]
#[must_use]
pub(crate) fn rare_half() -> bool {
    const COMMAND: libc::c_int = libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    const REGISTER: libc::c_int = libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED;
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    // It fails in a process that has not registered.
    membarrier(COMMAND) || membarrier(REGISTER) && membarrier(COMMAND)
}

/// As above. Here the frequent side executes a fence, too.
#[cfg(loom)]
pub(crate) fn rare_half() -> bool {
    fence(Ordering::SeqCst);
    true
}

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: membarrier(2) takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
