//! Collective operations between processes, over shared memory: by C calls (fi_collective(3)).

use crate::{ranks, two};
use ranks::{RankProcess, RanksHere};

/// Runs `body` in a process for each rank.
fn in_processes(test: &str, number: usize, body: impl FnOnce(RanksHere)) {
    let numbers: Vec<usize> = (0..number).collect();
    let processes: Vec<_> = (numbers.iter())
        .map(|rank| RankProcess {
            ranks: std::slice::from_ref(rank),
            variables: two::SHM,
            is_killed: test.contains("killed") && *rank == number - 1,
        })
        .collect();
    ranks::in_processes(test, &processes, None, body);
}

/// The results of each operation are those of all ranks.
#[test]
fn operations_between_processes() {
    in_processes("operations_between_processes", 5, |here| {
        let group = here.join(here.number);
        let members = here.members(&group);
        members.reductions(here.ranks.opened.domain, &[700]);
        members.data(1000);
        (0..here.number).for_each(|last| members.barrier(last));
        here.close(&[group]);
    });
}

/// The root of a broadcast is killed before it begins: nobody sends to it, and all the others get
/// an error.
#[test]
fn a_root_is_killed() {
    in_processes("a_root_is_killed", 3, |here| {
        let group = here.join(3);
        ranks::a_root_is_killed(&here.members(&group));
        here.close(&[group]);
    });
}

/// A rank is killed while the others are in a collective: each of them gets an error, and no
/// further operation of the group begins.
#[test]
fn a_rank_is_killed() {
    in_processes("a_rank_is_killed", 5, |here| {
        let group = here.join(here.number);
        ranks::a_rank_is_killed(&here.members(&group), here.number, 100);
        here.close(&[group]);
    });
}
