//! The tests on a real verbs device. Modules `lossy_…` need a network that loses packets, `nodes_…`
//! two machines.

#![allow(
    missing_docs,
    unreachable_pub,
    reason = "a program of tests has no users"
)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod auth_keys;
mod broken_lanes;
mod conformance;
mod death;
mod device;
mod devices;
mod dgram_conformance;
mod dgram_frames;
mod dgram_paths;
mod dgram_resets;
mod discovery;
mod fairness;
mod getinfo;
mod groups;
mod handles;
mod independent_peer;
mod killed_peers;
mod limits;
mod lossy_conformance;
mod lossy_dgram;
mod lossy_groups;
mod lossy_rdm;
mod lossy_traffic_classes;
mod memory_lock;
mod mixed;
mod nodes_conformance;
mod nodes_groups;
mod nodes_rdm;
mod nodes_sockets;
mod nodes_sums;
mod one_sided;
mod path_records;
mod ranges;
mod rc;
mod rdm;
mod rdma_cm;
mod registrations;
mod scale;
mod sockets;
mod srq;
mod steady;
mod sums;
mod traffic_classes;
mod two_processes;
mod ud;

use ferrofabric_conformance::steady::RecordingAllocator;

/// A process has one test, so what is counted is what the test allocates.
#[global_allocator]
static ALLOCATOR: RecordingAllocator = RecordingAllocator;
