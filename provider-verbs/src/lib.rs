//! The verbs provider of Ferrofabric: RDM and DGRAM endpoints over InfiniBand, RoCE and Soft-RoCE.

pub mod ah;
mod cm;
mod connect;
pub mod cq;
pub mod device;
mod domain;
mod endpoint;
#[cfg(feature = "fault-injection")]
pub mod fault;
mod gather;
pub mod mr;
#[cfg(not(feature = "counter-origins"))]
mod origins;
#[cfg(feature = "counter-origins")]
pub mod origins;
mod pairing;
pub mod pd;
mod port;
pub mod post;
mod provider;
pub mod qp;
mod registration;
mod rejected;
mod session;
mod slots;
pub mod srq;
mod tuning;

pub use provider::{NAME, VerbsProvider};
