//! The conformance suite's random programs between two machines: run with `scripts/vm --nodes 2`,
//! both run this same program.

#![allow(missing_docs, clippy::unwrap_used)]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::model::between::{WorkerProcess, random_programs_between, serve};
use ferrofabric_conformance::model::run::LineStream;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::PATIENCE;
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Where node 0 listens.
const PORT: u16 = 7472;

/// Says to a process which it is of the two.
const PROCESS: &str = "FERRO_TEST_PROCESS";

/// Says to a process which kinds of lanes its ranks use.
const LANES: &str = "FERRO_TEST_LANES";

/// By turns, from the first rank of each node on: programs of two ranks have datagrams, longer ones
/// all kinds side by side.
const ALL_KINDS: &str = "ud,auto,rc";

fn node() -> usize {
    let node = std::env::var("FERRO_NODE").expect("FERRO_NODE");
    node.parse().unwrap()
}

fn connect() -> TcpStream {
    let peer = std::env::var("FERRO_PEER_IP").expect("FERRO_PEER_IP");
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer.as_str(), PORT)) {
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

/// Starts the process of this node, which gets its programs from a stream.
fn start(leader: OwnedFd, lanes: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "one_of_two_processes",
            "--ignored",
            "--nocapture",
        ])
        .env(PROCESS, node().to_string())
        .env(LANES, lanes)
        .stdin(Stdio::from(leader))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Node 0 draws the programs: it has a process here, and the other node start one, as often as it
/// takes.
fn lead(lanes: &str, cases: u32) {
    let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
    let mut control = accept(&listener);
    random_programs_between(&fabric(lanes), cases, || {
        control.write_all(b"!").unwrap();
        let theirs = accept(&listener);
        let (ours, leader) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let child = start(OwnedFd::from(leader), lanes);
        [
            WorkerProcess::new(ours.try_clone().unwrap(), ours, Some(child)),
            WorkerProcess::new(theirs.try_clone().unwrap(), theirs, None),
        ]
    });
    // Before the other node sees that this is over: it comes again, for the next test, and not to
    // this one.
    drop(listener);
}

/// Node 1 starts a process whenever node 0 wants one, until that is gone.
fn follow(lanes: &str) {
    let mut control = connect();
    // Between two wishes lies a run of all the programs.
    control.set_read_timeout(Some(10 * PATIENCE)).unwrap();
    let mut child: Option<Child> = None;
    while control.read(&mut [0]).unwrap() > 0 {
        end(child.take());
        child = Some(start(OwnedFd::from(connect()), lanes));
    }
    end(child);
}

fn end(child: Option<Child>) {
    if let Some(mut child) = child {
        let _ = child.kill();
        child.wait().unwrap();
    }
}

#[test]
#[ignore = "run by the others"]
fn one_of_two_processes() {
    let Ok(process) = std::env::var(PROCESS) else {
        return println!("a part of another test, which runs it");
    };
    // A socket of one sort or the other: both are files.
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let leader = File::from(stdin);
    let lines = LineStream::new(leader.try_clone().unwrap(), leader);
    let lanes = std::env::var(LANES).unwrap();
    serve(&fabric(&lanes), process.parse().unwrap(), lines);
}

/// Of the ranks of a node, some talk to each other through shared memory.
fn fabric(lanes: &str) -> Fabric {
    let lanes: Vec<String> = lanes.split(',').map(str::to_owned).collect();
    let fabric = Fabric::new("two machines", move |rank| {
        let place = rank / 2;
        let settings = settings(&[
            ("FERRO_SHM", ["on", "off"][place % 2]),
            ("FERRO_LANE", &lanes[place % lanes.len()]),
        ]);
        let provider = VerbsProvider::new();
        let found = provider.discover(&settings);
        let info = found.candidates.first();
        let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
        provider.open(info, &settings).unwrap()
    });
    fabric
        .with_thresholds(&[8, 48, 196, 480, 488, 4064, 8120, 262_144])
        .with_patience(Duration::from_secs(60))
}

fn random_programs(lanes: &str, cases: u32) {
    if Rig::open().is_some() {
        match node() {
            0 => lead(lanes, cases),
            _ => follow(lanes),
        }
    }
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    random_programs("rc", 15);
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
#[file_serial(verbs)]
fn random_programs_over_lanes_of_all_kinds_do_as_the_model() {
    random_programs(ALL_KINDS, 15);
}

#[test]
#[ignore = "soak: hundreds of programs"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    random_programs("rc", 250);
    random_programs(ALL_KINDS, 250);
}
