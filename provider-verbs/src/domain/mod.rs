//! Domains over verbs. A domain is composed of devices, endpoints and, for RDM, the node's shared
//! memory. No other module of this crate names the types of shared memory.

mod dgram;
mod pair;
mod port;
mod rdm;

pub(crate) use dgram::DgramBackend;
pub(crate) use ferrofabric_shm::node_id;
pub(crate) use port::local_port;
pub(crate) use rdm::VerbsBackend;
