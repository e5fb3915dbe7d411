//! Peers that are removed from an address vector: the segment is freed once neither side has more
//! to send, and a new one is made for the next message.

use crate::{owner, party};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use ferrofabric_av::{AvAttr, AvTable};
use ferrofabric_conformance::ends::{QueuedEndpoint, any_tagged};
use ferrofabric_conformance::fabric::Fabric;
use ferrofabric_conformance::limits::settings;
use ferrofabric_conformance::removals::come_and_go;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{FiAddr, MrDesc, MsgKind, SendOp};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_shm::{Cma, ShmConfig, ShmProvider};
use owner::Ep;
use party::{ChildProcess, await_line, print_line, role};

const TIMEOUT: Duration = Duration::from_secs(60);

/// Serializes the tests, which count the segments of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn open() -> Ep {
    Ep::open(ShmConfig {
        cma: Cma::Off,
        ..ShmConfig::default()
    })
}

/// Segments that this process has mapped (each side maps its own), and its descriptors.
fn counts() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let segments = maps.matches("/memfd:ferrofabric-pair").count();
    (
        segments,
        std::fs::read_dir("/proc/self/fd").unwrap().count(),
    )
}

/// Drives endpoints without operations until a condition is fulfilled.
fn idle_until(eps: &mut [&mut Ep], what: &str, reached: impl Fn(&[&mut Ep]) -> bool) {
    let begun = Instant::now();
    while !reached(eps) {
        for ep in eps.iter_mut() {
            assert!(ep.poll().is_none(), "nothing was to complete");
        }
        assert!(begun.elapsed() < TIMEOUT, "{what}: {:?}", counts());
        std::thread::yield_now();
    }
}

/// Sends a message, receives and compares it; returns its source.
fn send(from: &mut Ep, to: FiAddr, into: &mut Ep, bytes: usize, tag: u64) -> FiAddr {
    let out: Vec<u8> = (0..bytes).map(|at| (at as u64 ^ tag) as u8).collect();
    let mut buffer = vec![0; bytes];
    into.trecv(tag, 0, &mut buffer, 1);
    from.tsend(to, tag, &out, 2).unwrap();
    let (mut sent, mut came) = (false, None);
    let begun = Instant::now();
    while !sent || came.is_none() {
        sent |= from.poll().map(Result::unwrap).is_some();
        came = came.or(into.poll().map(Result::unwrap));
        assert!(begun.elapsed() < TIMEOUT, "sent {sent}, came {came:?}");
    }
    assert_eq!(buffer, out);
    came.unwrap().src
}

struct RemovalPair {
    a: Ep,
    b: Ep,
    to_a: FiAddr,
    to_b: FiAddr,
}

impl RemovalPair {
    fn connected() -> Self {
        let (mut a, mut b) = (open(), open());
        let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
        let mut this = Self { a, b, to_a, to_b };
        this.exchange(8, 1);
        this
    }

    fn exchange(&mut self, bytes: usize, tag: u64) {
        assert_eq!(
            send(&mut self.a, self.to_b, &mut self.b, bytes, tag),
            self.to_a
        );
        assert_eq!(
            send(&mut self.b, self.to_a, &mut self.a, bytes, tag),
            self.to_b
        );
    }

    fn until_left(&mut self) {
        idle_until(&mut [&mut self.a, &mut self.b], "the segment stays", |_| {
            counts().0 == 0
        });
    }
}

/// Covers: AV-17
#[test]
fn a_removed_peer_loses_its_segment() {
    let _alone = alone();
    let mut pair = RemovalPair::connected();
    assert_eq!(counts().0, 2);
    for (round, bytes) in [8, 5000, 400_000].into_iter().enumerate() {
        let tag = 10 * round as u64;
        pair.a.remove(pair.to_b);
        pair.until_left();
        // The other side has not removed this one: it may go on sending.
        let from = send(&mut pair.b, pair.to_a, &mut pair.a, bytes, tag + 2);
        assert_eq!(from, FiAddr::NOTAVAIL);
        assert_eq!(counts().0, 2);
        pair.until_left();
        pair.to_b = pair.a.insert(&pair.b.name());
        pair.exchange(bytes, tag + 3);
    }
    assert_eq!(
        pair.a.shm.stats().links_failed + pair.b.shm.stats().links_failed,
        0
    );
}

/// Covers: AV-17
#[test]
fn peers_that_remove_each_other() {
    let _alone = alone();
    let mut pair = RemovalPair::connected();
    for tag in 0..2 {
        pair.a.remove(pair.to_b);
        pair.b.remove(pair.to_a);
        pair.until_left();
        pair.to_b = pair.a.insert(&pair.b.name());
        pair.to_a = pair.b.insert(&pair.a.name());
        pair.exchange(100_000, 10 + tag);
    }
}

/// An endpoint that sends to itself has a segment, too.
///
/// Covers: AV-17
#[test]
fn an_endpoint_that_removes_itself() {
    let _alone = alone();
    let mut ep = open();
    for tag in 0..2 {
        let me = ep.insert(&ep.name());
        let mut into = [0; 8];
        ep.trecv(tag, 0, &mut into, 1);
        ep.tsend(me, tag, &[7; 8], 2).unwrap();
        ep.wait().unwrap();
        ep.wait().unwrap();
        assert_eq!((into, counts().0), ([7; 8], 1));
        ep.remove(me);
        idle_until(&mut [&mut ep], "the segment stays", |_| counts().0 == 0);
    }
}

/// A link with a message that has no receive yet, or that is incomplete, is not closed.
///
/// Covers: AV-17
#[test]
fn a_message_under_way_keeps_the_segment() {
    let _alone = alone();
    for bytes in [8, 400_000] {
        let mut pair = RemovalPair::connected();
        let out = vec![5; bytes];
        pair.b.tsend(pair.to_a, 77, &out, 2).unwrap();
        while pair.a.shm.stats().unexpected == 0 {
            pair.a.progress();
            pair.b.progress();
        }
        if bytes == 8 {
            pair.b.wait().unwrap();
        }
        pair.a.remove(pair.to_b);
        // Without the message it would have been closed after two looks.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(4) {
            assert!(pair.a.poll().is_none() && pair.b.poll().is_none());
        }
        assert_eq!(
            counts().0,
            2,
            "the segment is gone with {bytes} bytes in it"
        );
        let mut into = vec![0; bytes];
        pair.a.trecv(77, 0, &mut into, 1);
        let mut left = if bytes == 8 { 1 } else { 2 };
        while left > 0 {
            left -= [&mut pair.a, &mut pair.b]
                .into_iter()
                .filter_map(Ep::poll)
                .map(Result::unwrap)
                .count();
        }
        assert_eq!(into, out);
        pair.until_left();
    }
}

/// A receive from a peer that removed this endpoint fails when that peer closes, with or without a
/// segment.
///
/// Covers: AV-17
#[test]
fn a_receive_from_a_peer_without_a_segment_fails_with_the_peer() {
    let _alone = alone();
    let mut pair = RemovalPair::connected();
    pair.a.remove(pair.to_b);
    pair.until_left();
    let mut into = [0; 8];
    pair.b
        .recv_from(MsgKind::Tagged, pair.to_a, 1, 0, &mut into, 3);
    let RemovalPair { a, mut b, .. } = pair;
    drop(a);
    let error = b.wait().unwrap_err();
    assert_eq!(
        (error.errno, error.completion.context),
        (Errno::ECONNRESET, 3)
    );
}

/// An address is removed and inserted while messages are under way, and while a request to close
/// the link is unanswered: each message arrives, once.
///
/// Covers: AV-17
#[test]
fn an_address_that_comes_and_goes_under_traffic() {
    let _alone = alone();
    let mut pair = RemovalPair::connected();
    for tag in 0..200 {
        for _ in 0..3 {
            pair.a.remove(pair.to_b);
            pair.to_b = pair.a.insert(&pair.b.name());
        }
        pair.exchange([8, 3000, 100_000][tag as usize % 3], 10 + tag);
    }
    assert_eq!(counts().0, 2);
    for tag in 0..3 {
        // Only `a` is driven until it has requested the close; its sends then wait for the answer.
        pair.a.remove(pair.to_b);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(2500) {
            assert!(pair.a.poll().is_none());
        }
        pair.to_b = pair.a.insert(&pair.b.name());
        if tag == 1 {
            // The other side has a message to send when the request arrives.
            assert_eq!(
                send(&mut pair.b, pair.to_a, &mut pair.a, 100_000, 500),
                pair.to_b
            );
        }
        pair.exchange(50_000, 600 + tag);
    }
    assert_eq!(
        pair.a.shm.stats().links_failed + pair.b.shm.stats().links_failed,
        0
    );
}

/// Covers: AV-17, AV-23
#[test]
fn peers_come_and_go() {
    let _alone = alone();
    for cma in ["off", "on"] {
        for (peers, rounds) in [(4, 50), (50, 1)] {
            let fabric = Fabric::new("shared memory", move |_| domain(cma));
            come_and_go(&fabric, peers, rounds, counts);
        }
    }
}

fn domain(cma: &str) -> Arc<dyn Domain> {
    let (provider, settings) = (ShmProvider::new(), settings(&[("FERRO_SHM_CMA", cma)]));
    let found = provider.discover(&settings);
    provider.open(&found.candidates[0], &settings).unwrap()
}

/// The child processes: each changes an address vector by commands until it is killed.
#[test]
#[ignore = "run by the other tests, in processes of their own"]
fn party() {
    let Some(shared) = role() else { return };
    let av = AvTable::open(&named(&shared), &await_line()).unwrap();
    loop {
        let line = await_line();
        let (what, addr) = line.split_once(' ').unwrap();
        let addr = FiAddr(addr.parse().unwrap());
        let name = av.lookup(addr).unwrap();
        av.remove(addr).unwrap();
        match what {
            "remove" => print_line("removed"),
            "replace" => print_line(av.insert(&name).unwrap().addr.0),
            other => panic!("unknown command {other}"),
        }
    }
}

fn named(name: &str) -> AvAttr {
    AvAttr {
        name: Some(name.to_owned()),
        ..AvAttr::default()
    }
}

/// An endpoint on a named address vector, its peers on their own ones, and another process that
/// changes the named one.
struct Followed {
    hub: QueuedEndpoint,
    peers: Vec<QueuedEndpoint>,
    to_peers: Vec<FiAddr>,
    other: ChildProcess,
}

impl Followed {
    /// All peers are connected.
    fn connected(name: &str, peers: usize) -> Self {
        let shared = format!("{name} {}", std::process::id());
        let (ours, theirs) = (domain("off"), domain("off"));
        let hub = QueuedEndpoint::open_with(&*ours, &named(&shared), |_| {});
        let peers: Vec<_> = (0..peers).map(|_| QueuedEndpoint::open(&*theirs)).collect();
        let mut other = ChildProcess::start(&shared);
        other.write_line(&ours.info().domain.name);
        let to_peers = peers.iter().map(|peer| {
            let name = peer.endpoint.name().to_bytes();
            hub.av.insert(&name).unwrap()
        });
        let this = Self {
            to_peers: to_peers.collect(),
            hub,
            peers,
            other,
        };
        for at in 0..this.peers.len() {
            this.exchange(at);
        }
        assert_eq!(counts().0, 2 * this.peers.len());
        this
    }

    /// A message from the hub, and one to it.
    fn exchange(&self, at: usize) {
        let (hub, peer) = (&self.hub, &self.peers[at]);
        let to_hub = peer.av.insert(&hub.endpoint.name().to_bytes()).unwrap();
        let ways = [(hub, peer, self.to_peers[at]), (peer, hub, to_hub)];
        for (from, to, dest) in ways {
            let recv = any_tagged(to.context());
            to.recv(&recv, &[to.memory(8, 0)]).unwrap();
            let send = SendOp {
                kind: MsgKind::Tagged,
                dest,
                tag: 0,
                data: 0,
                desc: MrDesc::NONE,
                context: from.context(),
                flags: Flags::COMPLETION,
            };
            from.send(to, send, 8, 1);
            let mut came = None;
            self.until("a message does not come", || {
                came = came.take().or_else(|| to.rx.take());
                came.is_some()
            });
            let source = match std::ptr::eq(to, hub) {
                true => self.to_peers[at],
                false => to_hub,
            };
            assert_eq!(came.unwrap().unwrap().src, source);
        }
    }

    fn until(&self, what: &str, mut reached: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !reached() {
            for end in self.peers.iter().chain([&self.hub]) {
                end.tx.pump();
                end.rx.pump();
            }
            assert!(begun.elapsed() < TIMEOUT, "{what}: {:?}", counts());
            std::thread::yield_now();
        }
    }
}

/// Another process removes the peers from the address vector that it shares with an endpoint, and
/// is killed: their segments are freed, as if the endpoint's own process had removed them.
///
/// Covers: AV-4, AV-17
#[test]
fn removals_by_another_process_free_the_segments() {
    let _alone = alone();
    let mut followed = Followed::connected("removed", 5);
    for addr in &followed.to_peers {
        followed.other.write_line(&format!("remove {}", addr.0));
        assert_eq!(followed.other.read_line(), "removed");
    }
    followed.other.kill();
    followed.until("the segments stay", || counts().0 == 0);
}

/// Another process removes a peer and inserts it again, before this process has followed: the
/// segment stays, its messages have the new address, and sends to the removed one are refused.
///
/// Covers: AV-4, AV-17, AV-23
#[test]
fn a_peer_that_another_process_reinserts_stays_connected() {
    let _alone = alone();
    let mut followed = Followed::connected("replaced", 2);
    let links = |end: &QueuedEndpoint| {
        let stats = end.endpoint.stats().unwrap();
        let links = stats.into_iter().find(|(name, _)| *name == "shm_links");
        links.unwrap().1
    };
    let before = links(&followed.hub);
    for _ in 0..50 {
        let old = followed.to_peers[0];
        followed.other.write_line(&format!("replace {}", old.0));
        followed.to_peers[0] = FiAddr(followed.other.read_line().parse().unwrap());
        assert_ne!(followed.to_peers[0], old);
        assert_eq!(
            followed.hub.av.lookup(old).map_err(|e| e.errno()),
            Err(Errno::EINVAL)
        );
        followed.exchange(0);
        followed.exchange(1);
    }
    assert_eq!(links(&followed.hub), before, "it was connected anew");
}

/// Another process removes two peers and inserts the second again, in the entry of the first: that
/// entry belongs to the second peer from then on.
///
/// Covers: AV-4, AV-17
#[test]
fn a_peer_that_another_process_moves_has_its_new_address() {
    let _alone = alone();
    let mut followed = Followed::connected("moved", 2);
    followed
        .other
        .write_line(&format!("remove {}", followed.to_peers[0].0));
    assert_eq!(followed.other.read_line(), "removed");
    followed
        .other
        .write_line(&format!("replace {}", followed.to_peers[1].0));
    followed.to_peers[1] = FiAddr(followed.other.read_line().parse().unwrap());
    assert_eq!(followed.to_peers[1].0 as u32, 0, "it is in the first entry");
    followed.exchange(1);
}
