//! What the user may write.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::info::InfoOptions;
use crate::message::{MAX_ITERS, MAX_THREADS, MAX_WINDOW};
use crate::providers::Path;
use crate::sizes::Sizes;
use crate::workload::matching::{Kind, Order, Side};

/// Ferrofabric: what this machine offers, whether it works, how fast it is.
#[derive(Debug, Parser)]
#[command(name = "ferro", version, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the domains of this machine, and say what is missing and why.
    Info(InfoOptions),
    /// Send messages there and back, and check the content of each.
    Pingpong(RunOptions),
    /// Measure latency, bandwidth or message rate.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The other side of `--spawn`: its partner is at the socket that is its standard input.
    #[command(hide = true)]
    Partner,
    /// What `scripts/bench` starts.
    #[command(hide = true, subcommand)]
    BenchSuite(SuiteCommand),
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Half the round trip of a message.
    Lat(RunOptions),
    /// Bytes a second one way, with a window of messages under way.
    Bw(RunOptions),
    /// Bytes a second both ways at once, the sum of both.
    Bibw(RunOptions),
    /// Small messages a second one way.
    Rate(RateOptions),
    /// What matching costs, with many receives posted or many messages unexpected.
    Match(MatchOptions),
    /// What an address of an address vector costs to insert, look up, remove and keep.
    Av(VectorOptions),
}

/// Where the partner listens by default.
pub(crate) const DEFAULT_LISTEN: &str = "0.0.0.0:18470";

/// Options of everything that runs between two processes.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// HOST:PORT at which a partner listens (`--listen` there)
    #[arg(value_name = "HOST:PORT", conflicts_with_all = ["listen", "spawn"])]
    pub(crate) address: Option<String>,
    /// Wait for a partner, which decides what is run; a zero port takes a free one and prints it
    #[arg(long, value_name = "HOST:PORT", num_args = 0..=1, default_missing_value = DEFAULT_LISTEN)]
    pub(crate) listen: Option<String>,
    /// Start the partner as a child process, each pinned to a core of its own (default)
    #[arg(long, conflicts_with = "listen")]
    pub(crate) spawn: bool,
    /// What carries the messages
    #[arg(long, value_enum, default_value_t)]
    pub(crate) path: Path,
    /// Message sizes, such as 8,4K,64K-1M
    #[arg(long, value_name = "LIST")]
    pub(crate) sizes: Option<Sizes>,
    /// Messages of each size; without it as many as fit into about half a second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ITERS))]
    pub(crate) iters: Option<u64>,
    /// Messages of each size before those that count
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_ITERS))]
    pub(crate) warmup: Option<u64>,
    /// Messages under way at once (bandwidth and rate); by default 64, fewer where they would fill
    /// the cache
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=MAX_WINDOW))]
    pub(crate) window: Option<u64>,
    /// Sleep in place of polling
    #[arg(long)]
    pub(crate) block: bool,
    /// Check the content of messages (default; before the messages that are timed)
    #[arg(long, overrides_with = "no_verify")]
    pub(crate) verify: bool,
    /// Do not check the content of messages
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Cores for this process and the one it spawns
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub(crate) cores: Option<(usize, usize)>,
    /// Give up when no message came for so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `bench rate`.
#[derive(Debug, Args)]
pub(crate) struct RateOptions {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    /// Threads of each side, each with an endpoint pair of its own and one message under way at a
    /// time; their sum is printed
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["listen", "window"],
        value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS),
    )]
    pub(crate) threads: Option<u32>,
}

/// Options of `bench match`, which runs between two endpoints of one thread.
#[derive(Debug, Args)]
pub(crate) struct MatchOptions {
    /// What carries the messages
    #[arg(long, value_enum, default_value_t = Path::Shm)]
    pub(crate) path: Path,
    /// Receives or messages that wait, such as 10,1000,100000; ratios are to the first
    #[arg(long, value_name = "LIST")]
    pub(crate) depths: Option<Sizes>,
    /// Receives (posted) or messages (unexpected); by default both
    #[arg(long, value_name = "SIDE")]
    pub(crate) side: Option<Side>,
    /// What receives look at: exact, any_source, masked; by default each
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// Which entry goes, the oldest (order) or any (random); by default both
    #[arg(long, value_name = "ORDER")]
    pub(crate) order: Option<Order>,
    /// How often all depths get their turn
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `bench av`.
#[derive(Debug, Args)]
pub(crate) struct VectorOptions {
    /// What carries the messages of the domain
    #[arg(long, value_enum, default_value_t = Path::Shm)]
    pub(crate) path: Path,
    /// Numbers of addresses, such as 1000,100000
    #[arg(long, value_name = "LIST", conflicts_with = "beside")]
    pub(crate) entries: Option<Sizes>,
    /// Nodes and endpoints apart (FI_SYMMETRIC)
    #[arg(long, conflicts_with = "beside")]
    pub(crate) symmetric: bool,
    /// Number of addresses that it is opened for; as many as there will be unless this says
    /// otherwise
    #[arg(long, conflicts_with = "beside")]
    pub(crate) count: Option<usize>,
    /// What a sender notices of a thread that inserts and removes addresses
    #[arg(long)]
    pub(crate) beside: bool,
    /// How often everything gets its turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunOptions {
    /// Whether contents are checked.
    pub(crate) fn verifies(&self) -> bool {
        self.verify || !self.no_verify
    }
}

fn parse_cores(text: &str) -> Result<(usize, usize), String> {
    let pair = text.split_once(',').and_then(|(a, b)| {
        let core = |t: &str| t.trim().parse::<usize>().ok();
        Some((core(a)?, core(b)?))
    });
    pair.ok_or_else(|| "two core numbers are wanted, such as 0,1".to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum SuiteCommand {
    /// Ours against perftest, libfabric and UCX over the verbs device of this machine; rows as JSON
    /// on standard output.
    Verbs(SuiteOptions),
    /// Ours against libfabric and UCX through shared memory; rows as JSON on standard output.
    Shm(ShmOptions),
    /// MPI over our plugin against MPI over others, both by the same MPI; rows as JSON on standard
    /// output.
    Mpi(MpiOptions),
    /// Matching at depth against libfabric's shm provider; rows as JSON on standard output.
    Match(PeerSuiteOptions),
    /// Address vectors against libfabric's own; rows as JSON on standard output.
    Av(PeerSuiteOptions),
    /// One table, and what is asked for, out of files of rows.
    Report(ReportOptions),
    /// The table that ends `scripts/demo`, out of the outputs of `ferro bench --json`.
    DemoTable {
        /// Files, each an array of results
        files: Vec<PathBuf>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct SuiteOptions {
    /// Message sizes
    #[arg(long, value_name = "LIST")]
    pub(crate) sizes: Option<Sizes>,
    /// Interleaved rounds that count
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Seconds to look for good moments (nobody else on the cores, and the cores as far apart as is
    /// still to be measured)
    #[arg(long, default_value_t = 600)]
    pub(crate) budget: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ShmOptions {
    #[command(flatten)]
    pub(crate) suite: SuiteOptions,
    /// A root folder whose programs are the peers (run by chroot), beside those of this machine
    #[arg(long, value_name = "FOLDER")]
    pub(crate) peer_root: Option<PathBuf>,
    /// plugin-ofi/examples/threads_peer.rs, compiled; in the other root its folder is /mnt
    #[arg(long, value_name = "FILE")]
    pub(crate) thread_peer: Option<PathBuf>,
    /// The folder of MPICH, for collectives of several ranks
    #[arg(long, value_name = "FOLDER", requires = "plugin", requires = "program")]
    pub(crate) mpich: Option<PathBuf>,
    /// The folder of our plugin
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plugin: Option<PathBuf>,
    /// plugin-ofi/mpi/bench.c, compiled for MPICH
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

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
    #[arg(long, value_name = "FOLDER")]
    pub(crate) mpich: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct PeerSuiteOptions {
    /// Interleaved rounds that count
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// plugin-ofi/examples/match_peer.rs or av_peer.rs, compiled
    #[arg(long, value_name = "FILE")]
    pub(crate) peer: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ReportOptions {
    /// Files of rows
    pub(crate) rows: Vec<PathBuf>,
    /// Write all rows as one array
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write plots (SVG)
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plot: Option<PathBuf>,
}
