//! A simulated network with a virtual clock, and the tests that run on it.
//!
//! [`node`] carries out a connector's actions on model queue pairs and checks that they make sense;
//! [`network`] joins many nodes by links that lose, repeat and delay; [`traffic`] runs sessions and
//! rendezvous over the lanes that come up, [`datagrams`] sessions over UD, [`resumption`] a session
//! from lane to lane, [`lanes`] the life of lanes. `storms` has the big runs, `scarcity` those with
//! too few queue pairs, `orders` and `restarts` search small ones exhaustively. `unit` has single
//! packets, `closes` those of closes, `forgeries` those of a third party.

mod closes;
mod datagrams;
mod forgeries;
mod lanes;
mod network;
mod node;
mod orders;
mod restarts;
mod resumption;
mod scarcity;
mod storms;
mod traffic;
mod unit;
