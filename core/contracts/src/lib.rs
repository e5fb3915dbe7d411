//! The vocabulary that all parts of Ferrofabric share: plain values, flags, errors, addresses,
//! discovery's questions and offers, settings, and the interfaces between an owner and its peers
//! (fi_peer(3)).
//!
//! Nothing here holds a device, a thread or a lock.

#![deny(unsafe_code)]

/// The version of libfabric's interface that this is written for, `major << 16 | minor`.
pub const API_VERSION: u32 = (2 << 16) | 6;

/// Our own version, `major << 16 | minor` (`fi_fabric_attr::prov_version`).
pub const VERSION: u32 = 1;

pub mod addr;
pub mod atomics;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod buffers;
pub mod config;
pub mod error;
pub mod flags;
pub mod info;
mod listed;
pub mod part;
pub mod peer;
pub mod region_window;
pub mod requester;
pub mod routes;
pub mod send_line;
pub mod size;
pub mod types;
