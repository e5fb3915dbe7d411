//! Memory of an address vector's entry over shared memory: while it is only inserted, and once a
//! message has gone to it, with everything that the two endpoints keep for each other.
//!
//! The figures are in docs/benchmarks.md. Each is the growth of the process's resident memory.

use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::{PATIENCE, settings};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;

const PEERS: usize = 200;

/// Limits in KiB for each pair: memory of the two sides' own, and shared memory.
const OWN_KIB: usize = 16;
const SHARED_KIB: usize = 256;

fn domain() -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[]));
    let found = provider.discover(&settings);
    let info = found.candidates.first().unwrap();
    provider.open(info, &settings).unwrap()
}

/// Resident memory of this process in KiB: its own, and that of segments.
fn resident() -> [usize; 2] {
    let of = |file: &str, field: &str| -> usize {
        let text = std::fs::read_to_string(file).unwrap();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(field)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    [
        of("/proc/self/smaps_rollup", "Anonymous:"),
        of("/proc/self/status", "RssShmem:"),
    ]
}

fn receive(peer: &mut OwningEndpoint) {
    let posted = peer.trecv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, 1, 0, 0);
    posted.map_err(|(error, _)| error).unwrap();
}

/// A message to each address, received by its peer.
fn greet(hub: &mut OwningEndpoint, addrs: &[FiAddr], peers: &mut [OwningEndpoint]) {
    for (addr, peer) in addrs.iter().zip(peers) {
        hub.tsend(Buffer::new(8).unwrap(), 8, *addr, 1, 0).unwrap();
        let (until, mut sent, mut received) = (Instant::now() + PATIENCE, false, false);
        while !sent || !received {
            sent |= hub.poll().unwrap().is_some_and(|done| done.outcome.is_ok());
            received |= peer
                .poll()
                .unwrap()
                .is_some_and(|done| done.outcome.is_ok());
            assert!(Instant::now() < until, "sent {sent}, received {received}");
        }
    }
}

#[test]
fn a_used_entry_takes_its_link_beside_itself() {
    let domain = domain();
    let open = || OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
    let mut hub = open();
    // One more pair does not count: it brings the memory that each process needs once.
    let mut peers: Vec<_> = (0..=PEERS).map(|_| open()).collect();
    peers.iter_mut().for_each(receive);
    let insert = |peer: &OwningEndpoint| hub.av().insert(&peer.name().to_bytes()).unwrap();
    let first = insert(&peers[0]);
    greet(&mut hub, &[first], &mut peers[..1]);
    let mut addrs = vec![FiAddr::NOTAVAIL; PEERS];
    let before = resident();
    for (addr, peer) in addrs.iter_mut().zip(&peers[1..]) {
        *addr = hub.av().insert(&peer.name().to_bytes()).unwrap();
    }
    assert!(hub.poll().unwrap().is_none());
    let inserted = resident();
    for (addr, peer) in addrs.iter().zip(&peers[1..]) {
        assert_eq!(hub.av().lookup(*addr).unwrap(), peer.name());
    }
    let looked_up = resident();
    greet(&mut hub, &addrs, &mut peers[1..]);
    let sent_to = resident();
    for (what, now) in [
        ("inserted", inserted),
        ("looked up", looked_up),
        ("sent to", sent_to),
    ] {
        let [own, shared] = [0, 1].map(|i| (now[i] - before[i]) as f64 / PEERS as f64);
        println!("{PEERS} entries {what}: {own:.2} KiB of both ends, {shared:.1} KiB shared, each");
    }
    assert!(sent_to[0] - before[0] <= PEERS * OWN_KIB);
    assert!(sent_to[1] - before[1] <= PEERS * SHARED_KIB);
}
