//! The fate of registered memory in a child after `fork`.

use std::sync::OnceLock;

use ferrofabric_verbs_sys::{Verbs, ibv_fork_status};

/// How a process with registered memory stands when it forks.
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

/// Settles it, once for the process, by asking rdma-core; to be called before any other function of
/// libibverbs, as
/// `ibv_fork_init(3)` wants it ([`super::Context::open`] and [`super::Context::device_names`] do).
/// Where the kernel has no need of it nothing is done, so that registered memory is there for
/// children as all other memory is.
pub(crate) fn fork_safety(verbs: &Verbs) -> ForkSafety {
    static SETTLED: OnceLock<ForkSafety> = OnceLock::new();
    *SETTLED.get_or_init(|| {
        if let Some(status) = verbs.ibv_is_fork_initialized {
            // SAFETY: takes nothing, asks the kernel.
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
