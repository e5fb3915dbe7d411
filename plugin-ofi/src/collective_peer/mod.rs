//! Collective operations that this provider carries out for another one, its owner, by messages of
//! the owner's endpoint (fi_peer(3), `FI_PEER_TRANSFER`; docs/adr/0074).
//!
//! The contract:
//!
//! - The owner finds the offer by hints with `FI_PEER`, `FI_COLLECTIVE` and the mode
//!   `FI_PEER_TRANSFER`. It opens a domain, a completion queue, an address vector and an endpoint
//!   with the objects that it lends, and an event queue of this provider's fabric.
//! - Addresses are the owner's. Nothing is inserted here, and an address stays that of one endpoint
//!   from the first group on that has it.
//! - Messages are tagged ones with `FI_PEER_TRANSFER`, of 63 bits of tag, and their contexts are
//!   numbers. The owner reports the end of each once, by `complete` or `comperr`, and not within
//!   another report. Messages between two endpoints match in their order.
//! - No lock is held while the owner is called, by one thread at a time. So it may report ends,
//!   begin operations or close the endpoint in its own functions. A read of the queue makes no
//!   progress there. A close waits for calls of the owner in other threads: its caller has no lock
//!   that they wait for.
//! - A read of no entries from the completion queue makes progress: it probes members, repeats
//!   messages for which the owner had no room, and writes entries that it did not take. The owner
//!   reads its own queue before.
//! - The close of an endpoint cancels its receives. The memory of messages that are not over then
//!   stays until the domain closes. The owner closes its own endpoint before.

mod calls;
mod carrier;
mod domain;
mod elements;
mod endpoint;
mod group;
mod objects;
pub(crate) mod offer;
mod queue;
mod reports;
mod transfers;
mod vector;

pub(crate) use domain::PeerDomainObject;
