//! The tests of the Rust interface.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod atomics;
mod back_pressure;
mod collectives;
mod endpoints;
mod examples;
mod futures;
mod one_sided;
mod received_buffers;
