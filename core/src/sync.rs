//! Atomics of what threads share without a lock: the machine's own, or those of `loom` when it explores
//! interleavings (`scripts/test`, phase "loom").

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
