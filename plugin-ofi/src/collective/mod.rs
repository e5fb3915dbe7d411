//! Collective operations (fi_collective(3)), by libfabric's `off_coll` (docs/adr/0071).
//!
//! `off_coll` is a peer (fi_peer(3)) that sends its messages by an endpoint of ours. [`endpoint`]
//! has the operations of an endpoint, drives `off_coll` ([`offload_endpoint`]) and carries out its
//! calls ([`lent`]).

pub(crate) mod broadcast;
pub(crate) mod endpoint;
mod failures;
pub(crate) mod foreign;
mod joins;
mod lent;
mod lent_set;
pub(crate) mod offers;
pub(crate) mod offload;
pub(crate) mod offload_endpoint;
pub(crate) mod operations;
mod probes;
pub(crate) mod tags;
mod timer;
pub(crate) mod waiting;

/// The bit of a tag that messages of collectives have, and no others of such an endpoint.
pub(crate) const RESERVED_TAG: u64 = 1 << 63;
