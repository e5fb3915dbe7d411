//! MPI programs over this project's provider, and the transport of their messages.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::counters::EndpointCounters;
use super::folder::Folder;
use super::nodes::COMMAND_PORT;
use super::plugin::Plugin;
use super::{has_device, has_program, run, skip};

/// How long a program may take; processors may be emulated and shared by eight ranks.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// How long MPI for Python's own tests may take. On idle processors four ranks need half a minute,
/// over Soft-RoCE more than a minute.
const SUITE_PATIENCE: Duration = Duration::from_secs(420);

/// Runs MPI for Python's own tests.
const SUITE: &str = "mpi4py_suite.py";

/// How long one of the long tests may take.
const SOAK_PATIENCE: Duration = Duration::from_secs(1800);

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// Debian's Open MPI.
    Open,
    /// The Python registry's MPICH (ci/mpich).
    Mpich,
}

/// The transport of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// As it comes: shared memory, for all ranks are on one node.
    Default,
    /// Verbs: shared memory is switched off.
    Verbs,
}

/// One run of a program.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// By whom.
    pub mpi: Mpi,
    /// Over what.
    pub carrier: Carrier,
    /// How many processes.
    pub ranks: usize,
    /// A file of plugin-ofi/mpi, and its arguments.
    pub program: &'static [&'static str],
    /// Fewer messages than this, with the reads and writes that need none, can not be all of them.
    pub messages: u64,
}

impl Job {
    /// Runs the job. Checks that it passes and that the expected transport carried its messages.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub fn passes(self) {
        // One at a time: they are many processes already.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let launcher = match Launcher::find(self.mpi) {
            Ok(launcher) => launcher,
            Err(reason) => return skip(&reason),
        };
        if self.carrier == Carrier::Verbs && !has_device() {
            return skip("this machine has no RDMA device");
        }
        if self.spares_the_machine() {
            println!("SKIP: in the emulated machine it runs with --soak [soak]");
            return;
        }
        let stats = Folder::new();
        let mut command = launcher.command(self.ranks);
        let plugin = Plugin::new();
        plugin.choose(&mut command);
        command.env("FERRO_STATS", stats.path());
        if self.carrier == Carrier::Verbs {
            command.env("FERRO_SHM", "off");
        }
        command.arg(PYTHON).arg(programs().join(self.program[0]));
        command.args(&self.program[1..]);
        let patience = match std::env::var_os("FERRO_SOAK") {
            Some(_) => SOAK_PATIENCE,
            None if self.program[0] == SUITE => SUITE_PATIENCE,
            None => PATIENCE,
        };
        let output = run::run(command, patience).expect_success();
        let passed = format!("PASS {} ranks", self.ranks);
        let line = output.lines().find(|line| line.starts_with(&passed));
        println!(
            "{}",
            line.unwrap_or_else(|| panic!("no {passed}:\n{output}"))
        );
        self.check(&EndpointCounters::read(stats.path()), &output);
    }

    /// Whether the emulated machine leaves the job out, since it is no soak and another run covers
    /// it. MPICH through shared memory runs outside of the machine as well, and much faster; here
    /// only our own programs run with four ranks, since the domain here has a device besides. Open
    /// MPI runs in the machine alone: there it leaves out eight ranks, which it has over verbs, and
    /// collectives of two ranks, which do less than those of four. Random traffic over verbs has
    /// eight ranks with the one MPI, four with the other.
    fn spares_the_machine(&self) -> bool {
        let emulated = std::env::var_os("FERRO_MACHINE").is_some();
        let soak = std::env::var_os("FERRO_SOAK").is_some();
        let job = (self.ranks, self.program[0]);
        let repeats = match (self.carrier, self.mpi) {
            (Carrier::Default, Mpi::Mpich) => self.ranks != 4 || job.1 == SUITE,
            (Carrier::Default, Mpi::Open) => self.ranks == 8 || job == (2, "collectives.py"),
            (Carrier::Verbs, Mpi::Mpich) => job == (8, "random_p2p.py"),
            (Carrier::Verbs, Mpi::Open) => job == (4, "random_p2p.py"),
        };
        emulated && !soak && repeats
    }

    fn check(&self, counters: &EndpointCounters, output: &str) {
        assert!(
            counters.endpoints() >= self.ranks,
            "{} endpoints have left their counters: {counters:?}\n{output}",
            counters.endpoints()
        );
        let [shm, verbs] = ["shm", "verbs"].map(|path| {
            ["sent", "received"].map(|way| counters.sum(&format!("{path}_messages_{way}")))
        });
        // Reads and writes that no message carried.
        let copies = ["shm_rma_read", "shm_rma_written"].map(|name| counters.sum(name));
        let by_device = ["verbs_rma_reads", "verbs_rma_writes"].map(|name| counters.sum(name));
        println!("messages sent and received: shared memory {shm:?}, verbs {verbs:?}");
        println!("reads and writes without: shared memory {copies:?}, verbs {by_device:?}");
        let (expected, without, other) = match self.carrier {
            Carrier::Default => (shm, copies, verbs),
            Carrier::Verbs => (verbs, by_device, shm),
        };
        let without: u64 = without.iter().sum();
        let enough = |messages: &u64| messages + without >= self.messages;
        assert!(expected.iter().all(enough), "{counters:?}");
        assert_eq!(other, [0, 0], "{counters:?}");
    }
}

/// The Python whose MPI modules are there.
pub const PYTHON: &str = "/usr/bin/python3";

/// The folder of the programs.
pub fn programs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi")
}

/// An MPI that is installed here.
#[derive(Debug)]
pub enum Launcher {
    /// Open MPI's mpiexec is in PATH.
    Open,
    /// The folder of MPICH, and the one of its Python module.
    Mpich(PathBuf, PathBuf),
}

impl Launcher {
    /// Looks for it.
    ///
    /// # Errors
    ///
    /// The name of the missing program or library.
    pub fn find(mpi: Mpi) -> Result<Self, String> {
        if !Path::new(PYTHON).is_file() {
            return Err(format!("there is no {PYTHON} here"));
        }
        match mpi {
            Mpi::Open => Self::open_mpi(),
            Mpi::Mpich => Self::mpich(),
        }
    }

    fn open_mpi() -> Result<Self, String> {
        if !has_program("ompi_info") || !has_program("mpiexec") {
            return Err("Open MPI is not installed here (openmpi-bin)".to_owned());
        }
        let mut version = Command::new("ompi_info");
        version.arg("--version");
        let said = run::run(version, PATIENCE).expect_success();
        // Earlier ones come with libfabric 1.
        if !said.starts_with("Open MPI v5") {
            return Err(format!("this is not Open MPI 5: {}", said.trim()));
        }
        let mut module = Command::new(PYTHON);
        module.args(["-c", "import mpi4py"]);
        match run::run(module, PATIENCE).success {
            true => Ok(Self::Open),
            false => Err("MPI for Python is not installed here (python3-mpi4py)".to_owned()),
        }
    }

    fn mpich() -> Result<Self, String> {
        let folder = match std::env::var_os("FERRO_MPICH") {
            Some(folder) => PathBuf::from(folder),
            None => made_before().ok_or("MPICH is not here (ci/mpich makes it)")?,
        };
        let mut version = Command::new(PYTHON);
        version.args([
            "-c",
            "import sys; print('python%d.%d' % sys.version_info[:2])",
        ]);
        let python = folder.join(run::run(version, PATIENCE).expect_success().trim());
        match folder.join("bin/mpiexec").is_file() && python.is_dir() {
            true => Ok(Self::Mpich(folder, python)),
            false => Err(format!("no MPICH for {PYTHON} in {}", folder.display())),
        }
    }

    /// Adds what starts so many ranks on each of several hosts, and gives them these variables.
    pub fn on_hosts(&self, command: &mut Command, hosts: &[&str], each: usize, variables: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|h| format!("{h}:{each}")).collect();
        let (hosts, agent) = (hosts.join(","), programs().join("remote.py"));
        command.env("FERRO_TEST_REMOTE_PORT", COMMAND_PORT.to_string());
        match self {
            Self::Open => {
                // By itself it fills the first host.
                let map = format!("ppr:{each}:node:oversubscribe");
                command.args(["--map-by", &map, "--host", &hosts]);
                command.args(["--prtemca", "plm_ssh_agent"]);
                command.arg(agent);
                for name in variables {
                    command.args(["-x", name]);
                }
            }
            // It hands the environment on by itself.
            Self::Mpich(..) => {
                command.args(["-hosts", &hosts, "-launcher", "rsh", "-launcher-exec"]);
                command.arg(agent);
            }
        }
    }

    /// `mpiexec` for so many ranks, whose messages go by libfabric; the program is to be added.
    pub fn command(&self, ranks: usize) -> Command {
        let mut command = self.undecided_command(ranks);
        match self {
            Self::Open => {
                for (name, value) in OPEN_MPI_PARAMETERS {
                    command.args(["--mca", name, value]);
                }
            }
            Self::Mpich(..) => {
                command.envs(MPICH_VARIABLES);
            }
        }
        command
    }

    /// Likewise, but the library chooses the transport of the messages.
    pub fn undecided_command(&self, ranks: usize) -> Command {
        let ranks = ranks.to_string();
        let mut command;
        match self {
            Self::Open => {
                command = Command::new("mpiexec");
                command
                    .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                    .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                    // More ranks than processors; on several hosts an option says more than this.
                    .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
                    .args(["-n", &ranks, "--bind-to", "none"]);
            }
            Self::Mpich(folder, python) => {
                command = Command::new(folder.join("bin/mpiexec"));
                command
                    .env("PYTHONPATH", python)
                    .env("MPI4PY_LIBMPI", folder.join("lib/libmpi.so.12"))
                    .args(["-n", &ranks]);
            }
        }
        // Nothing of a test stays in the tree.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// Messages through libfabric, by this project's provider; a rank that waits lets others run.
const OPEN_MPI_PARAMETERS: [(&str, &str); 5] = [
    ("pml", "cm"),
    ("mtl", "ofi"),
    ("mtl_ofi_provider_include", "ferro"),
    ("btl", "self"),
    ("mpi_yield_when_idle", "1"),
];

/// libfabric between all ranks, those of one node too; a rank that waits lets others run.
const MPICH_VARIABLES: [(&str, &str); 3] = [
    ("MPICH_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
];

/// Where ci/mpich has put it, if it has.
fn made_before() -> Option<PathBuf> {
    let mut find = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/mpich"));
    find.arg("--find");
    let found = run::run(find, PATIENCE);
    found.success.then(|| PathBuf::from(found.output.trim()))
}
