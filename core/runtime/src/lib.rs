//! The objects that an application holds: domain, endpoint, address vector, completion and event
//! queue, counter ([`fabric`] has their traits), and [`discovery`] over all providers.
//!
//! A provider gives an RDM endpoint a [`Transport`](ferrofabric_contracts::peer::Transport);
//! [`domain`] makes of it the objects that an application sees. Invariant: all state of a domain
//! lies behind the domain's lock, and every handle reaches it through that lock.

#![deny(unsafe_code)]

pub mod cq;
pub mod discovery;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod domain;
mod empty_polls;
pub mod eq;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod fabric;
#[allow(unsafe_code, reason = "it fulfils the contracts of the data path")]
pub mod owning;
#[allow(unsafe_code, reason = "the data path hands buffers over as addresses")]
pub mod rma;
mod wait;
