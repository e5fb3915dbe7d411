//! The program behind `scripts/bench` and `scripts/demo`. It measures `ferro` and each peer by turns,
//! each side on its own core, and prints the tables of both scripts. Our side is the program `ferro`
//! as a user runs it: nothing here opens an endpoint.

#![deny(unsafe_code)]

mod bare_ring;
mod bench;
mod cli;
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

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};
use ferro::failure::Result;

/// The name of this program.
const PROGRAM: &str = "ferro-compare";

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{PROGRAM}: {failure}");
            failure.exit_code()
        }
    }
}

/// Runs one step of the scripts.
///
/// # Errors
///
/// When ours did not run; a peer that does not run is a row that says so.
fn run(command: &Command) -> Result<()> {
    match command {
        Command::Verbs(options) => rounds::verbs(options),
        Command::Shm(options) => rounds::shm(options),
        Command::Mpi(options) => rounds::mpi(options),
        Command::Match(options) => matching::run(options),
        Command::Av(options) => vectors::run(options),
        Command::Report(options) => tables::report(options),
        Command::DemoTable { files } => demo::table(files),
    }
}
