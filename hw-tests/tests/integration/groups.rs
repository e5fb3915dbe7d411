//! Collective operations of processes on one machine, by the Rust interface.

use ferrofabric_hw_tests::{Rig, groups};
use serial_test::file_serial;

const NEVER: u64 = u64::MAX;

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-peer");

/// Over lanes of a kind.
fn run_over(lane: &str, members: u64, rounds: u64, death: u64) {
    if Rig::open().is_none() {
        return;
    }
    let soon = ("FERRO_RECONNECT_TIMEOUT", "2s");
    let settings = [("FERRO_LANE", lane), ("FERRO_SHM", "off"), soon];
    groups::run(PROGRAM, |_| settings, [members, rounds, death]);
}

#[test]
#[file_serial(verbs)]
fn members_share_memory() {
    let settings = [("FERRO_VERBS", "off"), ("FERRO_SHM", "on")];
    for members in [3, 8] {
        groups::run(PROGRAM, |_| settings, [members, 6, NEVER]);
    }
}

#[test]
#[file_serial(verbs)]
fn a_member_that_shares_memory_is_killed() {
    let settings = [("FERRO_VERBS", "off"), ("FERRO_SHM", "on")];
    for death in 1..3 {
        groups::run(PROGRAM, |_| settings, [5, 6, death]);
    }
}

#[test]
#[file_serial(verbs)]
fn operations_over_rc_lanes() {
    for members in [2, 5] {
        run_over("rc", members, 6, NEVER);
    }
}

#[test]
#[file_serial(verbs)]
fn operations_over_ud_lanes() {
    run_over("ud", 3, 6, NEVER);
}

#[test]
#[file_serial(verbs)]
fn a_member_is_killed() {
    for death in 1..3 {
        run_over("rc", 4, 6, death);
    }
}
