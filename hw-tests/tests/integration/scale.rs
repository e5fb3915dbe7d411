//! One endpoint with few peers and with many: receive memory and descriptors are the same, and a
//! peer costs its session.

use std::time::Instant;

use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PATIENCE, PeerProcess, succeeded};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-peer");

const FEW: usize = 2;

/// Peers are as small as they can be: it is not them who are measured.
const SMALL: &[(&str, &str)] = &[
    ("FERRO_SHM", "off"),
    ("FERRO_RX_BUFFERS", "16"),
    ("FERRO_EAGER", "512"),
];

/// Memory that a peer may cost us, in KiB. (The driver has a send queue for each connection
/// besides.)
const PER_PEER_KIB: usize = 20;

/// The resources of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Footprint {
    descriptors: usize,
    threads: usize,
    /// Registered with the device and so pinned by the kernel, in KiB.
    pinned_kib: usize,
    /// Receives that the shared queue holds.
    receives: u64,
}

fn status_of(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field));
    let number = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    number
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("{field}:\n{status}"))
}

impl Footprint {
    fn of(endpoint: &OwningEndpoint) -> Self {
        let stats = endpoint.stats().unwrap();
        let receives = stats
            .iter()
            .find(|(name, _)| *name == "verbs_receive_buffers");
        Self {
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count(),
            threads: status_of("Threads:"),
            pinned_kib: status_of("VmPin:"),
            receives: receives.unwrap().1,
        }
    }
}

/// Starts a process with `count` endpoints, each of which sends its address to the hub; the hub
/// answers each, and each confirms its answer. All connections are there at return.
fn join(hub: &mut OwningEndpoint, count: usize) -> PeerProcess {
    let mut peer = PeerProcess::start(PROGRAM, "many", SMALL, &[count as u64], &hub.name());
    for _ in 0..2 * count {
        hub.trecv(Buffer::new(64).unwrap(), FiAddr::UNSPEC, 0, u64::MAX, 0)
            .map_err(|(e, _)| e)
            .unwrap();
    }
    let began = Instant::now();
    peer.go();
    let (mut joined, mut answered, mut heard) = (0, 0, 0);
    while (joined, answered, heard) != (count, count, count) {
        assert!(
            began.elapsed() < PATIENCE,
            "of {count} peers {joined} have joined, {answered} were answered, {heard} have confirmed"
        );
        let Some(done) = hub.poll().unwrap() else {
            std::thread::yield_now();
            continue;
        };
        let completion = succeeded(done.outcome);
        match (done.token, completion.tag) {
            (0, 1) => {
                joined += 1;
                let addr = hub.av().insert(&done.buffer[..completion.len]).unwrap();
                hub.tsend(Buffer::new(8).unwrap(), 8, addr, 2, 1)
                    .map_err(|(e, _)| e)
                    .unwrap();
            }
            (0, _) => heard += 1,
            _ => answered += 1,
        }
    }
    peer
}

#[test]
#[file_serial(verbs)]
fn peers_take_no_receive_memory_and_no_descriptors() {
    compare(48);
}

#[test]
#[file_serial(verbs)]
#[ignore = "soak: as many processes' worth of endpoints take a minute to open"]
fn hundreds_of_peers_take_no_receive_memory() {
    compare(256);
}

/// Compares what this process has with few peers and with `peers`.
fn compare(peers: usize) {
    if Rig::open().is_none() {
        return;
    }
    let mut hub = party::endpoint(&[("FERRO_SHM", "off")]);
    // The memory that it takes to read the files is there from the beginning.
    let _ = (Footprint::of(&hub), status_of("RssAnon:"));
    // Descriptors of the pipe to the process are ours; each process has one.
    let few = join(&mut hub, FEW);
    let (with_few, anonymous) = (Footprint::of(&hub), status_of("RssAnon:"));
    let (all, mapped) = (status_of("VmRSS:"), status_of("VmSize:"));
    let many = join(&mut hub, peers - FEW);
    let mut with_many = Footprint::of(&hub);
    with_many.descriptors -= 1;
    // The workers for control verbs start with the first lanes, eight at most (ADR 59).
    let workers = with_many.threads.saturating_sub(with_few.threads);
    assert!(workers <= 8, "{with_many:?}");
    with_many.threads -= workers;
    // Many RC lanes have bounce buffers of their own.
    let pinned = with_many.pinned_kib - with_few.pinned_kib;
    assert!(pinned == 0 || (peers > 64 && pinned <= peers * PER_PEER_KIB));
    with_many.pinned_kib = with_few.pinned_kib;
    let more = (status_of("RssAnon:") - pinned).saturating_sub(anonymous);
    let (all, mapped) = (status_of("VmRSS:") - all, status_of("VmSize:") - mapped);
    println!("{FEW} peers: {with_few:?}; {peers} peers: {with_many:?}");
    let peers = peers - FEW;
    println!(
        "a peer: {:.1} KiB of our own memory, {:.1} KiB resident, {:.1} KiB mapped",
        more as f64 / peers as f64,
        all as f64 / peers as f64,
        mapped as f64 / peers as f64,
    );
    assert_eq!(with_many, with_few);
    assert!(
        more <= peers * PER_PEER_KIB,
        "{more} KiB for {peers} more peers"
    );
    drop((few, many));
}
