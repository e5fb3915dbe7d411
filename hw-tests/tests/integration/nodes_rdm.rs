//! RDM endpoints on two machines: run with `scripts/vm --nodes 2`, both run this same program.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use fastrand::Rng;
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PATIENCE, fill, is_filled, meet, size, succeeded, wait};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

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

/// The link to the other machine goes down for two seconds in the middle of a stream, long enough
/// for the queue pair to give up, and comes up again: every message arrives once, in order and
/// whole.
#[test]
#[file_serial(verbs)]
fn a_link_that_was_down_loses_nothing() {
    if Rig::open().is_none() {
        return;
    }
    const COUNT: u64 = 15_000;
    const DOWN_AT: u64 = 5000;
    const DOWN: Duration = Duration::from_secs(2);
    let size = |number: u64| if number % 50 == 0 { 40_000 } else { 512 };
    let mut endpoint = party::endpoint(&[]);
    let (node, mut stream) = meet();
    let other = exchange_names(&mut stream, &endpoint);
    if node == 0 {
        let mut link = None;
        for number in 0..COUNT {
            let len = size(number);
            let mut out = Buffer::new(len).unwrap();
            fill(&mut out, number);
            endpoint.tsend(out, len, other, number, number).unwrap();
            while endpoint.in_flight() >= 32 {
                succeeded(wait(&mut endpoint).outcome);
            }
            if number == DOWN_AT {
                link = Some(std::thread::spawn(|| {
                    set_link("down");
                    // The duration of the time without a link is the subject of the test.
                    std::thread::sleep(DOWN);
                    set_link("up");
                }));
            }
        }
        let until = Instant::now() + PATIENCE;
        while endpoint.in_flight() > 0 {
            assert!(
                Instant::now() < until,
                "{} sends under way",
                endpoint.in_flight()
            );
            succeeded(wait(&mut endpoint).outcome);
        }
        link.unwrap().join().unwrap();
        let stats = endpoint.stats().unwrap();
        let resumed = stats
            .iter()
            .find(|(name, _)| *name == "verbs_sessions_resumed");
        println!("{resumed:?}");
    } else {
        let begun = Instant::now();
        let mut arrivals = Vec::new();
        for number in 0..COUNT {
            let into = Buffer::new(size(number)).unwrap();
            endpoint.trecv(into, other, 0, u64::MAX, number).unwrap();
            let completion = wait(&mut endpoint);
            assert_eq!(succeeded(completion.outcome).tag, number);
            assert!(is_filled(&completion.buffer, number), "message {number}");
            arrivals.push(begun.elapsed());
        }
        let (at, gap) = (1..arrivals.len())
            .map(|at| (at, arrivals[at] - arrivals[at - 1]))
            .max_by_key(|(_, gap)| *gap)
            .unwrap();
        let rate = |from: usize, to: usize| {
            (to - from) as f64 / (arrivals[to - 1] - arrivals[from]).as_secs_f64()
        };
        // A second after the link came up.
        let up = arrivals[at - 1] + DOWN + Duration::from_secs(1);
        let later = arrivals.partition_point(|arrival| *arrival < up);
        println!(
            "message {at} came after {gap:?}; messages a second: {:.0} before, {:.0} after, {:.0} from a second after on \
             ({} messages)",
            rate(at / 5, at),
            rate(at, arrivals.len()),
            rate(later.min(arrivals.len() - 2), arrivals.len()),
            arrivals.len() - later,
        );
        assert!(
            gap >= DOWN / 2,
            "the link was not down: the longest gap was {gap:?}"
        );
    }
    stream.write_all(b".").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}

fn set_link(state: &str) {
    let device = std::env::var("FERRO_LINK").unwrap_or_else(|_| "eth0".to_owned());
    let status = std::process::Command::new("ip")
        .args(["link", "set", &device, state])
        .status()
        .unwrap();
    assert!(status.success(), "ip link set {device} {state}");
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
        let mut rng = Rng::with_seed(node);
        (0..COUNT).map(move |i| match i {
            0 => 0,
            1 => 8 << 20,
            _ => size(&mut rng, 0, 200_000),
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
            fill(&mut out, (node << 32) | number);
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
            assert!(is_filled(&done.buffer, ((1 - node) << 32) | done.token));
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
