//! Collective operations between two machines, by C calls (fi_collective(3)): run with
//! `scripts/vm --nodes 2`, both run this same program. Ranks are on the two machines by turns, so
//! that the steps of an operation cross; those of one machine reach each other by shared memory.

use crate::{child, ranks, support};
use ranks::{RankProcess, RanksHere};
use support::nodes::Meeting;
use support::skip;

/// Numbers of ranks: powers of two and others.
const NUMBERS: [usize; 4] = [2, 3, 5, 8];

/// A rank of the other machine is dead after so long.
const SOON: [(&str, &str); 1] = [("FERRO_RECONNECT_TIMEOUT", "2s")];

/// Runs `body` in the processes of this machine, which have these ranks; that of a rank may be
/// killed.
fn on_nodes(test: &str, nodes: [&[&[usize]]; 2], killed: Option<usize>, body: fn(RanksHere)) {
    if child::is_here() {
        return ranks::in_processes(test, &[], None, body);
    }
    let Some(mut meeting) = Meeting::wait() else {
        return skip("this is one machine alone (./scripts/vm --nodes 2)");
    };
    let processes: Vec<_> = (nodes[meeting.node as usize].iter())
        .map(|ranks| RankProcess {
            ranks,
            variables: &SOON,
            is_killed: killed.is_some_and(|killed| ranks.contains(&killed)),
        })
        .collect();
    ranks::in_processes(test, &processes, Some(&mut meeting), body);
    // Before the next test: a machine that has failed has no ranks for it.
    meeting.both_are_here();
}

/// Each operator on elements of each type, as libfabric has them.
///
/// Covers: PEER-2, PEER-7, PEER-11
#[test]
fn allreduces_of_each_type_and_operator() {
    let nodes: [&[&[usize]]; 2] = [&[&[0, 2, 4, 6]], &[&[1, 3, 5, 7]]];
    on_nodes(
        "allreduces_of_each_type_and_operator",
        nodes,
        None,
        |here| {
            let groups = NUMBERS.map(|number| here.join(number));
            for group in &groups {
                let members = here.members(group);
                members.reductions(here.ranks.opened.domain, &[700]);
            }
            here.close(&groups);
        },
    );
}

/// Data that moves, with each root and numbers of elements around the number of ranks; a barrier
/// ends when the last one enters.
///
/// Covers: PEER-11
#[test]
fn data_and_barriers() {
    let nodes: [&[&[usize]]; 2] = [&[&[0, 2, 4, 6]], &[&[1, 3, 5, 7]]];
    on_nodes("data_and_barriers", nodes, None, |here| {
        let groups = NUMBERS.map(|number| here.join(number));
        for (group, number) in groups.iter().zip(NUMBERS) {
            let members = here.members(group);
            for len in [number - 1, number + 1, 1000] {
                members.data(len);
            }
            // Long enough for each form of message, which takes its time here.
            if number == 3 {
                members.data(30_000);
            }
            (0..number).for_each(|last| members.barrier(last));
        }
        here.close(&groups);
    });
}

/// A rank is killed while the others are in a collective: each of them gets an error, on its
/// machine and on the other one, and no further operation of the group begins.
///
/// Covers: PEER-11
#[test]
fn a_rank_is_killed() {
    let nodes: [&[&[usize]]; 2] = [&[&[0, 2, 4]], &[&[1, 3], &[5]]];
    on_nodes("a_rank_is_killed", nodes, Some(5), |here| {
        let group = here.join(here.number);
        ranks::a_rank_is_killed(&here.members(&group), here.number, 50);
        here.close(&[group]);
    });
}

/// The root of a broadcast is killed before it begins: nobody sends to it, and all the others get
/// an error. The one on the other machine sleeps.
///
/// Covers: PEER-11
#[test]
fn a_root_is_killed() {
    let nodes: [&[&[usize]]; 2] = [&[&[0], &[2]], &[&[1]]];
    on_nodes("a_root_is_killed", nodes, Some(2), |here| {
        let group = here.join(3);
        ranks::a_root_is_killed(&here.members(&group));
        here.close(&[group]);
    });
}
