//! Atomics and locks for state that threads share: the machine's own, or those of `loom` when it
//! explores interleavings (`scripts/test`, phase "loom").

#[cfg(loom)]
#[allow(
    missing_docs,
    reason = "the counterparts in the standard library have them"
)]
mod modelled;

#[cfg(not(loom))]
pub use crate::locks::{Mutex, MutexGuard};
#[cfg(loom)]
pub use loom::sync::{
    MutexGuard,
    atomic::{AtomicBool, Ordering, fence},
};
#[cfg(loom)]
pub use modelled::{AtomicU32, AtomicU64, AtomicUsize, Mutex, OnceLock};
#[cfg(not(loom))]
pub use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Tries the interleavings in which threads are interrupted so many times at most; of very many the
/// first ones, which are the same each time.
#[cfg(loom)]
pub fn explore(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    builder.max_branches = 20_000;
    builder.max_permutations = Some(5_000);
    builder.checkpoint_interval = 1_000;
    builder.check(model);
}
