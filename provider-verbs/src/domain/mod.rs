//! Domains over verbs, composed of what they work with: devices, endpoints and, for RDM, the node's
//! shared memory. Nothing else in this crate names shared memory's types.

mod dgram;
mod pair;
mod port;
mod rdm;

pub(crate) use dgram::DgramBackend;
pub(crate) use ferrofabric_shm::node_id;
pub(crate) use port::local_port;
pub(crate) use rdm::VerbsBackend;
