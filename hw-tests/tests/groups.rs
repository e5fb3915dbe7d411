//! Collective operations of processes on one machine, by the Rust interface.

#![allow(missing_docs)]

use ferrofabric_hw_tests::party::PeerProcess;
use ferrofabric_hw_tests::{Rig, groups};
use serial_test::file_serial;

const NEVER: u64 = u64::MAX;

/// Member 0 is in this process. The last member is killed in a round, if any.
fn run(settings: &[(&str, &str)], members: u64, rounds: u64, death: u64) {
    let leader = groups::endpoint(settings);
    let name = groups::name(&leader);
    let mut others: Vec<_> = (1..members)
        .map(|rank| {
            let numbers: groups::MemberNumbers = [rank, members, rounds, death];
            let program = env!("CARGO_BIN_EXE_test-peer");
            PeerProcess::start(program, "member", settings, &numbers, &name)
        })
        .collect();
    let names: Vec<_> = [name]
        .into_iter()
        .chain(others.iter().map(|other| other.name))
        .collect();
    others.iter_mut().for_each(PeerProcess::go);
    groups::lead(leader, &names, rounds, death);
    if death < rounds {
        others.pop().into_iter().for_each(PeerProcess::bury);
    }
    others.into_iter().for_each(PeerProcess::finish);
}

/// Over lanes of a kind, and the same with some members of shared memory.
fn run_over(lane: &str, members: u64, rounds: u64, death: u64) {
    if Rig::open().is_none() {
        return;
    }
    let soon = ("FERRO_RECONNECT_TIMEOUT", "2s");
    let settings = [("FERRO_LANE", lane), ("FERRO_SHM", "off"), soon];
    run(&settings, members, rounds, death);
}

#[test]
#[file_serial(verbs)]
fn members_share_memory() {
    let settings = [("FERRO_VERBS", "off"), ("FERRO_SHM", "on")];
    for members in [3, 8] {
        run(&settings, members, 6, NEVER);
    }
}

#[test]
#[file_serial(verbs)]
fn a_member_that_shares_memory_is_killed() {
    let settings = [("FERRO_VERBS", "off"), ("FERRO_SHM", "on")];
    for death in 1..3 {
        run(&settings, 5, 6, death);
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
