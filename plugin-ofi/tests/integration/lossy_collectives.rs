//! Collective operations over verbs alone, by C calls (fi_collective(3)), over a network that
//! loses, repeats and reorders packets: run with `scripts/vm --netem`, which has two devices whose
//! packets really cross. Ranks are on the two devices by turns.

use crate::{ranks, support};
use std::path::Path;

use ranks::{RankProcess, RanksHere};
use support::skip;

/// The devices of the network.
const DEVICES: [&str; 2] = ["ferro_rxe0", "ferro_rxe1"];

/// A process to which there is no lane is dead after so long.
const SOON: (&str, &str) = ("FERRO_RECONNECT_TIMEOUT", "2s");

/// Runs `body` in processes that have these ranks, on the two devices by turns, with lanes of a
/// kind; that of a rank may be killed.
fn on_devices(
    test: &str,
    lane: &str,
    processes: &[&[usize]],
    killed: Option<usize>,
    body: fn(RanksHere),
) {
    let is_there = |device| Path::new("/sys/class/infiniband").join(device).exists();
    if !DEVICES.iter().all(is_there) {
        return skip("there is no network of two devices (./scripts/vm --netem)");
    }
    let variables = DEVICES.map(|device| {
        [
            ("FERRO_SHM", "off"),
            ("FERRO_DEVICE", device),
            ("FERRO_LANE", lane),
            SOON,
        ]
    });
    let processes: Vec<_> = (processes.iter())
        .map(|ranks| RankProcess {
            ranks,
            variables: &variables[ranks[0] % 2],
            is_killed: killed.is_some_and(|killed| ranks.contains(&killed)),
        })
        .collect();
    ranks::in_processes(test, &processes, None, body);
}

/// Each operator on elements of each type between two ranks, then data and barriers of three.
fn operations(here: RanksHere) {
    let groups = [2, 3].map(|number| here.join(number));
    let [two, three] = [0, 1].map(|at| here.members(&groups[at]));
    two.reductions(here.ranks.opened.domain, &[700]);
    three.data(4000);
    (0..3).for_each(|last| three.barrier(last));
    here.close(&groups);
}

/// Covers: PEER-2, PEER-7, PEER-11
#[test]
fn operations_over_rc_lanes() {
    let processes: [&[usize]; 2] = [&[0, 2], &[1]];
    on_devices(
        "operations_over_rc_lanes",
        "rc",
        &processes,
        None,
        operations,
    );
}

/// Covers: PEER-2, PEER-7, PEER-11
#[test]
fn operations_over_ud_lanes() {
    let processes: [&[usize]; 2] = [&[0, 2], &[1]];
    on_devices(
        "operations_over_ud_lanes",
        "ud",
        &processes,
        None,
        operations,
    );
}

/// A rank is killed while the others are in a collective: each of them gets an error.
///
/// Covers: PEER-11
#[test]
fn a_rank_is_killed() {
    let processes: [&[usize]; 3] = [&[0, 2], &[1], &[3]];
    on_devices("a_rank_is_killed", "rc", &processes, Some(3), |here| {
        let group = here.join(here.number);
        ranks::a_rank_is_killed(&here.members(&group), here.number, 5);
        here.close(&[group]);
    });
}
