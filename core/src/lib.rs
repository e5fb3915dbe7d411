//! Object model, matching, completion, discovery and protocol state machines of Ferrofabric: no device, no C.
//!
//! A provider gives an RDM endpoint a [`peer::Transport`]; [`domain`] makes of it the objects that an application
//! sees: domain, endpoint, address vector, completion queue, counter ([`fabric`] has their traits).

#![deny(unsafe_code)]

pub mod addr;
pub mod error;
pub mod flags;
pub mod peer;
pub mod types;
