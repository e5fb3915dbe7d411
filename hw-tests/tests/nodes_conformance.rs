//! The conformance suite's random programs between two machines: run with `scripts/vm --nodes 2`, both run this same program.

#![allow(missing_docs, clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::model::{self, run::Lines};
use ferrofabric_core::fabric::Provider;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::PATIENCE;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Where node 0 listens.
const PORT: u16 = 7472;

/// Which node this is, and the way to the other.
fn meet() -> (usize, Lines<TcpStream>) {
    let node = std::env::var("FERRO_NODE").expect("FERRO_NODE");
    let node: usize = node.parse().unwrap();
    let stream = match node {
        0 => {
            let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
            listener.accept().unwrap().0
        }
        _ => connect(),
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    (node, Lines::new(stream.try_clone().unwrap(), stream))
}

fn connect() -> TcpStream {
    let peer = std::env::var("FERRO_PEER_IP").expect("FERRO_PEER_IP");
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer.as_str(), PORT)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "connect to {peer}: {error}"),
        }
        // The other machine may still be booting; a refused connection comes back at once.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

/// Of the ranks of a node, some talk to each other through shared memory.
fn fabric() -> Fabric {
    let fabric = Fabric::new("two machines", |rank| {
        let settings = settings(&[("FERRO_SHM", ["on", "off"][rank / 2 % 2])]);
        let provider = VerbsProvider::new();
        let found = provider.discover(&settings);
        let info = found.candidates.first();
        let info = info.unwrap_or_else(|| panic!("no verbs domain: {:?}", found.notices));
        provider.open(info, &settings).unwrap()
    });
    fabric
        .with_thresholds(&[8, 48, 196, 480, 488, 8192, 262_144])
        .with_patience(Duration::from_secs(60))
}

fn random_programs(cases: u32) {
    if Rig::open().is_some() {
        let (node, mut other) = meet();
        model::random_programs_between(&fabric(), node, &mut other, cases);
    }
}

/// Covers: PEER-8, PEER-9, PEER-10, PEER-13
#[test]
#[file_serial(verbs)]
fn random_programs_do_as_the_model() {
    random_programs(25);
}

#[test]
#[ignore = "soak: hundreds of programs"]
#[file_serial(verbs)]
fn many_random_programs_do_as_the_model() {
    random_programs(500);
}
