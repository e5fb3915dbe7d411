//! Collective operations of processes over a network with losses, by the Rust interface.

use ferrofabric_hw_tests::{Rig, groups};
use serial_test::file_serial;

/// Members are at two devices in turn, so that their packets cross the network.
fn run_over(lane: &str) {
    if Rig::open().is_none() {
        return;
    }
    let settings = |rank: u64| {
        let device = match rank % 2 {
            0 => "ferro_rxe0",
            _ => "ferro_rxe1",
        };
        [
            ("FERRO_LANE", lane),
            ("FERRO_SHM", "off"),
            ("FERRO_DEVICE", device),
        ]
    };
    let program = env!("CARGO_BIN_EXE_test-peer");
    groups::run(program, settings, [3, 6, u64::MAX]);
}

#[test]
#[file_serial(verbs)]
fn operations_over_rc_lanes() {
    run_over("rc");
}

#[test]
#[file_serial(verbs)]
fn operations_over_ud_lanes() {
    run_over("ud");
}
