//! One conformance suite for every endpoint, over shared memory, over verbs and over both paired,
//! on a quiet network or one that loses packets.
//!
//! It is written to the public traits of [`ferrofabric_runtime::fabric`] alone and knows no
//! provider. The tests of `provider-shm` and of `hw-tests` open domains and call it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

pub mod async_inserts;
pub mod atomic_ends;
pub mod atomic_regions;
pub mod atomics;
pub mod backlogs;
pub mod broken;
pub mod churn;
pub mod closes;
pub mod completions;
pub mod counters;
pub mod deliveries;
pub mod descriptors;
pub mod dgram;
pub mod discovery;
pub mod ends;
pub mod fabric;
pub mod killed_peers;
pub mod levels;
pub mod limits;
pub mod lists;
pub mod matches;
mod memory;
pub mod model;
pub mod multi_receives;
pub mod named;
pub mod one_sided;
pub mod orders;
pub mod probes;
pub mod progress;
pub mod region_closes;
pub mod region_memory;
pub mod remapping;
pub mod remote_refusals;
pub mod removals;
pub mod reports;
pub mod runs;
pub mod search;
pub mod sends;
pub mod shared_queue;
pub mod sharing;
pub mod steady;
pub mod suite;
pub mod target;
pub mod this_program;
pub mod unknown_initiators;
pub mod unknown_sources;
pub mod user_ids;
pub mod vectors;
pub mod waiting;
