//! The fate of registered memory in a child after `fork`.

use std::sync::OnceLock;

use ferrofabric_verbs_sys::{Verbs, ibv_fork_status};

/// The safety of registered memory when the process forks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkSafety {
    /// The kernel copies pinned pages at the fork (since 5.12): nothing to do.
    CopyOnFork,
    /// libibverbs keeps pinned pages from the child (`MADV_DONTFORK`): a child that touches them
    /// dies.
    KeptFromChild,
    /// Neither: after a fork, the parent's registered memory and the pages that the device uses may
    /// differ.
    Unprotected,
}

/// Determines the safety, once for the process, and makes libibverbs protect registered memory if
/// the kernel does not. It has to be called before any other function of libibverbs, as
/// `ibv_fork_init(3)` requires; [`super::DeviceContext::open`] and
/// [`super::DeviceContext::device_names`] do that. If the kernel copies pinned pages at the fork,
/// nothing is done, so that children have registered memory as all other memory.
pub(crate) fn fork_safety(verbs: &Verbs) -> ForkSafety {
    static SETTLED: OnceLock<ForkSafety> = OnceLock::new();
    *SETTLED.get_or_init(|| {
        if let Some(status) = verbs.ibv_is_fork_initialized {
            // SAFETY: takes nothing, and queries the kernel.
            if unsafe { status() } == ibv_fork_status::IBV_FORK_UNNEEDED {
                return ForkSafety::CopyOnFork;
            }
        }
        // SAFETY: takes nothing; fails where memory was registered before, or where the kernel
        // cannot.
        if unsafe { (verbs.ibv_fork_init)() } == 0 {
            ForkSafety::KeptFromChild
        } else {
            tracing::warn!("registered memory is not safe across fork: the kernel lacks copy-on-fork and MADV_DONTFORK");
            ForkSafety::Unprotected
        }
    })
}
