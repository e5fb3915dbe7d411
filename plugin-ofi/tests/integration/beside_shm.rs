//! Endpoints over verbs whose local peers are reached through libfabric's `shm` (setting
//! `shm_provider`): fi_pingpong(1) between two processes, MPICH, and a peer that is killed.
//!
//! Without an RDMA device each process has a fake device of its own, so a message that `shm` does
//! not carry arrives nowhere.

use crate::{child, client, support};
use std::path::PathBuf;
use std::process::Command;
use std::ptr::null_mut;
use std::time::Duration;

use client::Libfabric;
use ferro_fi::abi::{fi_cq_tagged_entry, fi_threading};
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
    let Some(library) = mpi::libfabric_of_mpich() else {
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
    let sizes = pingpong::sizes(&said);
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

/// Runs a test once more, in a process of its own with that provider for local peers.
fn again(test: &str, name: &str) {
    let provider = Provider::new();
    let mut command = Tool::asked_for().run(&std::env::current_exe().unwrap());
    child::again(&mut command, test, &[]);
    provider.choose(&mut command);
    command.env(BESIDE.0, name);
    let output = run::run(command, PATIENCE).expect_success();
    for line in output.lines().filter(|line| line.starts_with("SKIP")) {
        println!("{line}");
    }
}

/// A message waits for its receive in the memory of an endpoint of the same process, which is
/// closed meanwhile. Several endpoints come and go beside one that stays.
///
/// Covers: PEER-8, PEER-9
#[test]
fn messages_of_endpoints_of_this_process_that_have_closed() {
    if !child::is_here() {
        return again(
            "messages_of_endpoints_of_this_process_that_have_closed",
            "shm",
        );
    }
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
    };
    let info = libfabric.discover("", fi_threading::FI_THREAD_SAFE);
    let opened = client::Opened::new(&info);
    let stays = opened.party(&info);
    let mut entry = fi_cq_tagged_entry::default();
    let mut next = |party: &client::Party| {
        while party.poll(&mut entry) != 1 {}
        (entry.len, entry.tag)
    };
    for round in 0..5u8 {
        let closes = opened.party(&info);
        let to_stays = closes.insert(&stays.name());
        stays.insert(&closes.name());
        // More than a command of the provider's holds, so the bytes stay with their sender.
        let (long, last) = ([round; 1000], [round; 8]);
        let (mut into_long, mut into_last) = ([0; 1000], [0; 8]);
        assert_eq!(stays.receive(into_last.as_mut_ptr(), 8, null_mut(), 2), 0);
        for (bytes, tag) in [(&long[..], 1), (&last[..], 2)] {
            loop {
                // SAFETY: the bytes stay until the endpoint is closed.
                match unsafe { closes.send(bytes, null_mut(), to_stays, tag) } {
                    0 => break,
                    error => assert_eq!(error, -libc::EAGAIN as isize),
                }
                assert_ne!(stays.poll(&mut fi_cq_tagged_entry::default()), 1);
            }
        }
        // So the one before it is there, too.
        assert_eq!(next(&stays), (8, 2));
        closes.close();
        assert_eq!(
            stays.receive(into_long.as_mut_ptr(), 1000, null_mut(), 1),
            0
        );
        assert_eq!(next(&stays), (1000, 1));
        assert_eq!((into_long, into_last), (long, last));
    }
    stays.close();
    opened.close();
}

/// Where the provider is none of libfabric's, this one, or one that inquires about this one, the
/// device reaches local peers, too.
#[test]
fn endpoints_without_that_provider_use_the_device() {
    if !child::is_here() {
        for name in ["absent", "ferro", "lnx"] {
            again("endpoints_without_that_provider_use_the_device", name);
        }
        return;
    }
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
    };
    let info = libfabric.discover("", fi_threading::FI_THREAD_SAFE);
    client::round(&info, 1);
}
