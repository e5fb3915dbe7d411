//! The log of a Soft-RoCE machine's kernel, from the start of the command on, or all of it where
//! the command never started.

use std::path::PathBuf;
use std::{fs, io};

use clap::Args;

/// Written to the kernel's log by `ci/machine/guest-start`.
const COMMAND_STARTS: &str = "ferro: the command starts";

/// Words of a kernel that complains.
const COMPLAINTS: &[&str] = &[
    "BUG:",
    "WARNING:",
    "Oops",
    "Kernel panic",
    "Call Trace",
    "blocked for more than",
    "soft lockup",
];

/// A machine that has ended.
#[derive(Args, Clone, Debug)]
pub(crate) struct EndedMachine {
    /// The number of the machine
    #[arg(long)]
    node: u32,
    /// The command's exit code
    #[arg(long)]
    code: i32,
    /// The file of the machine's console
    #[arg(long)]
    console: PathBuf,
    /// The file of QEMU's own output
    #[arg(long)]
    emulator: PathBuf,
}

/// The part of the log that a user is to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownLog {
    pub(crate) text: String,
    /// Whether the kernel complained.
    pub(crate) complained: bool,
}

impl EndedMachine {
    /// # Errors
    ///
    /// If the console's file can not be read.
    pub(crate) fn shown(&self) -> io::Result<ShownLog> {
        // Where QEMU did not start there is none.
        let console = fs::read(&self.console).unwrap_or_default();
        let emulator = fs::read(&self.emulator)?;
        Ok(shown(
            self.node,
            self.code,
            &String::from_utf8_lossy(&console),
            &String::from_utf8_lossy(&emulator),
        ))
    }
}

fn shown(node: u32, code: i32, console: &str, emulator: &str) -> ShownLog {
    let console = console.replace('\r', "");
    let began = console.find(COMMAND_STARTS);
    let (log, mut text) = match began {
        Some(at) => (after_line(&console[at..]), String::new()),
        None => (&*console, emulator.to_owned()),
    };
    let complained = log.lines().any(complains);
    text += &match (code, complained) {
        (0, false) => return ShownLog { text, complained },
        (0, true) => format!("vm: node {node}: exit code 0, but its kernel complained:\n"),
        _ if log.is_empty() => {
            format!("vm: node {node}: exit code {code}; its kernel said nothing\n")
        }
        _ => format!("vm: node {node}: exit code {code}; its kernel's log:\n"),
    };
    for line in log.lines() {
        text += &format!("  kernel{node}: {line}\n");
    }
    ShownLog { text, complained }
}

/// The text after its first line.
fn after_line(text: &str) -> &str {
    text.split_once('\n').map_or("", |(_, rest)| rest)
}

fn complains(line: &str) -> bool {
    let stalls = line
        .find("rcu")
        .is_some_and(|at| line[at..].contains("stall"));
    stalls || COMPLAINTS.iter().any(|complaint| line.contains(complaint))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: &str = "Linux 6.12\r\nWARNING: at boot\r\n[1] ferro: the command starts\r\n";

    fn shown_of(code: i32, rest: &str) -> ShownLog {
        shown(0, code, &format!("{BOOT}{rest}"), "qemu: fine\n")
    }

    #[test]
    fn a_quiet_machine_shows_nothing() {
        let quiet = ShownLog {
            text: String::new(),
            complained: false,
        };
        assert_eq!(shown_of(0, "eth0: up\r\n"), quiet);
    }

    #[test]
    fn a_complaint_is_shown_although_the_command_succeeded() {
        for complaint in ["BUG: here", "rcu: INFO: rcu_sched self-detected stall"] {
            let it = shown_of(0, &format!("{complaint}\r\n"));
            assert!(it.complained);
            assert_eq!(
                it.text,
                format!(
                    "vm: node 0: exit code 0, but its kernel complained:\n  kernel0: {complaint}\n"
                )
            );
        }
    }

    #[test]
    fn a_command_that_failed_shows_what_the_kernel_said_since_it_started() {
        let it = shown_of(7, "eth0: up\r\n");
        assert!(!it.complained);
        assert_eq!(
            it.text,
            "vm: node 0: exit code 7; its kernel's log:\n  kernel0: eth0: up\n"
        );
        assert_eq!(
            shown_of(7, "").text,
            "vm: node 0: exit code 7; its kernel said nothing\n"
        );
    }

    #[test]
    fn a_command_that_never_started_shows_everything() {
        let it = shown(
            1,
            125,
            "Linux 6.12\r\nKernel panic\r\n",
            "qemu: no memory\n",
        );
        assert!(it.complained);
        assert_eq!(
            it.text,
            "qemu: no memory\nvm: node 1: exit code 125; its kernel's log:\n  \
             kernel1: Linux 6.12\n  kernel1: Kernel panic\n"
        );
    }
}
