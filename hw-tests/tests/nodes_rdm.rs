//! RDM endpoints on two machines: run with `scripts/vm --nodes 2`, both run this same program.

#![allow(missing_docs, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use ferrofabric_core::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_core::owning::{Buffer, OwningEndpoint};
use ferrofabric_core::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, Numbers, PATIENCE, fill, is_filled, succeeded, wait};
use serial_test::file_serial;

/// The node that listens, and its port.
const PORT: u16 = 7471;

/// Which node this is, and a stream to the other.
fn meet() -> (u64, TcpStream) {
    let node: u64 = std::env::var("FERRO_NODE")
        .expect("FERRO_NODE")
        .parse()
        .unwrap();
    let peer = std::env::var("FERRO_PEER_IP").expect("FERRO_PEER_IP");
    if node == 0 {
        return (
            node,
            TcpListener::bind(("0.0.0.0", PORT))
                .unwrap()
                .accept()
                .unwrap()
                .0,
        );
    }
    let until = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect((peer.as_str(), PORT)) {
            Ok(stream) => return (node, stream),
            Err(error) => assert!(Instant::now() < until, "connect to {peer}: {error}"),
        }
        // The other machine may still be booting; a refused connection comes back at once.
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

fn exchange_names(stream: &mut TcpStream, endpoint: &OwningEndpoint) -> FiAddr {
    stream.write_all(&endpoint.name().to_bytes()).unwrap();
    let mut name = [0; NATIVE_LEN];
    stream.read_exact(&mut name).unwrap();
    let other = NativeAddr::from_bytes(&name).unwrap();
    assert_ne!(
        other.node,
        endpoint.name().node,
        "two machines are two nodes"
    );
    endpoint.av().insert(&name).unwrap()
}

#[test]
#[file_serial(verbs)]
fn two_machines_exchange_messages_of_all_sizes() {
    if Rig::open().is_none() {
        return;
    }
    const COUNT: u64 = 200;
    let mut endpoint = party::endpoint(&[]);
    let (node, mut stream) = meet();
    let other = exchange_names(&mut stream, &endpoint);
    let sizes = |node: u64| {
        let mut numbers = Numbers(node);
        (0..COUNT).map(move |i| match i {
            0 => 0,
            1 => 8 << 20,
            _ => numbers.size(0, 200_000),
        })
    };
    let (mut sent, mut received) = (0, 0);
    let mut outgoing = sizes(node);
    let incoming: Vec<usize> = sizes(1 - node).collect();
    for i in 0..COUNT {
        let into = Buffer::new(incoming[i as usize]).unwrap();
        endpoint.trecv(into, other, i, 0, i).unwrap();
    }
    let mut in_flight = 0;
    while sent < COUNT || received < COUNT {
        while in_flight < 8 {
            let Some(len) = outgoing.next() else { break };
            let mut out = Buffer::new(len).unwrap();
            let number = sent + in_flight;
            fill(&mut out, node << 32 | number);
            endpoint.tsend(out, len, other, number, COUNT).unwrap();
            in_flight += 1;
        }
        let done = wait(&mut endpoint);
        let completion = succeeded(done.outcome);
        if done.token == COUNT {
            sent += 1;
            in_flight -= 1;
        } else {
            assert_eq!(completion.len, incoming[done.token as usize]);
            assert!(is_filled(&done.buffer, (1 - node) << 32 | done.token));
            received += 1;
        }
    }
    let stats = endpoint.stats().unwrap();
    let shm = stats
        .iter()
        .find(|(name, _)| *name == "shm_messages_sent")
        .map_or(0, |(_, n)| *n);
    assert_eq!(
        shm, 0,
        "nothing goes through shared memory between machines"
    );
    // Neither closes before the other has everything.
    stream.write_all(b".").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}
