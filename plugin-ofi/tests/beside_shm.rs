//! Endpoints over verbs whose local peers are reached through libfabric's `shm` (setting
//! `shm_provider`): fi_pingpong(1) between two processes, MPICH, and a peer that is killed.
//!
//! Without an RDMA device each process has a fake device of its own, so a message that `shm` does
//! not carry arrives nowhere.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod child;
#[macro_use]
mod client;
mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use client::Libfabric;
use ferro_fi::abi::fi_threading;
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::mpi::{self, Launcher, Mpi};
use support::plugin::{FakeDevicePlugin, Plugin};
use support::tool::Tool;
use support::{has_device, has_program, pingpong, run, skip};

const PATIENCE: Duration = Duration::from_secs(120);
/// Messages of each size.
const ITERATIONS: u64 = 4;
/// The setting.
const BESIDE: (&str, &str) = ("FERRO_SHM_PROVIDER", "shm");
/// Has MPICH take an offer without one-sided operations.
const WITHOUT_WINDOWS: [(&str, &str); 2] = [
    ("MPIR_CVAR_CH4_OFI_ENABLE_RMA", "0"),
    ("MPIR_CVAR_CH4_OFI_ENABLE_ATOMICS", "0"),
];

/// The provider, over the machine's device or a fake one.
enum Provider {
    Real(Plugin),
    Fake(FakeDevicePlugin),
}

impl Provider {
    fn new() -> Self {
        match has_device() {
            true => Self::Real(Plugin::new()),
            false => Self::Fake(FakeDevicePlugin::new()),
        }
    }

    fn choose(&self, command: &mut Command) {
        match self {
            Self::Real(plugin) => plugin.choose(command),
            Self::Fake(plugin) => plugin.choose(command),
        }
        command.envs([BESIDE]);
    }
}

/// Covers: PEER-4, PEER-9, PEER-10
#[test]
fn pingpong_of_two_processes() {
    if !has_program("fi_pingpong") {
        return skip("libfabric's programs are not installed here (libfabric-bin)");
    }
    let Some(library) = library() else {
        return skip("there is no libfabric 2 here (ci/mpi makes one)");
    };
    let (provider, stats) = (Provider::new(), Folder::new());
    let program = || {
        let mut command = Command::new("fi_pingpong");
        provider.choose(&mut command);
        let mut folders = vec![library.clone()];
        let chosen = command
            .get_envs()
            .find(|(name, _)| *name == "LD_LIBRARY_PATH");
        folders.extend(chosen.and_then(|(_, value)| value).map(PathBuf::from));
        command.env("LD_LIBRARY_PATH", std::env::join_paths(folders).unwrap());
        command.env("FERRO_STATS", stats.path());
        command.args(["-p", "ferro", "-e", "rdm", "-m", "tagged", "-c"]);
        command.args(["-I", &ITERATIONS.to_string()]);
        command
    };
    let said = pingpong::pingpong(program, PATIENCE);
    let is_size = |line: &&str| line.starts_with(char::is_numeric);
    let sizes = said.lines().filter(is_size).count() as u64;
    assert!(sizes >= 5, "{said}");
    let counters = EndpointCounters::read(stats.path());
    let ways = ["peer_sent", "peer_received"].map(|name| counters.sum(name));
    assert!(
        ways.iter().all(|&way| way >= 2 * ITERATIONS * sizes),
        "{counters:?}"
    );
    assert_eq!(counters.sum("peer_refused_calls"), 0, "{counters:?}");
    assert_eq!(counters.sum("verbs_messages_sent"), 0, "{counters:?}");
}

/// Covers: PEER-4, PEER-9
#[test]
fn mpich_on_four_ranks() {
    let launcher = match Launcher::find(Mpi::Mpich) {
        Ok(launcher) => launcher,
        Err(reason) => return skip(&reason),
    };
    let (provider, stats) = (Provider::new(), Folder::new());
    let mut command = launcher.command(4);
    provider.choose(&mut command);
    command
        .envs(WITHOUT_WINDOWS)
        .env("FERRO_STATS", stats.path())
        .arg(mpi::PYTHON)
        .arg(mpi::programs().join("collectives.py"))
        .args(["--every", "4"]);
    let output = run::run(command, mpi::PATIENCE).expect_success();
    assert!(output.contains("PASS 4 ranks"), "{output}");
    let counters = EndpointCounters::read(stats.path());
    assert!(counters.sum("peer_sent") >= 300, "{counters:?}");
    assert_eq!(counters.sum("verbs_messages_sent"), 0, "{counters:?}");
}

/// Where the provider is none of libfabric's, this one, or one that inquires about this one, the
/// device reaches local peers, too.
#[test]
fn endpoints_without_that_provider_use_the_device() {
    if child::is_here() {
        let Some(libfabric) = Libfabric::load() else {
            return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
        };
        let info = libfabric.discover("", fi_threading::FI_THREAD_SAFE);
        return client::round(&info, 1);
    }
    let provider = Provider::new();
    for name in ["absent", "ferro", "lnx"] {
        let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
        let test = "endpoints_without_that_provider_use_the_device";
        child::again(&mut command, test, &[]);
        provider.choose(&mut command);
        command.env(BESIDE.0, name);
        let output = run::run(command, PATIENCE).expect_success();
        for line in output.lines().filter(|line| line.starts_with("SKIP")) {
            println!("{line}");
        }
    }
}

/// The folder of a libfabric 2.
fn library() -> Option<PathBuf> {
    let made = std::env::var_os("FERRO_MPI").map(PathBuf::from);
    let folder = made.or_else(mpi::made_before)?;
    let library = folder.join("mpich/lib/mpich");
    library.is_dir().then_some(library)
}
