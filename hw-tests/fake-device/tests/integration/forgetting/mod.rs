//! Peers that come and go by the thousand: an endpoint keeps no more of ten times as many.
//!
//! The endpoint is a real one over the fake device. Its peers are scripted: each has the protocol's
//! own state machine, and all of them share two queue pairs, so that thousands cost no more than
//! memory.

mod scripted;

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_conformance::steady::{allocated_by_size, allocated_bytes};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_fake_device::control::{FakeDevice, ROCE};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_verbs::VerbsProvider;

use scripted::{PeerEnding, Scripted};

/// Peers of a round that are in the address vector: more than an endpoint may keep of those that are
/// gone, and in the soak many more.
const PEERS: [usize; 2] = [4_000, 10_000];

/// Unknown sources of a round.
const UNKNOWN: usize = 500;

const ROUNDS: usize = 10;

/// A wait that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The time in which the state of peers that are gone shrinks to its bound.
const SETTLING: Duration = Duration::from_secs(10);

/// An insertion that lasts so long beside a poll that stands waits for that poll.
const STANDING: Duration = Duration::from_secs(60);

/// Sessions that may be kept of peers that are gone, and that have only begun.
const MAY_BE_KEPT: u64 = 1024 + 1024;

fn endpoint() -> OwningEndpoint {
    let settings = [
        ("FERRO_SHM", "off"),
        ("FERRO_DEVICE", ROCE),
        ("FERRO_LANE", "ud"),
    ];
    let settings = ferrofabric_conformance::limits::settings(&settings);
    let found = VerbsProvider::new().discover(&settings);
    let domain = VerbsProvider::new()
        .open(&found.candidates[0], &settings)
        .unwrap();
    OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap()
}

fn stat(endpoint: &OwningEndpoint, name: &str) -> u64 {
    let stats = endpoint.stats().unwrap();
    stats.iter().find(|(n, _)| *n == name).unwrap().1
}

/// The endpoint, and all who come.
struct HubAndPeers {
    hub: OwningEndpoint,
    others: Scripted,
    peers: usize,
}

impl HubAndPeers {
    /// Drives both sides until it is so. Says how many operations are over, which have all
    /// succeeded.
    fn until(&mut self, what: &str, mut so: impl FnMut(&Self, usize) -> bool) -> usize {
        let begun = Instant::now();
        let mut over = 0;
        while !so(self, over) {
            over += usize::from(self.step());
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: {over} operations are over, {} are here",
                self.others.here()
            );
        }
        over
    }

    fn step(&mut self) -> bool {
        self.others.drive();
        match self.hub.poll().unwrap() {
            Some(done) => {
                assert!(done.outcome.is_ok(), "{:?}", done.outcome);
                true
            }
            None => false,
        }
    }

    /// A round: peers are inserted, get a message each, and go, half of them because they close and
    /// half because they are removed; unknown sources begin a connection, and half of these never
    /// end what they began.
    fn round(&mut self, number: usize) {
        let first = number * (self.peers + UNKNOWN) + 1;
        let names: Vec<NativeAddr> = (first..first + self.peers)
            .map(|at| self.others.add(at as u64, PeerEnding::of(at)))
            .collect();
        let mut addrs = Vec::with_capacity(self.peers);
        let mut over = 0;
        for (at, name) in names.iter().enumerate() {
            let addr = self.hub.av().insert(&name.to_bytes()).unwrap();
            addrs.push(addr);
            let tag = (first + at) as u64;
            let mut buffer = Buffer::new(8).unwrap();
            while let Err((error, back)) = self.hub.tsend(buffer, 8, addr, tag, tag) {
                assert!(matches!(error, OpError::Again), "{error:?}");
                buffer = back;
                over += usize::from(self.step());
            }
            over += usize::from(self.step());
        }
        self.until("messages", |this, more| over + more == this.peers);
        for at in 0..UNKNOWN {
            // Those that say hello alone come in the first two rounds. The endpoint answers them
            // for as long as there are not many more.
            let end = match number < 2 {
                true => PeerEnding::Silent,
                false => PeerEnding::Unknown,
            };
            self.others.come((first + self.peers + at) as u64, end);
            self.step();
        }
        self.others.close_those_that_close();
        for addr in addrs {
            self.hub.av().remove(addr).unwrap();
            self.step();
        }
        self.others.begin_to_probe();
        // Peers answer until the endpoint has no lane to any of them, too.
        self.until("peers that leave", |this, _| {
            this.others.here() == 0 && stat(&this.hub, "verbs_peers_unlisted_now") == 0
        });
        self.others.forget_all();
        let begun = Instant::now();
        while stat(&self.hub, "verbs_sessions_now") > MAY_BE_KEPT && begun.elapsed() < SETTLING {
            assert!(!self.step());
        }
    }

    /// Whether an insertion ends while another thread has the lock of the domain.
    fn inserts_beside_a_poll(&mut self, device: &FakeDevice, number: u64) -> bool {
        let name = self.others.add(number, PeerEnding::Removed).to_bytes();
        let av = self.hub.av().clone();
        let (polling, over, inserted) = (
            AtomicI32::new(0),
            AtomicBool::new(false),
            AtomicBool::new(false),
        );
        let hub = &mut self.hub;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: takes nothing.
                polling.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                while !over.load(Ordering::SeqCst) {
                    assert!(hub.poll().unwrap().is_none());
                }
            });
            while polling.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            device.stop_polls(Some(polling.load(Ordering::SeqCst)));
            while !device.poll_stands() {
                std::thread::yield_now();
            }
            let inserting = scope.spawn(|| {
                let addr: FiAddr = av.insert(&name).unwrap();
                inserted.store(true, Ordering::SeqCst);
                addr
            });
            let begun = Instant::now();
            while !inserted.load(Ordering::SeqCst) && begun.elapsed() < STANDING {
                std::thread::yield_now();
            }
            let beside = inserted.load(Ordering::SeqCst);
            device.stop_polls(None);
            over.store(true, Ordering::SeqCst);
            let addr = inserting.join().unwrap();
            av.remove(addr).unwrap();
            beside
        })
    }
}

/// Covers: AV-17
#[test]
fn peers_that_come_and_go_leave_nothing_behind() {
    let device = FakeDevice::take();
    let hub = endpoint();
    let others = Scripted::new(&hub.name());
    let peers = PEERS[usize::from(std::env::var_os("FERRO_SOAK").is_some())];
    let mut party = HubAndPeers { hub, others, peers };
    let mut live = Vec::new();
    for round in 0..ROUNDS {
        let begun = Instant::now();
        party.round(round);
        live.push(allocated_bytes());
        println!(
            "round {}: {} bytes, {} sessions, {:?}",
            round + 1,
            live[round],
            stat(&party.hub, "verbs_sessions_now"),
            begun.elapsed()
        );
        let sizes: Vec<_> = allocated_by_size()
            .filter(|(_, bytes)| *bytes >= 1 << 16)
            .collect();
        println!("  {sizes:?}");
    }
    // Packets that have come already are taken: none of them makes a peer that waits for its entry.
    for _ in 0..1000 {
        assert!(!party.step());
    }
    assert_eq!(stat(&party.hub, "verbs_peers_unlisted_now"), 0);
    // The transport may learn of the first insertion at once; it then finds that no operation waits
    // for this address.
    let number = (ROUNDS * (peers + UNKNOWN)) as u64;
    let name = party.others.add(number + 1, PeerEnding::Removed);
    party.hub.av().insert(&name.to_bytes()).unwrap();
    let beside = party.inserts_beside_a_poll(&device, number + 2);
    let (second, last) = (live[1], live[ROUNDS - 1]);
    println!(
        "the last round has {last} bytes, the second {second}; an insertion beside a poll ends: {beside}"
    );
    assert!(
        last <= second + second / 20,
        "{last} bytes after {ROUNDS} rounds, {second} after two"
    );
    assert!(beside, "an insertion waits for the lock of the domain");
    drop(party);
    assert_eq!(device.misuse(), "");
}
