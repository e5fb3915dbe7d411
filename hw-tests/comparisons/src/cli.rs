//! The options of each subcommand.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ferro::sizes::Sizes;

/// Compares Ferrofabric with perftest, libfabric, UCX and MPI: the steps of `scripts/bench` and
/// `scripts/demo`.
///
/// A suite prints its rows as JSON on standard output. Ours is the program `ferro` in the same
/// folder.
///
/// Exit code: 0 success, 1 failure, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(
    name = crate::PROGRAM,
    version,
    arg_required_else_help = true,
    max_term_width = ferro::report::WIDTH
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Ours against perftest, libfabric and UCX over this machine's verbs device.
    Verbs(SuiteOptions),
    /// Ours against libfabric and UCX through shared memory.
    Shm(ShmOptions),
    /// MPI over our plugin against MPI over others, both by the same MPI.
    Mpi(MpiOptions),
    /// Matching at depth against libfabric's shm provider.
    Match(PeerSuiteOptions),
    /// Address vectors against libfabric's own.
    Av(PeerSuiteOptions),
    /// One table out of files of rows, with pictures and a file of all rows on request.
    Report(ReportOptions),
    /// The table that ends `scripts/demo`, out of the outputs of `ferro bench --json`.
    DemoTable {
        /// Files, each an array of results
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// Options of all suites of messages.
#[derive(Debug, Args)]
pub(crate) struct SuiteOptions {
    /// Message sizes [default: sizes that suit each bench]
    #[arg(long, value_name = "LIST")]
    pub(crate) sizes: Option<Sizes>,
    /// Only benches with these names, as rows have them, such as put_latency,get_latency
    /// [default: all of the suite]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) only: Vec<String>,
    /// Interleaved rounds that count
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Time to look for good moments: idle cores, as far apart as some rounds still lack
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub(crate) budget: u64,
}

/// Options of `ferro-compare shm`.
#[derive(Debug, Args)]
pub(crate) struct ShmOptions {
    #[command(flatten)]
    pub(crate) suite: SuiteOptions,
    /// A root folder whose programs are the peers (run by chroot), beside those of this machine
    /// [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) peer_root: Option<PathBuf>,
    /// plugin-ofi/examples/threads_peer.rs, compiled; in the other root its folder is /mnt
    /// [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) thread_peer: Option<PathBuf>,
    /// The same of plugin-ofi/examples/rma_peer.rs [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) rma_peer: Option<PathBuf>,
    /// The folder of MPICH, for collectives of several ranks [default: none]
    #[arg(long, value_name = "FOLDER", requires = "plugin", requires = "program")]
    pub(crate) mpich: Option<PathBuf>,
    /// The folder of our plugin [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plugin: Option<PathBuf>,
    /// plugin-ofi/mpi/bench.c, compiled for MPICH [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
    /// plugin-ofi/mpi/allreduce.c, compiled for MPICH and its libfabric [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) allreduce_program: Option<PathBuf>,
}

/// Options of `ferro-compare mpi`.
#[derive(Debug, Args)]
pub(crate) struct MpiOptions {
    #[command(flatten)]
    pub(crate) suite: SuiteOptions,
    /// The folder of our plugin
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plugin: PathBuf,
    /// plugin-ofi/mpi/bench.c, compiled for the MPI that runs it
    #[arg(long, value_name = "FILE")]
    pub(crate) program: PathBuf,
    /// MPICH through shared memory, from its folder; without it Open MPI over verbs
    /// [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) mpich: Option<PathBuf>,
}

/// Options of `ferro-compare match` and `ferro-compare av`.
#[derive(Debug, Args)]
pub(crate) struct PeerSuiteOptions {
    /// Interleaved rounds that count
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// plugin-ofi/examples/match_peer.rs or av_peer.rs, compiled [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) peer: Option<PathBuf>,
}

/// Options of `ferro-compare report`.
#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// Files of rows
    #[arg(required = true, value_name = "FILE")]
    pub(crate) rows: Vec<PathBuf>,
    /// Write all rows as one array [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write plots (SVG) [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plot: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use ferro::report::WIDTH;

    use super::*;

    #[test]
    fn each_help_fits_and_shows_each_default() {
        let mut program = Cli::command();
        program.build();
        let mut seen = 0;
        for command in program.get_subcommands_mut() {
            let name = command.get_name().to_owned();
            for help in [command.render_help(), command.render_long_help()] {
                for line in help.to_string().lines() {
                    assert!(line.chars().count() <= WIDTH, "{name}: {line}");
                }
            }
            let values = command
                .get_arguments()
                .filter(|arg| arg.get_action().takes_values());
            for arg in values.filter(|arg| !arg.is_required_set()) {
                seen += 1;
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    !arg.get_default_values().is_empty() || help.contains("[default: "),
                    "{name}: no default of {}: {help}",
                    arg.get_id()
                );
            }
        }
        assert!(seen > 20, "{seen} options");
    }
}
