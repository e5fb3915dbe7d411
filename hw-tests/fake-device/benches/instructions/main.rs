//! Instructions that a message of 8 bytes costs its sender and its receiver, counted by valgrind
//! (callgrind): a figure that repeats to the digit, where times do not. Over verbs the device is
//! the fake one, and what it does itself is not counted.
//!
//!     cargo bench -p ferrofabric-fake-device --bench instructions
//!                                # compares with the file
//!     … -- --write               # writes this machine's table anew
//!     … -- --against OTHER/instructions.json
//!                                # compares with the file of another commit
//!     … -- --profile verbs/inject
//!                                # where the instructions of one count go, by function
//!
//! The file (`hw-tests/fake-device/instructions.json`) has a table for each C library with which counts
//! were taken, of one compiler: elsewhere the counts are shown, and the exit code is 78. Exit code
//! 77: valgrind is not here.

#![allow(clippy::unwrap_used, reason = "a broken benchmark may panic")]

#[path = "../../../../plugin-ofi/tests/integration/client/mod.rs"]
mod client;
mod counts;
mod measured;
mod ofi;
mod profile;
mod subjects;

use std::process::ExitCode;

/// Messages that are counted, after an equal number that is not counted: the work that is done once
/// in several messages is in the counts.
const MESSAGES: u64 = 2048;

/// Set for the program that valgrind runs.
const INNER: &str = "FERRO_COUNTED";

fn main() -> ExitCode {
    if std::env::var_os(INNER).is_some() {
        subjects::run();
        return ExitCode::SUCCESS;
    }
    // cargo adds --bench.
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let wanted = match words[..] {
        [] => None,
        ["--write"] | ["--against", _] => None,
        ["--profile", subject] => Some(subject),
        _ => {
            eprintln!("usage: [--write | --against FILE | --profile TRANSPORT/WHAT]");
            return ExitCode::from(2);
        }
    };
    let dumps = match measured::measure(wanted) {
        Ok(dumps) => dumps,
        Err(measured::CountingFailure::NoValgrind) => {
            println!("SKIP: valgrind is not here");
            return ExitCode::from(77);
        }
        Err(measured::CountingFailure::Other(why)) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    match words[..] {
        ["--profile", _] => profile::print(&dumps),
        ["--write"] => counts::write(&dumps),
        ["--against", file] => counts::compare(&dumps, Some(file)),
        _ => counts::compare(&dumps, None),
    }
}
