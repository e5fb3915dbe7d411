//! Address handles: peers with unknown hardware addresses, on a Soft-RoCE device over a veth pair
//! whose far end is another network namespace that answers only when the test lets it; and a
//! thousand nodes, on a device over a link to nowhere.

use std::collections::HashSet;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_contracts::addr::{NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::info::EpType;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::cold_link::{ColdLink, NODES, address, run};
use ferrofabric_hw_tests::dgram::{PATIENCE, count, infos, next, open};
use ferrofabric_runtime::fabric::Domain;
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

/// As many handles are made at a time, at most.
const RESOLVERS: usize = 64;

/// Addresses of endpoints on those nodes, made from one that is here.
fn names(here: &NativeAddr) -> Vec<NativeAddr> {
    let at = |node: u64| NativeAddr {
        node: here.node ^ node,
        shm: None,
        incarnation: here.incarnation ^ node,
        verbs: here.verbs.map(|verbs| VerbsAddr {
            gid: address(node).to_ipv6_mapped().octets(),
            ..verbs
        }),
    };
    (1..=NODES).map(at).collect()
}

/// Neighbours that the kernel has on that link.
fn neighbours() -> usize {
    let output = Command::new("ip")
        .args(["neigh", "show", "dev", "ferro-near"])
        .output();
    let output = output.unwrap().stdout;
    let text = String::from_utf8(output).unwrap();
    text.lines()
        .filter(|line| line.starts_with("10.9.1."))
        .count()
}

/// Threads of this process that make handles.
fn resolvers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    tasks
        .filter_map(|task| name(task.unwrap()).ok())
        .filter(|name| name.trim_end() == "ferro-resolve")
        .count()
}

fn domain(device: &str, of: EpType) -> Arc<dyn Domain> {
    let offers = infos(&[("FERRO_SHM", "off")]);
    let offer = offers.into_iter().find(|info| {
        let nic = info.nic.as_ref();
        info.ep.ep_type == of && info.mode.is_empty() && nic.is_some_and(|nic| nic.device == device)
    });
    open(&offer.unwrap())
}

fn insert(endpoint: &OwningEndpoint, names: &[NativeAddr]) -> Vec<FiAddr> {
    let insert = |name: &NativeAddr| endpoint.av().insert(&name.to_bytes()).unwrap();
    names.iter().map(insert).collect()
}

/// Messages of an endpoint to itself, which goes a way that is known.
fn talk_to_itself(endpoint: &mut OwningEndpoint, own: FiAddr, messages: u64) {
    for token in (0..messages).map(|i| 1000 + i) {
        let buffer = Buffer::new(8).unwrap();
        endpoint.recv(buffer, FiAddr::UNSPEC, token).unwrap();
        endpoint.inject(&token.to_le_bytes(), own, None).unwrap();
        let done = next(endpoint, "a message to oneself");
        assert_eq!(
            (done.token, &done.buffer[..]),
            (token, &token.to_le_bytes()[..])
        );
    }
}

/// Inserting waits for no peer; a message waits in line for its own peer alone, while the endpoint
/// resolves as many neighbours side by side as its limit allows.
///
/// Covers: AV-24
#[test]
#[file_serial(verbs)]
fn datagrams_wait_for_their_own_neighbour() {
    if Rig::open().is_none() {
        return;
    }
    let link = ColdLink::up();
    let domain = domain("ferro_cold", EpType::Dgram);
    let mut endpoint = OwningEndpoint::open(&*domain, &Default::default()).unwrap();
    let own = endpoint.av().insert(&endpoint.name().to_bytes()).unwrap();
    talk_to_itself(&mut endpoint, own, 1);
    let peers = insert(&endpoint, &names(&endpoint.name()));
    assert_eq!(
        (neighbours(), resolvers()),
        (0, 0),
        "inserting asks for nobody"
    );

    for (token, peer) in (0..).zip(&peers) {
        let buffer = Buffer::new(8).unwrap();
        endpoint.send(buffer, 8, *peer, None, token).unwrap();
    }
    talk_to_itself(&mut endpoint, own, 20);
    let until = Instant::now() + PATIENCE;
    while neighbours() < RESOLVERS {
        assert!(
            Instant::now() < until,
            "{} neighbours are being resolved",
            neighbours()
        );
    }
    assert!(resolvers() <= RESOLVERS, "{} at a time", resolvers());

    link.answer();
    let mut reached = HashSet::new();
    while reached.len() < peers.len() {
        let done = next(&mut endpoint, "a datagram to a node that answers now");
        match done.outcome {
            Ok(_) => assert!(reached.insert(done.token), "{} is over twice", done.token),
            // The kernel asked for this neighbour before the far end answered, until it gave up.
            // Now it may be tried again.
            Err(_) => {
                let to = peers[usize::try_from(done.token).unwrap()];
                endpoint.send(done.buffer, 8, to, None, done.token).unwrap();
            }
        }
    }
    assert_eq!(count(&endpoint, "dgram_handles_now"), NODES + 1);
    talk_to_itself(&mut endpoint, own, 20);
}

/// The same for reliable messages: those to a peer that answers go, the others wait, and end when
/// the endpoint does.
#[test]
#[file_serial(verbs)]
fn reliable_messages_wait_for_their_own_neighbour() {
    if Rig::open().is_none() {
        return;
    }
    let _link = ColdLink::up();
    let domain = domain("ferro_cold", EpType::Rdm);
    let open = || OwningEndpoint::open(&*domain, &Default::default()).unwrap();
    let (mut a, mut b) = (open(), open());
    let cold = insert(&a, &names(&a.name()));
    let warm = a.av().insert(&b.name().to_bytes()).unwrap();
    for (token, peer) in (0..).zip(&cold) {
        a.send(Buffer::new(8).unwrap(), 8, *peer, None, token)
            .unwrap();
    }
    for token in 0..100u64 {
        b.recv(Buffer::new(8).unwrap(), FiAddr::UNSPEC, token)
            .unwrap();
        a.inject(&token.to_le_bytes(), warm, None).unwrap();
        let until = Instant::now() + PATIENCE;
        let done = loop {
            assert!(
                Instant::now() < until,
                "the peer that answers is not reached"
            );
            // Progress is manual.
            if let Some(done) = a.poll().unwrap() {
                panic!("{done:?} though its node does not answer");
            }
            if let Some(done) = b.poll().unwrap() {
                break done;
            }
        };
        assert_eq!(
            (done.token, &done.buffer[..]),
            (token, &token.to_le_bytes()[..])
        );
    }
    assert_eq!(a.in_flight(), cold.len());
    drop(a);
    assert_eq!(b.in_flight(), 0);
}

/// A link that takes packets for any node without resolving hardware addresses.
struct Nowhere;

impl Nowhere {
    fn up() -> Self {
        drop(Nowhere);
        let link = Nowhere;
        run("ip link add ferro-nowhere type dummy
             ip addr add 10.8.0.1/16 dev ferro-nowhere
             ip link set ferro-nowhere up
             rdma link add ferro_nowhere type rxe netdev ferro-nowhere");
        link
    }
}

impl Drop for Nowhere {
    fn drop(&mut self) {
        let _ = Command::new("sh")
            .args([
                "-c",
                "rdma link del ferro_nowhere; ip link del ferro-nowhere",
            ])
            .output();
    }
}

/// Inserts `entries` addresses of a thousand nodes and sends to each.
fn a_thousand_nodes(entries: u32) {
    if Rig::open().is_none() {
        return;
    }
    const NODES: u32 = 1000;
    let _link = Nowhere::up();
    let domain = domain("ferro_nowhere", EpType::Dgram);
    let mut endpoint = OwningEndpoint::open(&*domain, &Default::default()).unwrap();
    let here = endpoint.name();
    let at = |entry: u32| {
        let node = (entry % NODES) as u16 + 256;
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 8, 0, 0)) + u32::from(node));
        NativeAddr {
            verbs: here.verbs.map(|verbs| VerbsAddr {
                gid: address.to_ipv6_mapped().octets(),
                qpn: 0x100 + entry / NODES,
                ..verbs
            }),
            ..here
        }
    };
    let addrs: Vec<FiAddr> = (0..entries)
        .map(|entry| endpoint.av().insert(&at(entry).to_bytes()).unwrap())
        .collect();
    assert_eq!(
        count(&endpoint, "dgram_handles_now"),
        0,
        "made on first use"
    );
    let mut free: Vec<Buffer> = (0..64).map(|_| Buffer::new(8).unwrap()).collect();
    let (mut sent, mut over) = (0, 0);
    let mut until = Instant::now() + PATIENCE;
    while over < addrs.len() {
        assert!(
            Instant::now() < until,
            "{over} of {sent} datagrams are over"
        );
        while sent < addrs.len() {
            let Some(buffer) = free.pop() else { break };
            match endpoint.send(buffer, 8, addrs[sent], None, 0) {
                Ok(()) => sent += 1,
                Err((error, buffer)) => {
                    assert_eq!(error, OpError::Again);
                    free.push(buffer);
                    break;
                }
            }
        }
        while let Some(done) = endpoint.poll().unwrap() {
            assert!(done.outcome.is_ok(), "{:?}", done.outcome);
            free.push(done.buffer);
            over += 1;
            until = Instant::now() + PATIENCE;
        }
    }
    assert_eq!(count(&endpoint, "dgram_handles_now"), u64::from(NODES));
}

/// Covers: AV-24
#[test]
#[file_serial(verbs)]
fn entries_of_a_thousand_nodes_share_a_thousand_handles() {
    a_thousand_nodes(4000);
}

/// Covers: AV-24
#[test]
#[ignore = "soak: a million entries"]
#[file_serial(verbs)]
fn a_million_entries_share_a_thousand_handles() {
    a_thousand_nodes(1_000_000);
}
