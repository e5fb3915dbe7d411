//! Shared memory: messages between this process and another one, and how large ones move.

use std::fs;

use ferrofabric_contracts::config::{Choice, Settings};

use super::finding::{Finding, Severity};
use crate::cli::RunOptions;
use crate::failure::Result;
use crate::link::Link;
use crate::message::{Pattern, Phase};
use crate::partner;
use crate::phase::echo;
use crate::providers::Path;
use crate::sizes::Sizes;

const ABOUT: &str = "shared memory";

/// Messages in a slot, and messages that may be read out of their sender's memory.
const SIZES: [usize; 2] = [8, 64 << 10];

/// Messages of each size: enough for a sender to try both ways of a large message.
const MESSAGES: u64 = 16;

/// Seconds without a message.
const PATIENCE_S: u64 = 30;

/// The counter of messages that the partner reads out of this process's memory. The partner is no
/// parent of this process, as processes of a job are not parents of each other.
const READ_BY_PARTNER: &str = "shm_sent_cma";

/// Sends messages there and back.
pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    if !settings.shm {
        let off = "it is switched off by the setting shm";
        let remedy = "set FERRO_SHM=on where processes of a node shall use it";
        return vec![Finding::new(Severity::Note, ABOUT, off, remedy)];
    }
    let mut read = 0;
    match partner::with(&options(), None, |link| {
        exchange(link)?;
        read = link.counter(READ_BY_PARTNER)?;
        Ok(())
    }) {
        Ok(()) => vec![
            Finding::ok(
                ABOUT,
                "messages go between two processes, and their content is right",
            ),
            cma(settings, read),
        ],
        Err(failure) => vec![Finding::new(
            Severity::Error,
            ABOUT,
            failure.to_string(),
            "allow memfd_create(2) and Unix sockets to this process, and raise its limits of open \
             files and of memory",
        )],
    }
}

fn options() -> RunOptions {
    RunOptions {
        address: None,
        listen: None,
        spawn: true,
        path: Path::Shm,
        sizes: Sizes(SIZES.to_vec()),
        iters: Some(MESSAGES),
        warmup: None,
        block: true,
        verify: true,
        no_verify: false,
        cores: None,
        patience: PATIENCE_S,
        json: false,
    }
}

fn exchange(link: &mut Link) -> Result<()> {
    for size in SIZES {
        let phase = Phase {
            pattern: Pattern::Echo,
            size,
            messages: MESSAGES,
            window: 1,
            verify: true,
            mapped: false,
        };
        echo::ask(link, &phase, 1, &mut |_, _| {})?;
    }
    Ok(())
}

fn cma(settings: &Settings, read: u64) -> Finding {
    let about = "cross-memory attach";
    if settings.shm_cma == Choice::Off {
        let off = "large messages are copied twice: the setting shm_cma is off";
        return Finding::new(Severity::Note, about, off, "set FERRO_SHM_CMA=auto");
    }
    if read > 0 {
        let works = "a process reads large messages out of another one's memory";
        return Finding::ok(about, works);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let scope = scope.map_or(String::new(), |scope| {
        format!(" (kernel.yama.ptrace_scope is {})", scope.trim())
    });
    Finding::new(
        Severity::Warning,
        about,
        format!("process_vm_readv(2) is refused, so that large messages are copied twice{scope}"),
        "run `sysctl kernel.yama.ptrace_scope=0`, and allow process_vm_readv(2) in the container's \
         policy (--cap-add SYS_PTRACE)",
    )
}
