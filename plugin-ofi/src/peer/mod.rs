//! Other providers of the same libfabric as peers of this one (fi_peer(3)), which is their owner.

pub mod host_provider;
pub(crate) mod near;
pub(crate) mod owner;
