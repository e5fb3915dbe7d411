//! Threads, forks, locks, sleep and shared memory, as Ferrofabric needs them of the system that it
//! runs on.
//!
//! An application's process is not ours: its threads may be cancelled, its signals belong to it, it
//! may fork. Every thread is started here, and every wait goes through here.

#![deny(unsafe_code)]

#[allow(unsafe_code, reason = "a call of the C library")]
pub mod cancel;
pub mod clock;
pub mod event_log;
#[allow(unsafe_code, reason = "calls of the C library")]
pub mod file_size;
pub mod foreign;
#[allow(unsafe_code, reason = "a handler that runs in forked children")]
pub mod forked;
pub mod lock_order;
pub mod locks;
#[allow(unsafe_code, reason = "calls of the C library")]
pub mod own_memory;
#[cfg_attr(
    all(test, loom),
    allow(unsafe_code, reason = "its model looks behind the flag")
)]
pub mod pending_flag;
#[allow(unsafe_code, reason = "a hint to the processor")]
pub mod prefetch;
#[allow(unsafe_code, reason = "membarrier(2)")]
mod process_barrier;
pub mod process_number;
#[allow(unsafe_code, reason = "a call of the C library")]
pub mod random;
#[allow(unsafe_code, reason = "a lock hands out exclusive access")]
pub mod serial;
#[allow(unsafe_code, reason = "hands out a pointer to a mapping")]
pub mod shared_memory;
pub mod sync;
pub mod threads;
pub mod wait;
