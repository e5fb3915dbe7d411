//! The tests of the objects of a domain, of discovery and of named address vectors.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod foreign_calls;
mod getinfo;
mod informed_of_all;
mod lost_addresses;
mod named_address_vectors;
mod named_av_faults;
mod parts_of_pairs;
mod recorder;
