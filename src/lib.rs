//! Ferrofabric: endpoints for messages over RDMA hardware and shared memory, for HPC programs.
//!
//! This package is what a Rust program depends on. It gathers the names that such a program needs
//! from the crates that declare them, and adds nothing. `examples/messages.rs` is a whole program.
//!
//! A [`Provider`](fabric::Provider) finds domains ([`discovery`]) and opens one. A
//! [`Domain`](fabric::Domain) opens endpoints, address vectors and completion queues. The data path
//! of these takes addresses of memory and is unsafe; [`owning`] has endpoints that own the buffers
//! of their operations, and no unsafe call.
//!
//! Other providers are written to [`peer`], the interfaces between an owner and its peers.

pub use ferrofabric_av::{AvAttr, InsertReport, InsertRequest, Resolve, Services};
pub use ferrofabric_contracts::{
    API_VERSION, VERSION, addr, config, error, flags, info, peer, types,
};
pub use ferrofabric_runtime::{discovery, eq, fabric, owning};
pub use ferrofabric_shm::ShmProvider;
pub use ferrofabric_verbs::VerbsProvider;
