//! The tests of the shared-memory provider.

#![cfg(not(loom))]
#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod address_ranges;
mod address_vectors;
mod closing;
mod conformance;
mod death;
mod exchange;
mod flush;
mod fork;
mod forked_domains;
mod getinfo;
mod interrupted_waits;
mod killed_peers;
mod limits;
mod mapped;
mod mapped_atomics;
mod mapping;
mod memory;
mod messages;
mod named_vectors;
mod owner;
mod party;
mod processes;
mod quotas;
mod removals;
mod shortcuts;
mod steady;
mod threads;
mod used_entries;
mod users;

use ferrofabric_conformance::steady::RecordingAllocator;

/// A process has one test, so what is counted is what the test allocates.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;
