//! Random programs of datagrams, judged as they run: each receive ends once, with one datagram that
//! was sent to it, whole, under its sender's address, or because it was taken back; each send ends
//! once, and well. A datagram may be lost, but on a network that loses nothing not one that had a
//! receive waiting for it, nor may one come twice there.

mod completions;
mod program;
mod run;

use crate::fabric::Fabric;
use crate::search::ProgramSearch;

/// Runs the programs that have failed before, then `cases` random ones.
///
/// # Panics
///
/// With the smallest program that fails, if one does.
pub fn random_programs(fabric: &Fabric, cases: u32) {
    let search = ProgramSearch {
        name: fabric.name,
        regressions: "regressions/dgram",
        cases,
    };
    search.run(&program::programs(fabric), |program| {
        run::run(fabric, program).map(|()| true)
    });
}
