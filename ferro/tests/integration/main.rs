//! The tests of the command line.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod command_line;
mod devices;
mod doctor;
mod needed;
mod nic;
mod program;
mod terminal;
