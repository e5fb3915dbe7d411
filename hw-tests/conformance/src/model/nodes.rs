//! Random programs between two machines that run the same test program at the same time
//! (`scripts/vm --nodes 2`), each of which has a process with half of the ranks.

use crate::this_program::name_beside_this_test;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::between::{WorkerProcess, random_programs_between, serve};
use super::run::LineStream;
use crate::fabric::Fabric;

/// Says to a process which it is of the two.
const PROCESS: &str = "FERRO_TEST_PROCESS";

/// How long one waits for the other.
const PATIENCE: Duration = Duration::from_secs(120);

/// The number of this machine, 0 or 1; `None` where there is one machine alone.
///
/// # Panics
///
/// When it is no number.
pub fn node() -> Option<usize> {
    let node = std::env::var("FERRO_NODE").ok()?;
    Some(node.parse().unwrap())
}

/// Two machines that run random programs.
pub struct NodePrograms<'a> {
    /// Where node 0 listens.
    pub port: u16,
    /// How many programs.
    pub cases: u32,
    /// The test that calls [`serve_leader`]; this test program runs it in a process of its own.
    pub worker: &'a str,
    /// Prepares the command of such a process.
    pub prepare: &'a dyn Fn(&mut Command),
}

impl NodePrograms<'_> {
    /// Runs the part of this machine: node 0 draws the programs for the offers of a fabric, the
    /// other node follows it.
    ///
    /// # Panics
    ///
    /// With the smallest program that fails, if one does, and when the other machine is gone.
    pub fn run(&self, fabric: impl FnOnce() -> Fabric) {
        match node() {
            Some(0) => self.lead(&fabric()),
            _ => self.follow(),
        }
    }

    /// Has a process here, and the other node start one, as often as it takes.
    fn lead(&self, fabric: &Fabric) {
        let listener = TcpListener::bind(("0.0.0.0", self.port)).unwrap();
        let mut control = accept(&listener);
        random_programs_between(fabric, self.cases, || {
            control.write_all(b"!").unwrap();
            let theirs = accept(&listener);
            let (ours, leader) = UnixStream::pair().unwrap();
            ours.set_read_timeout(Some(PATIENCE)).unwrap();
            let child = self.start(OwnedFd::from(leader));
            [
                WorkerProcess::new(ours.try_clone().unwrap(), ours, Some(child)),
                WorkerProcess::new(theirs.try_clone().unwrap(), theirs, None),
            ]
        });
        // Before the other node sees that this is over: it comes again, for the next test, and not
        // to this one.
        drop(listener);
    }

    /// Starts a process whenever node 0 wants one, until that is gone.
    fn follow(&self) {
        let mut control = connect(self.port);
        // Between two wishes lies a run of all the programs.
        control.set_read_timeout(Some(10 * PATIENCE)).unwrap();
        let mut child: Option<Child> = None;
        while control.read(&mut [0]).unwrap() > 0 {
            end(child.take());
            child = Some(self.start(OwnedFd::from(connect(self.port))));
        }
        end(child);
    }

    /// Starts the process of this node, which gets its programs from a stream.
    fn start(&self, leader: OwnedFd) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        (self.prepare)(&mut command);
        command
            .args([
                "--exact",
                &name_beside_this_test(self.worker),
                "--ignored",
                "--nocapture",
            ])
            .env(PROCESS, node().unwrap_or_default().to_string())
            .stdin(Stdio::from(leader))
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// Runs the ranks of this process, which another one has started; returns at once if it is none.
///
/// # Panics
///
/// As [`serve`].
pub fn serve_leader(fabric: impl FnOnce() -> Fabric) {
    let Ok(process) = std::env::var(PROCESS) else {
        return println!("a part of another test, which runs it");
    };
    // A socket of one sort or the other: both are files.
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let leader = File::from(stdin);
    let lines = LineStream::new(leader.try_clone().unwrap(), leader);
    serve(&fabric(), process.parse().unwrap(), lines);
}

fn connect(port: u16) -> TcpStream {
    let peer = std::env::var("FERRO_PEER_IP").expect("FERRO_PEER_IP");
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer.as_str(), port)) {
            Ok(stream) => return ready(stream),
            Err(error) => assert!(Instant::now() < until, "connect to {peer}: {error}"),
        }
        // The other machine may still be booting; a refused connection comes back at once.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn accept(listener: &TcpListener) -> TcpStream {
    ready(listener.accept().unwrap().0)
}

fn ready(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        child.wait().unwrap();
    }
}
