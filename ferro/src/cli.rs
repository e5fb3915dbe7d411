//! The options of each subcommand.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::info::InfoOptions;
use crate::message::{AtomicKind, MAX_ITERS, MAX_THREADS, MAX_WINDOW, Outside};
use crate::providers::Path;
use crate::sizes::{Counts, Sizes, one_count};
use crate::workload::matching::{BURST, Kind, MatchOrder, Side};

/// Ferrofabric: lists and examines the devices of this machine, tests them and measures their
/// speed.
///
/// Exit code: 0 success, 1 failure, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(
    name = "ferro",
    version,
    arg_required_else_help = true,
    max_term_width = crate::report::WIDTH
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List the domains, devices and ports of this machine, and say what is missing and why.
    Info(InfoOptions),
    /// Try out the devices and the shared memory of this machine, and say what is wrong.
    ///
    /// Each finding is a line: ok, note, warning or error, what was found, and its remedy.
    ///
    /// Exit code: 0 where nothing is wrong (notes and warnings allowed), 1 after an error: messages
    /// over a device, or through shared memory, cannot work; 2 wrong usage.
    Doctor(DoctorOptions),
    /// Send messages there and back, and check the content of each.
    #[command(
        mut_arg("iters", |arg| arg.help("Messages of each size [default: 100]")),
        mut_arg("warmup", |arg| arg.help("Messages of each size beside those [default: 0]"))
    )]
    Pingpong(RunOptions),
    /// Measure latency, bandwidth, message rate, one-sided and atomic operations, regions, matching
    /// or address vectors.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// The partner of `--spawn`; its standard input is the socket to the other side.
    #[command(hide = true)]
    Partner,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Half the round trip of a message.
    #[command(mut_arg("sizes", |arg| arg.default_value("8,4K,64K,1M")))]
    Lat(LatencyOptions),
    /// Bytes a second one way, with a window of messages under way.
    #[command(mut_arg("sizes", |arg| arg.default_value("4K,64K,1M")))]
    Bw(BandwidthOptions),
    /// Bytes a second both ways at once, the sum of both.
    #[command(mut_arg("sizes", |arg| arg.default_value("4K,64K,1M")))]
    Bibw(BandwidthOptions),
    /// Small messages a second one way.
    #[command(mut_arg("sizes", |arg| {
        arg.default_value("8")
            .default_value_if("threads", clap::builder::ArgPredicate::IsPresent, "64")
            .help("Message sizes, such as 8,4K,64K-1M; with --threads 64 by default")
    }))]
    Rate(RateOptions),
    /// The time of a write to the other process's memory, and bytes a second.
    #[command(mut_arg("sizes", |arg| arg.default_value("8,4K,64K,1M")))]
    Put(PutOptions),
    /// The time of a read of the other process's memory, and bytes a second.
    #[command(mut_arg("sizes", |arg| arg.default_value("8,4K,64K,1M")))]
    Get(GetOptions),
    /// The time of an atomic operation on the other process's memory, and operations a second.
    #[command(mut_arg("sizes", |arg| {
        arg.default_value("8")
            .help("Bytes of an operation, such as 8,4K: elements of 8 bytes, or of 4, up to 4K")
    }))]
    Atomic(AtomicOptions),
    /// The time to register memory for peers, and to close the region.
    Mr(RegionOptions),
    /// The cost of matching, with many receives posted or many messages unexpected.
    Match(MatchOptions),
    /// The cost of an address of an address vector: to insert, look up, remove and keep it.
    Av(VectorOptions),
}

/// Options of `ferro doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// The one device to examine [default: the setting device, or all]
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Write a profile of the device as JSON, to a file, or to standard output (-) in place of the
    /// findings [default: none]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The address at which `--listen` without a value waits.
pub(crate) const DEFAULT_LISTEN: &str = "0.0.0.0:18470";

/// The options that the partner of a listener decides on.
const OF_THE_PARTNER: [&str; 10] = [
    "spawn",
    "path",
    "sizes",
    "iters",
    "warmup",
    "block",
    "verify",
    "no_verify",
    "cores",
    "json",
];

/// Options of all runs between two processes.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// HOST:PORT at which a partner listens (`--listen` there) [default: none, as --spawn]
    #[arg(
        value_name = "HOST:PORT",
        conflicts_with_all = ["listen", "spawn", "cores"],
        value_parser = host_and_port
    )]
    pub(crate) address: Option<String>,
    /// Wait for a partner, whose options decide on the run; port 0 takes a free port and prints it
    /// [default: 0.0.0.0:18470]
    #[arg(
        long,
        value_name = "HOST:PORT",
        num_args = 0..=1,
        default_missing_value = DEFAULT_LISTEN,
        conflicts_with_all = OF_THE_PARTNER,
        value_parser = host_and_port
    )]
    pub(crate) listen: Option<String>,
    /// Start the partner as a child process, each pinned to a core of its own (default)
    #[arg(long)]
    pub(crate) spawn: bool,
    /// Transport of the messages
    #[arg(long, value_enum, default_value_t)]
    pub(crate) path: Path,
    /// Message sizes, such as 8,4K,64K-1M
    #[arg(long, value_name = "LIST", default_value = "0,8,4K,64K,1M")]
    pub(crate) sizes: Sizes,
    /// Messages of each size [default: as many as fit into about half a second]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ITERS))]
    pub(crate) iters: Option<u64>,
    /// Messages of each size before those that count [default: as many as fit into 50 ms]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=MAX_ITERS))]
    pub(crate) warmup: Option<u64>,
    /// Sleep in place of polling
    #[arg(long)]
    pub(crate) block: bool,
    /// Check the content of messages, before the messages that are timed (default)
    #[arg(long, overrides_with = "no_verify")]
    pub(crate) verify: bool,
    /// Do not check the content of messages
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// Cores for this process and the process that it spawns [default: two that share no execution
    /// units]
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub(crate) cores: Option<(usize, usize)>,
    /// Give up after so many seconds without a message or a partner
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) patience: u64,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The picture that a bench draws of its results.
#[derive(Debug, Args)]
pub(crate) struct PlotOptions {
    /// Draw the results as pictures (SVG) in a folder [default: none]
    #[arg(long, value_name = "FOLDER")]
    pub(crate) plot: Option<PathBuf>,
}

/// Options of `bench lat`.
#[derive(Debug, Args)]
#[command(mut_arg("listen", |arg| arg.conflicts_with("plot")))]
pub(crate) struct LatencyOptions {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    #[command(flatten)]
    pub(crate) plot: PlotOptions,
}

/// Options of `bench bw`, `bench bibw`, `bench put` and `bench get`.
#[derive(Debug, Args)]
#[command(mut_arg("listen", |arg| arg.conflicts_with_all(["plot", "window"])))]
pub(crate) struct BandwidthOptions {
    #[command(flatten)]
    pub(crate) run: RunOptions,
    /// Messages under way at once [default: 64, fewer where they would fill the cache]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=MAX_WINDOW))]
    pub(crate) window: Option<u64>,
    #[command(flatten)]
    pub(crate) plot: PlotOptions,
}

/// Options of `bench put`.
#[derive(Debug, Args)]
pub(crate) struct PutOptions {
    #[command(flatten)]
    pub(crate) window: BandwidthOptions,
    /// A write completes once its bytes are visible at the target (FI_DELIVERY_COMPLETE)
    #[arg(long, conflicts_with = "listen")]
    pub(crate) delivered: bool,
    #[command(flatten)]
    pub(crate) memory: MemoryOptions,
}

/// Options of `bench get`.
#[derive(Debug, Args)]
pub(crate) struct GetOptions {
    #[command(flatten)]
    pub(crate) window: BandwidthOptions,
    #[command(flatten)]
    pub(crate) memory: MemoryOptions,
}

/// The memory of one-sided operations.
#[derive(Debug, Args)]
pub(crate) struct MemoryOptions {
    /// The target's memory is such that peers of its node map it, as Buffer::shared allocates it
    #[arg(long, conflicts_with = "listen")]
    pub(crate) mapped: bool,
}

/// Options of `bench rate`.
#[derive(Debug, Args)]
pub(crate) struct RateOptions {
    #[command(flatten)]
    pub(crate) stream: BandwidthOptions,
    /// Threads of each side, each with an endpoint pair of its own and one message under way at a
    /// time; the sum of their rates is printed [default: one thread with a window of messages]
    #[arg(
        long,
        value_name = "N",
        conflicts_with_all = ["listen", "window"],
        value_parser = clap::value_parser!(u32).range(1..=MAX_THREADS),
    )]
    pub(crate) threads: Option<u32>,
}

/// Options of `bench atomic`.
#[derive(Debug, Args)]
pub(crate) struct AtomicOptions {
    #[command(flatten)]
    pub(crate) window: BandwidthOptions,
    /// The operation
    #[arg(
        long,
        value_enum,
        value_name = "NAME",
        default_value = AtomicKind::FetchAdd.name(),
        conflicts_with = "listen"
    )]
    pub(crate) operation: AtomicKind,
    /// The target computes and makes no call, and a thread of its domain carries the operations out
    /// (FI_PROGRESS_AUTO). With a number, the target reads its queue once in so many microseconds
    /// [default: the target's calls carry them out]
    #[arg(
        long,
        value_name = "MICROSECONDS",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0",
        conflicts_with = "listen",
        value_parser = clap::value_parser!(u64).range(0..=1_000_000)
    )]
    pub(crate) outside: Option<u64>,
    #[command(flatten)]
    pub(crate) memory: MemoryOptions,
}

impl AtomicOptions {
    /// The calls of the target, if it has automatic progress.
    pub(crate) fn outside(&self) -> Option<Outside> {
        let call_every_us = self.outside?;
        Some(Outside { call_every_us })
    }
}

/// Options of `bench mr`, which runs in one process.
#[derive(Debug, Args)]
pub(crate) struct RegionOptions {
    /// Transport whose domain registers the memory
    #[arg(long, value_enum, default_value_t = Path::Shm)]
    pub(crate) path: Path,
    /// Sizes of the region, such as 4K,64K-1M
    #[arg(long, value_name = "LIST", default_value = "4K,64K,1M,16M")]
    pub(crate) sizes: Sizes,
    /// Regions of each size, one after the other
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) iters: u64,
    #[command(flatten)]
    pub(crate) plot: PlotOptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `bench match`, which runs between two endpoints of one thread.
#[derive(Debug, Args)]
pub(crate) struct MatchOptions {
    /// Transport of the messages
    #[arg(long, value_enum, default_value_t = Path::Shm)]
    pub(crate) path: Path,
    /// Receives or messages that wait; ratios are to the first depth
    #[arg(long, value_name = "LIST", default_value = "10,1000,10000,100000")]
    pub(crate) depths: Counts<BURST>,
    /// Receives (posted) or messages (unexpected) [default: both]
    #[arg(long, value_name = "SIDE")]
    pub(crate) side: Option<Side>,
    /// Fields that a receive compares: exact, any_source or masked [default: all three]
    #[arg(long, value_name = "KIND")]
    pub(crate) kind: Option<Kind>,
    /// The entry that goes: the oldest (order) or any (random) [default: both]
    #[arg(long, value_name = "ORDER")]
    pub(crate) order: Option<MatchOrder>,
    /// Turns of each depth
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) plot: PlotOptions,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `bench av`.
#[derive(Debug, Args)]
pub(crate) struct VectorOptions {
    /// Transport of the domain's messages
    #[arg(long, value_enum, default_value_t = Path::Shm)]
    pub(crate) path: Path,
    /// Numbers of addresses
    #[arg(
        long,
        value_name = "LIST",
        default_value = "1000,100000,1000000",
        conflicts_with = "beside"
    )]
    pub(crate) entries: Counts<1>,
    /// Nodes and endpoints apart (FI_SYMMETRIC)
    #[arg(long, conflicts_with = "beside")]
    pub(crate) symmetric: bool,
    /// Number of addresses that the address vector is opened for [default: as many as --entries]
    #[arg(long, value_name = "N", conflicts_with = "beside", value_parser = one_count)]
    pub(crate) count: Option<usize>,
    /// The effect on a sender of a thread that inserts and removes addresses
    #[arg(long)]
    pub(crate) beside: bool,
    /// Turns of each measurement
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    #[command(flatten)]
    pub(crate) plot: PlotOptions,
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

/// Checks the form of an address; its name is resolved later.
fn host_and_port(text: &str) -> Result<String, String> {
    let is_host = |host: &str| match host.strip_prefix('[') {
        Some(v6) => v6.ends_with(']'),
        None => !host.is_empty() && !host.contains([':', ' ']),
    };
    let parts = text.rsplit_once(':');
    match parts.is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok()) {
        true => Ok(text.to_owned()),
        false => Err(format!(
            "\"{}\" is no address; HOST:PORT is wanted",
            text.escape_debug()
        )),
    }
}
