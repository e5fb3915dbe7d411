//! The command line of Ferrofabric. It lists the devices of this machine (`info`), examines them
//! (`doctor`), tests whether messages arrive (`pingpong`), and measures their speed (`bench`).
//!
//! The program `ferro` calls [`main`]. The public modules are those that `hw-tests/comparisons`
//! uses too, so that both programs read sizes, pin cores, and print tables in the same way.

#![deny(unsafe_code)]

mod bench;
mod bound;
mod channel;
mod cli;
pub mod cores;
mod doctor;
pub mod failure;
mod info;
mod link;
mod message;
mod partner;
mod pattern;
mod phase;
mod pingpong;
pub mod plot;
pub mod progress;
pub mod providers;
pub mod report;
pub mod sizes;
mod stations;
pub mod workload;

use std::process::ExitCode;

use clap::Parser;
use cli::{BenchCommand, Cli, Command};
use failure::Result;

/// Runs the command that the process's arguments name; the exit code is its result.
pub fn main() -> ExitCode {
    log_to_stderr();
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if !failure.is_printed_by_partner() {
                eprintln!("ferro: {failure}");
            }
            failure.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::Info(options) => info::run(&options),
        Command::Doctor(options) => doctor::run(&options),
        Command::Pingpong(options) => pingpong::run(&options),
        Command::Bench(BenchCommand::Lat(options)) => bench::latency(&options),
        Command::Bench(BenchCommand::Bw(options)) => bench::one_way(&options),
        Command::Bench(BenchCommand::Bibw(options)) => bench::both_ways(&options),
        Command::Bench(BenchCommand::Rate(options)) => bench::rate(&options),
        Command::Bench(BenchCommand::Put(options)) => bench::put(&options),
        Command::Bench(BenchCommand::Get(options)) => bench::get(&options),
        Command::Bench(BenchCommand::Atomic(options)) => bench::atomic(&options),
        Command::Bench(BenchCommand::Mr(options)) => bench::regions::run(&options),
        Command::Bench(BenchCommand::Match(options)) => bench::matching::run(&options),
        Command::Bench(BenchCommand::Av(options)) => bench::vectors::run(&options),
        Command::Partner => partner::serve_inherited(),
    }
}

/// `RUST_LOG` chooses what is logged; warnings by default.
fn log_to_stderr() {
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}
