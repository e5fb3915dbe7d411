//! `scripts/bench`: ours against what others have, interleaved, on cores of their own.

mod demo;
mod matching;
mod mpi;
mod ours;
mod peer;
mod plot;
mod probe;
mod process;
mod rounds;
mod row;
mod tables;

use crate::cli::SuiteCommand;
use crate::failure::Result;
use crate::providers::Path;

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
        SuiteCommand::Report(options) => tables::report(options),
        SuiteCommand::DemoTable { files } => demo::table(files),
    }
}

/// As rows and options name it.
fn name_of(path: Path) -> &'static str {
    match path {
        Path::Verbs => "verbs",
        Path::Shm => "shm",
        Path::Auto => "auto",
    }
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bench {
    /// Half the round trip, in µs.
    Latency,
    /// One way, in 10⁶ bytes a second.
    Bandwidth,
}

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
        }
    }

    fn metric(self) -> &'static str {
        match self {
            Self::Latency => "latency_us",
            Self::Bandwidth => "bandwidth_mbs",
        }
    }

    fn better(self) -> &'static str {
        match self {
            Self::Latency => "lower",
            Self::Bandwidth => "higher",
        }
    }

    /// Whether `a` is a better result than `b`.
    fn is_better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Latency => a < b,
            Self::Bandwidth => a > b,
        }
    }
}
