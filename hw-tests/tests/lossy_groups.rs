//! Collective operations of processes over a network with losses, by the Rust interface.

#![allow(missing_docs)]

use ferrofabric_hw_tests::party::PeerProcess;
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
    let (members, rounds) = (3, 6);
    let leader = groups::endpoint(&settings(0));
    let name = groups::name(&leader);
    let mut others: Vec<_> = (1..members)
        .map(|rank| {
            let numbers: groups::MemberNumbers = [rank, members, rounds, u64::MAX];
            let program = env!("CARGO_BIN_EXE_test-peer");
            PeerProcess::start(program, "member", &settings(rank), &numbers, &name)
        })
        .collect();
    let names: Vec<_> = [name]
        .into_iter()
        .chain(others.iter().map(|other| other.name))
        .collect();
    others.iter_mut().for_each(PeerProcess::go);
    groups::lead(leader, &names, rounds, u64::MAX);
    others.into_iter().for_each(PeerProcess::finish);
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
