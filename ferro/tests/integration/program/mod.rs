//! How tests run `ferro`.

use std::process::{Command, Output, Stdio};

/// The program with these arguments, without the settings of the environment.
pub(crate) fn ferro(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferro"));
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars() {
        if name.starts_with("FERRO_") || name.starts_with("FI_FERRO_") {
            command.env_remove(name);
        }
    }
    command
}

pub(crate) fn output(arguments: &[&str]) -> Output {
    ferro(arguments).output().unwrap()
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}
