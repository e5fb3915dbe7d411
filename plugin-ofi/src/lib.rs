//! Ferrofabric as a provider plugin: the C ABI that libfabric loads as `libferro-fi.so`, and
//! nothing else.

pub mod abi;
mod av;
mod calls;
mod cancel;
mod cntr;
mod collective;
mod collective_peer;
mod cq;
mod datatypes;
mod discovery;
mod domain;
mod endpoint;
mod eq;
mod fabric;
mod fi_addr;
mod fid;
mod guard;
pub mod host;
mod info;
pub mod log;
mod memory;
mod mr;
mod nic;
mod no_calls;
pub mod peer;
pub mod provider;
mod reasons;
pub mod settings;
mod srx;
mod turn;
mod unsupported;
mod uses;
mod wait;

/// Version of the provider.
const VERSION: u32 = ferrofabric_contracts::VERSION;
