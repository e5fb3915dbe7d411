//! Programs in C that are owners of peer objects (fi_peer(3)): compiled with the headers and the
//! sanitizers that are here, and run over stock libfabric.
//!
//! They run over the libfabric of this system, and over that of the Soft-RoCE machine, which is
//! older: FERRO_TEST_MACHINE has the machine's files, and its loader runs the program here.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::client::Libfabric;
use crate::support::folder::Folder;
use crate::support::{has_program, run};

/// A scenario that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// libfabric's minor version, of 2.
type Minor = u32;

/// Since then a receive entry does not begin with the two pointers of a list.
const WITHOUT_LINKS: Minor = 3;

/// Since then `fi_domain_attr` ends with the values of counters.
const WITH_COUNTER_VALUES: Minor = 5;

/// The folder of the Soft-RoCE machine.
const MACHINE: &str = "FERRO_TEST_MACHINE";

/// A compiler of such programs for one libfabric.
pub struct OwnerCompiler {
    folder: Folder,
    library: PathBuf,
    /// Folders of headers, the first one first.
    include: Vec<PathBuf>,
    /// The root of the system that the programs run in, if it is another one.
    root: Option<PathBuf>,
}

/// The kind of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Program,
    Provider,
    /// For programs that have no sanitizers.
    PlainProvider,
}

impl OwnerCompiler {
    /// Those for all libfabrics that are here.
    ///
    /// # Errors
    ///
    /// The name of a thing that is missing here.
    pub fn all() -> Result<Vec<Self>, String> {
        if !has_program("cc") {
            return Err("there is no C compiler here".into());
        }
        let here = Self::of_this_system()?;
        let probe = here.folder.path().join("probe.c");
        std::fs::write(&probe, "int main(void) { return 0; }\n").unwrap();
        let mut command = here.command(Output::Program);
        command.arg("-o").arg(probe.with_extension("")).arg(&probe);
        if !command.output().unwrap().status.success() {
            return Err("the C compiler has no address or undefined-behaviour sanitizer".into());
        }
        let machine = std::env::var_os(MACHINE).map(PathBuf::from);
        let older = machine.map(|machine| Self::of_machine(&machine));
        Ok([here].into_iter().chain(older).collect())
    }

    fn of_this_system() -> Result<Self, String> {
        let Some(libfabric) = Libfabric::load() else {
            return Err("there is no libfabric 2 here (libfabric1, or ci/mpi)".into());
        };
        let of_tests = std::env::var_os("FERRO_LIBFABRIC_INCLUDE").map(PathBuf::from);
        let include = of_tests.unwrap_or_else(|| "/usr/include".into());
        if !include.join(PEER_HEADER).exists() {
            let wanted = "set FERRO_LIBFABRIC_INCLUDE, or install libfabric-dev";
            return Err(format!("no headers of libfabric: {wanted}"));
        }
        let mut this = Self {
            folder: Folder::new(),
            library: libfabric.path.clone(),
            include: vec![include],
            root: None,
        };
        this.use_headers_of(libfabric.version & 0xffff)?;
        Ok(this)
    }

    /// The headers of the machine are those of its library.
    fn of_machine(machine: &Path) -> Self {
        let root = machine.join("root");
        Self {
            folder: Folder::new(),
            library: root.join(LIBRARIES).join("libfabric.so.1"),
            include: vec![machine.join("headers")],
            root: Some(root),
        }
    }

    /// Makes headers of the library's version of those that are here, where they are older: a
    /// provider has the layouts of its headers, and libfabric loads no older ones.
    fn use_headers_of(&mut self, version: Minor) -> Result<(), String> {
        let base = self.include[0].clone();
        let read = |header| std::fs::read_to_string(base.join(header)).unwrap();
        let (mut fabric, mut peer) = (read(FABRIC_HEADER), read(PEER_HEADER));
        let number_of = |name: &str| -> Minor {
            let line = fabric.lines().find(|line| line.contains(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        let (major, minor) = (number_of(MAJOR), number_of(MINOR));
        if major != 2 || minor > version {
            return Err(format!(
                "the headers are of libfabric {major}.{minor}, the library is 2.{version}"
            ));
        }
        if minor == version {
            return Ok(());
        }
        fabric = replaced(
            &fabric,
            &format!("{MINOR} {minor}"),
            &format!("{MINOR} {version}"),
        );
        if (minor + 1..=version).contains(&WITH_COUNTER_VALUES) {
            let last = "max_group_id;";
            let with_values =
                format!("{last}\n\tuint64_t max_cntr_value;\n\tuint64_t max_err_cntr_value;");
            fabric = replaced(&fabric, last, &with_values);
        }
        if (minor + 1..=version).contains(&WITHOUT_LINKS) {
            for link in ["next", "prev"] {
                peer = replaced(&peer, &format!("\tstruct fi_peer_rx_entry *{link};\n"), "");
            }
        }
        let own = self.folder.path().join("include");
        for (header, text) in [(FABRIC_HEADER, fabric), (PEER_HEADER, peer)] {
            let path = own.join(header);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        self.include.insert(0, own);
        Ok(())
    }

    /// A command of the compiler, with the options of all programs or providers.
    fn command(&self, output: Output) -> Command {
        const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let mut command = Command::new("cc");
        command.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"]);
        match (output, &self.root) {
            (Output::Program, None) => command.args(SANITIZERS),
            (Output::Provider, None) => command.args(SANITIZERS).args(["-shared", "-fPIC"]),
            // Another system need not have the sanitizers' libraries.
            (Output::Program, Some(_)) => {
                (command.args(SANITIZERS)).args(["-static-libasan", "-static-libubsan"])
            }
            (Output::Provider, Some(_)) | (Output::PlainProvider, _) => {
                command.args(["-shared", "-fPIC"])
            }
        };
        for folder in &self.include {
            command.arg("-I").arg(folder);
        }
        command
    }

    fn compile(&self, name: &str, sources: &[PathBuf], output: Output) -> PathBuf {
        let path = self.folder.path().join(name);
        let mut command = self.command(output);
        command.arg("-o").arg(&path).args(sources);
        let folder = self.library.parent().unwrap().display();
        // Libraries of the library are found as it is loaded.
        command
            .arg(&self.library)
            .arg(format!("-Wl,-rpath,{folder},--allow-shlib-undefined"));
        let output = command.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}\n{errors}");
        path
    }

    /// Compiles a provider, and returns its folder.
    pub fn provider(&self, name: &str, source: &str) -> PathBuf {
        self.provider_as(name, source, Output::Provider)
    }

    /// The same, without sanitizers.
    pub fn plain_provider(&self, name: &str, source: &str) -> PathBuf {
        self.provider_as(name, source, Output::PlainProvider)
    }

    fn provider_as(&self, name: &str, source: &str, output: Output) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
        let library = self.compile(name, &[source], output);
        library.parent().unwrap().to_owned()
    }

    /// Compiles a program of this folder's, with the owner.
    pub fn owner(&self, program: &str) -> OwnerProgram<'_> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/c_owner");
        let sources = [format!("{program}.c"), "owner.c".into()].map(|file| folder.join(file));
        OwnerProgram {
            path: self.compile(program, &sources, Output::Program),
            root: self.root.as_deref(),
        }
    }
}

/// Where Debian has its libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

const FABRIC_HEADER: &str = "rdma/fabric.h";
const PEER_HEADER: &str = "rdma/providers/fi_peer.h";
const MAJOR: &str = "#define FI_MAJOR_VERSION";
const MINOR: &str = "#define FI_MINOR_VERSION";

/// A text with another part, which is there once.
fn replaced(text: &str, part: &str, other: &str) -> String {
    assert_eq!(text.matches(part).count(), 1, "{part}");
    text.replace(part, other)
}

/// A compiled program. Its compiler keeps it.
pub struct OwnerProgram<'a> {
    path: PathBuf,
    root: Option<&'a Path>,
}

impl OwnerProgram<'_> {
    /// Runs all its scenarios, each in a process of its own, which `prepare` prepares.
    pub fn run_all(&self, prepare: impl Fn(&mut Command)) {
        let listed = run::run(self.command(), PATIENCE).expect_success();
        assert!(!listed.is_empty());
        for scenario in listed.lines() {
            let mut command = self.command();
            prepare(&mut command);
            command.arg(scenario);
            let output = run::run(command, PATIENCE).expect_success();
            let end = format!("ended well: {scenario}");
            assert!(output.lines().any(|line| line == end), "{output}");
            println!("{end}");
        }
    }

    fn command(&self) -> Command {
        let Some(root) = self.root else {
            return Command::new(&self.path);
        };
        let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
        (command.arg("--library-path").arg(root.join(LIBRARIES))).arg(&self.path);
        command
    }
}
