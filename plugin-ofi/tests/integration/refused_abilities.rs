//! Jobs of MPI run, whatever abilities an RDMA device refuses.
//!
//! The plugin loads the fake device in place of libibverbs. Each rank has a fake device of its own,
//! so no message crosses over it: the job shows what an endpoint makes of a device, and that the
//! ranks meet in shared memory.

use crate::support;
use std::process::Command;

use ferrofabric_fake_device::profile::{ABILITIES, WITHOUT};
use support::counters::EndpointCounters;
use support::folder::Folder;
use support::mpi::{self, Launcher, Mpi};
use support::plugin::FakeDevicePlugin;
use support::{run, skip};

/// Ranks of each job.
const RANKS: usize = 2;

/// Messages of `hello.py` between so many ranks, at least.
const MESSAGES: u64 = 5;

/// Random combinations that a job of the emulated machine takes besides the first and the last.
const RANDOM_COMBINATIONS: usize = 2;

/// Each bit stands for an ability that the device refuses.
type Refused = usize;

const ALL: Refused = (1 << ABILITIES.len()) - 1;

#[test]
fn mpich_runs_whatever_the_device_refuses() {
    if std::env::var_os("FERRO_MACHINE").is_some() {
        // The fake device needs no machine.
        return println!("SKIP: it runs outside of the emulated machine [soak]");
    }
    let Some(launcher) = found(Mpi::Mpich) else {
        return;
    };
    for refused in 0..=ALL {
        let counters = FakeDeviceJob::new(launcher.command(RANKS), refused).passes();
        let sent = counters.sum("shm_messages_sent");
        assert!(sent >= MESSAGES, "without {}: {counters:?}", names(refused));
        assert_eq!(counters.sum("verbs_messages_sent"), 0, "{counters:?}");
        if refused == 0 {
            // So the ranks do have the fake device.
            assert!(counters.has("verbs_messages_sent"), "{counters:?}");
        }
    }
}

/// Open MPI picks another transport where the offers do not suffice it.
#[test]
fn open_mpi_starts_whatever_the_device_refuses() {
    let Some(launcher) = found(Mpi::Open) else {
        return;
    };
    for refused in combinations() {
        FakeDeviceJob::new(launcher.undecided_command(RANKS), refused).passes();
    }
}

/// All of them, or in the emulated machine's daily run a few.
fn combinations() -> Vec<Refused> {
    if std::env::var_os("FERRO_SOAK").is_some() {
        return (0..=ALL).collect();
    }
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let random = (0..RANDOM_COMBINATIONS).map(|_| rng.usize(1..ALL));
    [0, ALL].into_iter().chain(random).collect()
}

fn found(mpi: Mpi) -> Option<Launcher> {
    Launcher::find(mpi).map_err(|reason| skip(&reason)).ok()
}

/// The refused abilities, as the fake device reads them.
fn names(refused: Refused) -> String {
    let names = (ABILITIES.iter().enumerate()).filter(|(bit, _)| refused & (1 << bit) != 0);
    names.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// A job whose ranks have a device that refuses something.
struct FakeDeviceJob {
    command: Command,
    refused: Refused,
    stats: Folder,
    _plugin: FakeDevicePlugin,
}

impl FakeDeviceJob {
    fn new(mut command: Command, refused: Refused) -> Self {
        let (plugin, stats) = (FakeDevicePlugin::new(), Folder::new());
        plugin.choose(&mut command);
        command
            .env("FERRO_STATS", stats.path())
            .env(WITHOUT, names(refused))
            .arg(mpi::PYTHON)
            .arg(mpi::programs().join("hello.py"));
        Self {
            command,
            refused,
            stats,
            _plugin: plugin,
        }
    }

    fn passes(self) -> EndpointCounters {
        let finished = run::run(self.command, mpi::PATIENCE);
        let output = finished.expect_success();
        let passed = format!("PASS {RANKS} ranks");
        assert!(
            output.lines().any(|line| line.starts_with(&passed)),
            "without {}: {output}",
            names(self.refused)
        );
        EndpointCounters::read(self.stats.path())
    }
}
