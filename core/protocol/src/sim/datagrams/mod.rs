//! Sessions over the UD lane, between many endpoints, on a network that loses, repeats and
//! reorders; with a model of RC lanes that come up, break and are recycled under them. Every packet
//! is real bytes.
//!
//! [`world`] is the network and the clock, [`end`] one end of a session with its application.
//! `orders` has the plain model (exactly once, in order), `changes` moves sessions between lanes
//! and restarts processes at every step, `storms` has the big runs.

mod changes;
mod end;
mod orders;
mod storms;
mod world;
