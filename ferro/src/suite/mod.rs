//! `scripts/bench`: ours against what others have, interleaved, on cores of their own.

mod bare_ring;
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
mod spinner;
mod tables;
mod vectors;

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
        SuiteCommand::Av(options) => vectors::run(options),
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
    /// The same over lanes of the UD kind.
    DatagramLatency,
    /// One way, in 10⁶ bytes a second.
    Bandwidth,
    /// The same by processes that sleep in place of polling.
    BlockingBandwidth,
    /// Both ways at once, the sum, in 10⁶ bytes a second.
    BothWays,
    /// Messages a second, one way.
    Rate,
}

impl Bench {
    fn name(self) -> &'static str {
        match self {
            Self::Latency | Self::DatagramLatency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::BlockingBandwidth => "blocking_bandwidth",
            Self::BothWays => "bidirectional_bandwidth",
            Self::Rate => "rate",
        }
    }

    fn metric(self) -> &'static str {
        match self {
            Self::Latency | Self::DatagramLatency => "latency_us",
            Self::Bandwidth | Self::BlockingBandwidth | Self::BothWays => "bandwidth_mbs",
            Self::Rate => "rate_mps",
        }
    }

    fn better(self) -> &'static str {
        match self {
            Self::Latency | Self::DatagramLatency => "lower",
            _ => "higher",
        }
    }

    /// Whether `a` is a better result than `b`.
    fn is_better(self, a: f64, b: f64) -> bool {
        match self {
            Self::Latency | Self::DatagramLatency => a < b,
            _ => a > b,
        }
    }

    /// Whether it says anything about messages of that size.
    fn suits(self, size: usize) -> bool {
        match self {
            Self::Latency => true,
            // What fits a datagram of theirs.
            Self::DatagramLatency => size <= 4096,
            Self::Bandwidth => size != 0,
            Self::BlockingBandwidth | Self::BothWays => size >= 4096,
            Self::Rate => (1..=64).contains(&size),
        }
    }
}
