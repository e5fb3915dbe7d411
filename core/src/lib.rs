//! Object model, matching, completion, discovery and protocol state machines of Ferrofabric: no device, no C.
//!
//! A provider gives an RDM endpoint a [`peer::Transport`]; [`domain`] makes of it the objects that an application
//! sees: domain, endpoint, address vector, completion queue, counter ([`fabric`] has their traits).

#![deny(unsafe_code)]

/// The version of libfabric's interface that this is written for, `major << 16 | minor`.
pub const API_VERSION: u32 = (2 << 16) | 6;

/// Our own version, `major << 16 | minor` (`fi_fabric_attr::prov_version`).
pub const VERSION: u32 = 1;

pub mod addr;
pub mod av;
#[allow(unsafe_code, reason = "a call of the C library")]
pub mod cancel;
pub mod config;
pub mod cq;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod domain;
pub mod eq;
pub mod error;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod fabric;
pub mod feed;
#[cfg_attr(
    all(test, loom),
    allow(unsafe_code, reason = "its model looks behind the flag")
)]
pub mod flag;
pub mod flags;
#[allow(unsafe_code, reason = "a handler that runs in forked children")]
pub mod forked;
pub mod info;
mod listed;
mod lock_order;
pub mod matching;
#[allow(
    unsafe_code,
    reason = "it keeps the promises that the data path asks for"
)]
pub mod owning;
pub mod peer;
#[allow(unsafe_code, reason = "a hint to the processor")]
pub mod prefetch;
pub mod protocol;
#[allow(unsafe_code, reason = "a lock hands out exclusive access")]
pub mod serial;
mod sync;
pub mod threads;
pub mod types;
pub mod wait;
