//! MPI programs over this project's provider, and the transport of their messages.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
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

/// Puts, gets and accumulates.
const ONE_SIDED: &str = "one_sided.py";

/// The hint for a window that lets MPICH accumulate by atomic operations.
const SAME_OP: &str = "accumulate_ops=same_op";

/// The hint for a window that lets Intel MPI compute by atomic operations within a node.
const NO_LOCAL_SUMS: &str = "disable_shm_accumulate=true";

/// How long one of the long tests may take.
const SOAK_PATIENCE: Duration = Duration::from_secs(5400);

/// An implementation of MPI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// Debian's Open MPI.
    Open,
    /// The same: windows go by libfabric, messages by its own shared memory, or TCP.
    OpenWindows,
    /// The Python registry's Open MPI (ci/mpi).
    NewOpen,
    /// The same: windows go by libfabric, messages by its own shared memory, or TCP.
    NewOpenWindows,
    /// The same, over libfabric's `lnx`, which links this provider beside libfabric's `shm`.
    NewOpenLinked,
    /// The same, over this provider, whose local messages go through libfabric's `shm`.
    NewOpenBeside,
    /// The Python registry's MPICH (ci/mpi).
    Mpich,
    /// The Python registry's Intel MPI (ci/mpi), with the libfabric of that MPICH.
    Intel,
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
        let launcher = match Launcher::find(self.mpi) {
            Ok(launcher) => launcher,
            Err(reason) => return skip(&reason),
        };
        if self.needs_device() && !has_device() {
            return skip("this machine has no RDMA device");
        }
        let stats = Folder::new();
        let mut command = launcher.command(self.ranks);
        let plugin = Plugin::new();
        plugin.choose(&mut command);
        command.env("FERRO_STATS", stats.path());
        command.envs(self.mpi.link_variables().iter().copied());
        if self.carrier == Carrier::Verbs {
            command.envs([("FERRO_SHM", "off"), ("FI_LNX_DISABLE_SHM", "1")]);
        }
        command.arg(PYTHON).arg(programs().join(self.program[0]));
        command.args(&self.program[1..]);
        let output = run::run(command, patience(self.program)).expect_success();
        let passed = format!("PASS {} ranks", self.ranks);
        let line = output.lines().find(|line| line.starts_with(&passed));
        println!(
            "{}",
            line.unwrap_or_else(|| panic!("no {passed}:\n{output}"))
        );
        self.check(&EndpointCounters::read(stats.path()), &output);
    }

    /// Open MPI requires a provider that reaches other nodes, for its messages.
    fn needs_device(&self) -> bool {
        self.carrier == Carrier::Verbs || matches!(self.mpi, Mpi::Open | Mpi::NewOpen)
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
        if self.program[0] == ONE_SIDED {
            self.check_windows(without, counters);
        }
    }

    /// Checks that a window was more than messages, and how operations that compute went.
    fn check_windows(&self, without: u64, counters: &EndpointCounters) {
        let atomics = counters.sum("atomics_carried_out");
        println!("atomic operations: {atomics}");
        assert!(without > 0, "{counters:?}");
        assert_eq!(atomics > 0, self.has_atomics(), "{counters:?}");
    }

    /// Whether a window computes by atomic operations.
    fn has_atomics(&self) -> bool {
        match self.mpi {
            Mpi::Mpich => self.program.contains(&SAME_OP),
            Mpi::Intel => self.program.contains(&NO_LOCAL_SUMS),
            _ => true,
        }
    }
}

/// How long a program may take.
pub fn patience(program: &[&str]) -> Duration {
    match std::env::var_os("FERRO_SOAK") {
        Some(_) => SOAK_PATIENCE,
        None if program[0] == SUITE => SUITE_PATIENCE,
        None => PATIENCE,
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
pub struct Launcher {
    mpi: Mpi,
    /// Where it is not Debian's.
    made: Option<Made>,
}

/// An MPI that ci/mpi has made.
#[derive(Debug)]
struct Made {
    /// Its bin and lib.
    folder: PathBuf,
    /// Of the Python module.
    python: PathBuf,
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
        let made = match mpi {
            Mpi::Open | Mpi::OpenWindows => {
                look_for_debians()?;
                None
            }
            Mpi::NewOpen | Mpi::NewOpenWindows | Mpi::NewOpenLinked | Mpi::NewOpenBeside => {
                Some(Made::find("open-mpi")?)
            }
            Mpi::Mpich => Some(Made::find("mpich")?),
            Mpi::Intel => Some(Made::find("intel-mpi")?),
        };
        Ok(Self { mpi, made })
    }

    /// Adds what starts so many ranks on each of several hosts, and gives them these variables.
    pub fn on_hosts(&self, command: &mut Command, hosts: &[&str], each: usize, variables: &[&str]) {
        let hosts: Vec<_> = hosts.iter().map(|h| format!("{h}:{each}")).collect();
        let (hosts, agent) = (hosts.join(","), programs().join("remote.py"));
        command.env("FERRO_TEST_REMOTE_PORT", COMMAND_PORT.to_string());
        if self.mpi.has_hydra() {
            // It hands the environment on by itself.
            command.args(["-hosts", &hosts, "-launcher", "rsh", "-launcher-exec"]);
            command.arg(agent);
            return;
        }
        // By itself it fills the first host.
        let map = format!("ppr:{each}:node:oversubscribe");
        command.args(["--map-by", &map, "--host", &hosts]);
        command.args(["--prtemca", "plm_ssh_agent"]);
        command.arg(agent);
        let own = self.made.iter().flat_map(Made::open_mpi_variables);
        let own: Vec<_> = own.map(|(name, _)| name).collect();
        for name in variables.iter().chain(&own) {
            command.args(["-x", name]);
        }
        if let Some(made) = &self.made {
            command.arg("--prefix").arg(&made.folder);
        }
    }

    /// `mpiexec` for so many ranks, whose messages or windows go by libfabric; the program is to be
    /// added.
    pub fn command(&self, ranks: usize) -> Command {
        let mut command = self.undecided_command(ranks);
        match self.mpi {
            Mpi::Mpich => command.envs(MPICH_VARIABLES),
            Mpi::Intel => command.envs(INTEL_VARIABLES),
            _ => command.args(
                self.mpi
                    .open_mpi_parameters()
                    .iter()
                    .flat_map(|&(name, value)| ["--mca", name, value]),
            ),
        };
        command
    }

    /// Likewise, but the library chooses the transport of the messages.
    pub fn undecided_command(&self, ranks: usize) -> Command {
        let program = match &self.made {
            Some(made) => made.folder.join("bin/mpiexec"),
            None => PathBuf::from("mpiexec"),
        };
        let mut command = Command::new(program);
        command.args(["-n", &ranks.to_string()]);
        if self.mpi.has_hydra() {
            let made = self.made.iter();
            command.envs(
                made.clone()
                    .flat_map(|m| m.python_variables("libmpi.so.12")),
            );
            if self.mpi == Mpi::Intel {
                command.envs(made.flat_map(Made::intel_variables));
            }
        } else {
            command.envs(self.made.iter().flat_map(Made::open_mpi_variables));
            command
                .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
                .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
                // More ranks than processors; on several hosts an option says more than this.
                .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
                .args(["--bind-to", "none"]);
        }
        // Nothing of a test stays in the tree.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

impl Made {
    fn find(name: &str) -> Result<Self, String> {
        let all = match std::env::var_os("FERRO_MPI") {
            Some(folder) => PathBuf::from(folder),
            None => made_before().ok_or("MPI is not here (ci/mpi makes it)")?,
        };
        let mut version = Command::new(PYTHON);
        version.args([
            "-c",
            "import sys; print('python%d.%d' % sys.version_info[:2])",
        ]);
        let python = all.join(run::run(version, PATIENCE).expect_success().trim());
        let folder = all.join(name);
        if folder.join("bin/mpiexec").is_file() && python.is_dir() {
            return Ok(Self { folder, python });
        }
        let reason = std::fs::read_to_string(folder.with_extension("missing"));
        Err(format!(
            "no {name} for {PYTHON} in {}: {}",
            all.display(),
            reason.as_deref().unwrap_or("ci/mpi has not made it").trim()
        ))
    }

    /// Where Intel MPI is, and the libfabric for it.
    fn intel_variables(&self) -> [(&'static str, OsString); 2] {
        [
            ("I_MPI_ROOT", self.folder.clone().into()),
            (
                "LD_LIBRARY_PATH",
                self.folder.with_file_name("mpich/lib/mpich").into(),
            ),
        ]
    }

    /// Lets MPI for Python load this MPI.
    fn python_variables(&self, library: &str) -> [(&'static str, OsString); 2] {
        [
            ("PYTHONPATH", self.python.clone().into()),
            (
                "MPI4PY_LIBMPI",
                self.folder.join("lib").join(library).into(),
            ),
        ]
    }

    /// Variables that Open MPI needs in another folder than the one that it was built for.
    fn open_mpi_variables(&self) -> Vec<(&'static str, OsString)> {
        let prefixes = ["OPAL_PREFIX", "PRTE_PREFIX", "PMIX_PREFIX"];
        let lib = self.folder.join("lib");
        let libraries = std::env::join_paths([lib.join("openmpi"), lib]).unwrap();
        (prefixes.into_iter())
            .map(|name| (name, self.folder.clone().into()))
            .chain([("LD_LIBRARY_PATH", libraries)])
            .chain(self.python_variables("libmpi.so.40"))
            .collect()
    }
}

/// Looks for Debian's Open MPI.
fn look_for_debians() -> Result<(), String> {
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
        true => Ok(()),
        false => Err("MPI for Python is not installed here (python3-mpi4py)".to_owned()),
    }
}

impl Mpi {
    /// Whether MPICH's launcher starts the ranks.
    fn has_hydra(self) -> bool {
        matches!(self, Self::Mpich | Self::Intel)
    }

    /// Variables that choose other providers beside this one: those that are linked, with our verbs
    /// alone, or that of local peers.
    pub fn link_variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::NewOpenLinked => &[
                ("FI_PROVIDER", "lnx,shm,ferro"),
                ("FI_LNX_PROV_LINKS", "shm+ferro"),
                ("FERRO_SHM", "off"),
            ],
            Self::NewOpenBeside => &[("FI_PROVIDER", "ferro"), ("FERRO_SHM_PROVIDER", "shm")],
            _ => &[],
        }
    }

    /// The counter of messages between ranks of one node, if this provider has one.
    pub fn local_counter(self) -> Option<&'static str> {
        match self {
            Self::NewOpenLinked => None,
            Self::NewOpenBeside => Some("peer_sent"),
            _ => Some("shm_messages_sent"),
        }
    }

    /// Parameters for messages or windows by this project's provider; a rank that waits lets others
    /// run.
    fn open_mpi_parameters(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Mpich | Self::Intel => &[],
            Self::Open | Self::NewOpenBeside => &[
                ("pml", "cm"),
                ("mtl", "ofi"),
                ("mtl_ofi_provider_include", "ferro"),
                ("btl", "self"),
                ("mpi_yield_when_idle", "1"),
            ],
            // Its windows choose the provider by themselves, and "btl" would take them away.
            Self::NewOpen => &[
                ("pml", "cm"),
                ("mtl", "ofi"),
                ("mtl_ofi_provider_include", "ferro"),
                ("mpi_yield_when_idle", "1"),
            ],
            // The type of address vectors that it has.
            Self::NewOpenLinked => &[
                ("pml", "cm"),
                ("mtl", "ofi"),
                ("mtl_ofi_provider_include", "lnx"),
                ("mtl_ofi_av", "table"),
                ("btl", "self"),
                ("mpi_yield_when_idle", "1"),
            ],
            Self::OpenWindows | Self::NewOpenWindows => &[
                ("pml", "ob1"),
                ("btl", "self,sm,tcp,ofi"),
                ("osc", "rdma"),
                ("opal_common_ofi_provider_include", "ferro"),
                ("mpi_yield_when_idle", "1"),
            ],
        }
    }
}

/// libfabric between all ranks, those of one node too; a rank that waits lets others run.
const MPICH_VARIABLES: [(&str, &str); 3] = [
    ("MPICH_CH4_NETMOD", "ofi"),
    ("MPIR_CVAR_NOLOCAL", "1"),
    ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
];

/// The same for Intel MPI.
const INTEL_VARIABLES: [(&str, &str); 1] = [("I_MPI_FABRICS", "ofi")];

/// The folder of the libfabric that comes with MPICH, 2.5, if ci/mpi has made that.
pub fn libfabric_of_mpich() -> Option<PathBuf> {
    let made = std::env::var_os("FERRO_MPI").map(PathBuf::from);
    let folder = made.or_else(made_before)?;
    let library = folder.join("mpich/lib/mpich");
    library.is_dir().then_some(library)
}

/// Where ci/mpi has put all of them, if it has.
pub fn made_before() -> Option<PathBuf> {
    let mut find = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ci/mpi"));
    find.arg("--find");
    let found = run::run(find, PATIENCE);
    found.success.then(|| PathBuf::from(found.output.trim()))
}
