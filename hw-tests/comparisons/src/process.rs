//! A peer's two processes, the server on one core and the client on the other, and the client's
//! output.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferro::cores;
use ferro::failure::{Failure, Result};
use nix::pty::openpty;

/// How long a server may take until it listens: programs start slowly in an emulated machine.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// How long a client may take.
const RUN_PATIENCE: Duration = Duration::from_secs(120);

/// The folder of programs of ours, in a root of another system.
const OURS_IN_ROOT: &str = "/mnt";

/// A program with its arguments and variables.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// Whether it wants a terminal as its standard input.
    pub(crate) on_terminal: bool,
    /// Where it is, in the files of its host, if not where programs are.
    pub(crate) file: Option<PathBuf>,
}

impl Program {
    /// A program with the words of a text as its arguments.
    pub(crate) fn new(name: &'static str, arguments: String) -> Self {
        Self {
            name,
            arguments: arguments
                .split_ascii_whitespace()
                .map(str::to_owned)
                .collect(),
            variables: Vec::new(),
            on_terminal: false,
            file: None,
        }
    }
}

/// Where programs are: this machine, or a root folder to change to.
#[derive(Clone, Debug)]
pub(crate) enum ProgramRoot {
    /// This machine.
    Here,
    /// Another system's files.
    Root(PathBuf),
}

impl ProgramRoot {
    /// Whether a program is installed.
    pub(crate) fn has(&self, program: &str) -> bool {
        match self {
            Self::Here => {
                let path = std::env::var_os("PATH").unwrap_or_default();
                std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
            }
            Self::Root(root) => root.join("usr/bin").join(program).is_file(),
        }
    }

    /// Where a program of ours is, in the files of this host. `scripts/bench` shows its folder to
    /// another root as this one.
    pub(crate) fn find(&self, file: &Path) -> Option<PathBuf> {
        match self {
            Self::Here => file.is_file().then(|| file.to_owned()),
            Self::Root(root) => {
                let name = file.file_name()?;
                let there = Path::new(OURS_IN_ROOT).join(name);
                let seen = root.join(there.strip_prefix("/").ok()?);
                seen.is_file().then_some(there)
            }
        }
    }

    fn command(&self, program: &Program) -> Command {
        let mut command = match self {
            Self::Here => match &program.file {
                Some(file) => Command::new(file),
                None => Command::new(program.name),
            },
            Self::Root(root) => {
                let mut chroot = Command::new("chroot");
                chroot.arg(root).arg(match &program.file {
                    Some(file) => file.clone(),
                    None => Path::new("/usr/bin").join(program.name),
                });
                chroot
            }
        };
        command.args(&program.arguments);
        command.envs(program.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Runs a server and then its client; returns what the client printed.
///
/// # Errors
///
/// When either does not start, fails or takes too long; with the last it said.
pub(crate) fn run_pair(
    host: &ProgramRoot,
    server: &Program,
    client: &Program,
    port: u16,
    on: (usize, usize),
) -> Result<String> {
    let mut server_run = ProcessRun::start(host, server, on.0)?;
    server_run.wait_listening(port)?;
    let mut client_run = ProcessRun::start(host, client, on.1)?;
    client_run.wait(RUN_PATIENCE)
}

/// Runs one command to its end; returns what it printed.
///
/// # Errors
///
/// As [`run_pair`].
pub(crate) fn run_one(name: &'static str, mut command: Command, on: &[usize]) -> Result<String> {
    cores::pin(on)?;
    command.stdin(Stdio::null());
    ProcessRun::spawn(name, command, None)?.wait(RUN_PATIENCE)
}

struct ProcessRun {
    name: &'static str,
    child: Child,
    /// The other end of its terminal.
    _terminal: Option<OwnedFd>,
}

impl ProcessRun {
    fn start(host: &ProgramRoot, program: &Program, core: usize) -> Result<Self> {
        let mut command = host.command(program);
        let mut terminal = None;
        if program.on_terminal {
            let pair = openpty(None, None).map_err(|e| Failure::io("open a terminal", e))?;
            command.stdin(Stdio::from(pair.slave));
            terminal = Some(pair.master);
        } else {
            command.stdin(Stdio::null());
        }
        // A child inherits the cores of the thread that starts it.
        cores::pin(&[core])?;
        Self::spawn(program.name, command, terminal)
    }

    fn spawn(name: &'static str, mut command: Command, terminal: Option<OwnedFd>) -> Result<Self> {
        let child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|e| Failure::io(format!("start {name}"), e))?;
        Ok(Self {
            name,
            child,
            _terminal: terminal,
        })
    }

    fn wait_listening(&mut self, port: u16) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        while !listening(port) {
            if let Ok(Some(_)) = self.child.try_wait() {
                return Err(Failure::new(format!(
                    "{} ended before its client came: {}",
                    self.name,
                    Self::last_words(&mut self.child)
                )));
            }
            if Instant::now() > deadline {
                return Err(Failure::new(format!(
                    "{} does not listen at port {port}",
                    self.name
                )));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits for the end. The output of these programs fits into a pipe, so it is read afterwards.
    fn wait(&mut self, patience: Duration) -> Result<String> {
        let deadline = Instant::now() + patience;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(5))
                }
                Ok(None) => {
                    return Err(Failure::new(format!(
                        "{} took more than {} s",
                        self.name,
                        patience.as_secs()
                    )));
                }
                Err(e) => return Err(Failure::io(format!("wait for {}", self.name), e)),
            }
        };
        let mut printed = Vec::new();
        if let Some(out) = &mut self.child.stdout {
            out.read_to_end(&mut printed)
                .map_err(|e| Failure::io(format!("read what {} printed", self.name), e))?;
        }
        let printed = String::from_utf8_lossy(&printed).into_owned();
        match status.success() {
            true => Ok(printed),
            false => Err(Failure::new(format!(
                "{} ended with {status}: {}",
                self.name,
                Self::last_words(&mut self.child)
            ))),
        }
    }

    /// The last line of its error output, once it is over.
    fn last_words(child: &mut Child) -> String {
        let mut said = Vec::new();
        if let Some(err) = &mut child.stderr {
            let _ = err.take(64 << 10).read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said).into_owned();
        said.lines()
            .rev()
            .find(|l| !l.trim().is_empty())
            .unwrap_or("it said nothing")
            .trim()
            .to_owned()
    }
}

impl Drop for ProcessRun {
    fn drop(&mut self) {
        // Both fail when it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether somebody listens at a TCP port of this machine.
fn listening(port: u16) -> bool {
    ["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|file| std::fs::read_to_string(file).is_ok_and(|table| has_listener(&table, port)))
}

/// proc_net_tcp(5): `sl local_address rem_address st …`, port and state in hexadecimal.
fn has_listener(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some("0A")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_listener_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(listening(port));
        drop(listener);
        assert!(!listening(port));
    }

    #[test]
    fn a_failing_program_is_quoted() {
        let fails = Program {
            name: "sh",
            arguments: vec!["-c".into(), "echo one >&2; echo two >&2; exit 3".into()],
            variables: Vec::new(),
            on_terminal: false,
            file: None,
        };
        let core = cores::pair().unwrap().0;
        let text = std::thread::spawn(move || {
            ProcessRun::start(&ProgramRoot::Here, &fails, core)
                .unwrap()
                .wait(RUN_PATIENCE)
        })
        .join()
        .unwrap()
        .unwrap_err()
        .to_string();
        assert!(text.contains("exit status: 3: two"), "{text}");
    }

    #[test]
    fn programs_of_ours_have_another_place_in_another_root() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(ProgramRoot::Here.find(&own), Some(own));
        let root = std::env::temp_dir().join(format!("ferro-root-{}", std::process::id()));
        let (host, ours) = (ProgramRoot::Root(root.clone()), Path::new("/build/a/peer"));
        assert_eq!(host.find(ours), None);
        std::fs::create_dir_all(root.join("mnt")).unwrap();
        std::fs::write(root.join("mnt/peer"), "").unwrap();
        assert_eq!(host.find(ours), Some(PathBuf::from("/mnt/peer")));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_terminal_is_a_terminal() {
        let asks = Program {
            name: "sh",
            arguments: vec!["-c".into(), "test -t 0 && echo yes".into()],
            variables: Vec::new(),
            on_terminal: true,
            file: None,
        };
        let core = cores::pair().unwrap().0;
        let said = std::thread::spawn(move || {
            ProcessRun::start(&ProgramRoot::Here, &asks, core)
                .unwrap()
                .wait(RUN_PATIENCE)
        })
        .join()
        .unwrap();
        assert_eq!(said.unwrap(), "yes\n");
    }
}
