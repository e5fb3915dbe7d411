//! The program `ferro`.

#![deny(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    ferro::main()
}
