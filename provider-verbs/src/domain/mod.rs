//! Domains over verbs. A domain is composed of a device's port, endpoints and, for RDM, near
//! transports ([`near`](crate::near)), whose types no other module names.

mod dgram;
mod far;
mod opened_port;
mod port;
mod rdm;

pub(crate) use dgram::DgramBackend;
pub(crate) use ferrofabric_shm::node_id;
pub(crate) use opened_port::OpenedPort;
pub(crate) use port::local_port;
pub(crate) use rdm::VerbsBackend;
