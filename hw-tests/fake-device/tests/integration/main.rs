//! The tests of the verbs provider and of the plugin on the fake device.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../../plugin-ofi/tests/integration/client/mod.rs"]
#[macro_use]
mod client;

mod conformance;
mod descriptors;
mod dgram_conformance;
mod endpoints;
mod forgetting;
mod libfabric;
mod libfabric_regions;
mod lossy_conformance;
mod near_domains;
mod plugin;
mod probe;
mod steady;
mod used_entries;
mod zoo;

use ferrofabric_conformance::steady::RecordingAllocator;

/// A process has one test, so what is counted is what the test allocates.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;
