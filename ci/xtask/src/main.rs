//! The part of the scripts that reads text and counts: results of tests, and the frames of the
//! Soft-RoCE machine. Shell starts programs and moves files; text is taken apart here.
//!
//! `ci/provision.sh` builds this program (`xtask_program`) as soon as there is a Rust. Earlier
//! steps stay shell, and so do programs in the Soft-RoCE machine, which has no Rust.

mod count;
mod failures;
mod frames;
mod fuzz;
mod kernel_log;
mod results;

use std::error::Error;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{fs, io};

use clap::{Parser, Subcommand};

/// Reads and counts for the scripts of this tree.
#[derive(Parser)]
#[command(name = "xtask")]
struct XtaskCli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Counts the results in the log of a phase: prints "PASSED FAILED SKIPPED LINE", where LINE is
    /// the phase's line of the table
    Count {
        #[arg(value_enum)]
        kind: count::Kind,
        title: String,
        /// The log; LOG.end has the exit code and the seconds, the folder LOG.results the results
        /// of tests
        log: PathBuf,
        /// The file to which the failures of the phase are added
        #[arg(long)]
        failures: PathBuf,
        #[command(flatten)]
        rules: count::Rules,
    },
    /// Takes a machine's frames (standard input) apart: the command's output goes to ours
    HostOutput {
        node: u32,
        /// The text before each line
        prefix: String,
        /// The file that takes what the machine reports
        #[arg(long)]
        reports: PathBuf,
    },
    /// Shows what a machine's kernel said, if that says something; exit code 3 where it complained
    KernelLog(kernel_log::EndedMachine),
    /// Prints "TARGET SEED INPUTS" of each process of ci/fuzz, of the targets in standard input
    FuzzProcesses(fuzz::FuzzRun),
    /// Prints a run's result as a test program does; exit code 1 where a process failed
    FuzzResult {
        /// The list of fuzz-processes
        processes: PathBuf,
        /// The exit codes of those that ended, one a line
        codes: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(XtaskCli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Count {
            kind,
            title,
            log,
            failures,
            rules,
        } => {
            let beside = |suffix: &str| {
                let mut path = log.clone().into_os_string();
                path.push(suffix);
                PathBuf::from(path)
            };
            // Not there where what was to write it was ended.
            let end = fs::read_to_string(beside(".end")).unwrap_or_default();
            let end = count::PhaseEnd::of(&end);
            let results = results::of_folder(&beside(".results"))?;
            let log = text(&log)?;
            let outcome = count::count(kind, &title, &log, &results, end, rules);
            outcome.notes.iter().for_each(|note| eprintln!("{note}"));
            if outcome.has_failed() {
                let mut lines = failures::excerpt(kind, &log, &results, rules);
                lines.extend(outcome.notes.iter().map(String::as_str));
                let mut all = fs::OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(failures)?;
                writeln!(all, "{title}:\n{}\n", lines.join("\n"))?;
            }
            println!("{outcome}");
        }
        Command::HostOutput {
            node,
            prefix,
            reports,
        } => {
            let reports = fs::OpenOptions::new().append(true).open(reports)?;
            let (out, err) = (io::stdout().lock(), io::stderr().lock());
            frames::take_apart(io::stdin().lock(), node, &prefix, out, err, reports)?;
        }
        Command::KernelLog(ended) => {
            let shown = ended.shown()?;
            io::stderr().write_all(shown.text.as_bytes())?;
            if shown.complained {
                return Ok(ExitCode::from(3));
            }
        }
        Command::FuzzProcesses(run) => {
            let processes = run.processes(&io::read_to_string(io::stdin())?)?;
            processes.iter().for_each(|one| println!("{one}"));
        }
        Command::FuzzResult { processes, codes } => {
            let result = fuzz::FuzzResult::of(&text(&processes)?, &text(&codes)?);
            println!("{result}");
            if !result.is_ok() {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A file of which parts may be no text.
fn text(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
