//! `scripts/bench`: ours against what others have, interleaved, on cores of their own.

mod bare_ring;
mod bench;
mod contest;
mod demo;
mod matching;
mod moments;
mod mpi;
mod ours;
mod peer;
mod pictures;
mod probe;
mod process;
mod rounds;
mod row;
mod spinner;
mod tables;
mod vectors;

use crate::cli::SuiteCommand;
use crate::failure::Result;

/// Runs a part of the suite.
///
/// # Errors
///
/// When ours did not run; a peer that does not run is a row that says so.
pub(crate) fn run(command: &SuiteCommand) -> Result<()> {
    match command {
        SuiteCommand::Verbs(options) => rounds::verbs(options),
        SuiteCommand::Shm(options) => rounds::shm(options),
        SuiteCommand::Mpi(options) => rounds::mpi(options),
        SuiteCommand::Match(options) => matching::run(options),
        SuiteCommand::Av(options) => vectors::run(options),
        SuiteCommand::Report(options) => tables::report(options),
        SuiteCommand::DemoTable { files } => demo::table(files),
    }
}
