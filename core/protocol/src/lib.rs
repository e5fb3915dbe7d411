//! The protocol between two endpoints, as pure state machines: an event and the time go in, actions
//! come out.
//!
//! Nothing here knows a device, a thread or a clock; the verbs endpoint carries the actions out.
//! Two families:
//!
//! * the *service thread's*: [`handshake`] makes, checks and ends RC lanes over the lossy UD
//!   channel;
//! * the *engine's*: [`session`] (order, exactly-once, credits), [`datagram_lane`] (a session over
//!   UD, made reliable), [`fragmentation`] (messages of several packets), [`rendezvous`] (bulk
//!   by RDMA read) and [`envelopes`] (messages that wait at their sender).
//!
//! [`wire`] defines the packets of both; `docs/wire-protocol.md` has the pictures.

#![deny(unsafe_code)]

pub mod credit;
pub mod datagram_lane;
pub mod envelopes;
pub mod fragmentation;
pub mod handshake;
pub mod lane_policy;
pub mod lanes;
mod peer_key;
pub mod rendezvous;
mod rtt;
pub mod secrets;
pub mod session;
mod spare_room;
pub mod table;
mod time;
pub mod timers;
pub mod wire;

#[cfg(test)]
mod sim;

pub use peer_key::{PLACE_BYTES, PeerKey};
pub use spare_room::give_back_room;
pub use time::Time;
