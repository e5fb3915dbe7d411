//! The shared-memory provider of Ferrofabric: alone, or as a peer of another provider.
//!
//! [`ShmTransport`] carries the messages of one RDM endpoint to other endpoints on the same node.
//! Each pair of endpoints shares a sealed segment of 60 KiB, with a ring of slots and a ring of
//! payload for each direction. A service thread makes and ends links; a doorbell wakes a sleeping
//! endpoint. No byte in a segment is trusted: a hostile peer can break its own link and no other.
//! `docs/shared-memory.md` describes the protocol.

#![deny(unsafe_code)]
#![cfg_attr(
    loom,
    allow(dead_code, reason = "only the ring and the status word are modelled")
)]

// `owner`, which the tests in `tests/` share, names this crate as an external user does.
#[cfg(all(any(test, feature = "fuzzing"), not(loom)))]
extern crate self as ferrofabric_shm;

mod board;
mod hazard;
#[allow(
    unsafe_code,
    reason = "the ring lies in memory that another process writes to"
)]
mod ring;
#[allow(unsafe_code, reason = "membarrier(2)")]
mod status;
mod sync;

#[cfg(not(loom))]
#[allow(unsafe_code, reason = "process_vm_readv(2), preadv(2), ioctl(2)")]
mod cma;
#[cfg(not(loom))]
mod config;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "copies into and out of shared memory")]
mod copy;
#[cfg(not(loom))]
mod doorbell;
#[cfg(all(feature = "fuzzing", not(loom)))]
#[allow(unsafe_code, reason = "plays a hostile peer")]
#[doc(hidden)]
pub mod fuzzing;
#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "plays a hostile peer")]
mod hostile;
#[cfg(not(loom))]
mod incoming;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "fills slots and records")]
mod link;
#[cfg(not(loom))]
mod liveness;
#[cfg(all(test, not(loom)))]
#[allow(unsafe_code, reason = "userfaultfd(2)")]
mod missing_pages;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "the buffers of sends that are handed back")]
mod near;
#[cfg(not(loom))]
mod node;
#[cfg(not(loom))]
mod outbox;
#[cfg(all(any(test, feature = "fuzzing"), not(loom)))]
#[path = "../tests/integration/owner/mod.rs"]
#[allow(
    unsafe_code,
    reason = "a test's owner, which drives the transport directly"
)]
mod owner;
#[cfg(not(loom))]
mod paths;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "statx(2)")]
mod peer_memory;
#[cfg(not(loom))]
mod peers;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "copies the data of sends")]
mod pending;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "the data path takes buffers as addresses")]
mod provider;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "copies out of slots and records")]
mod receive;
#[cfg(not(loom))]
mod regions;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "places the rings in the mapping")]
mod segment;
#[cfg(not(loom))]
mod service;
#[cfg(not(loom))]
mod stats;
#[cfg(not(loom))]
#[allow(unsafe_code, reason = "the data path takes buffers as addresses")]
mod transport;
#[cfg(not(loom))]
mod wire;

#[cfg(not(loom))]
pub use self::{
    config::{Cma, ShmConfig, ShownRegions, Unreachable},
    node::node_id,
    peers::ShmRoute,
    pending::PendingSend,
    provider::ShmProvider,
    regions::RegionBoard,
    stats::ShmStats,
    transport::ShmTransport,
};
