//! The memory of an active pair of endpoints, both sides together: its segment, and the heap of
//! both.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::owner::Ep;
use ferrofabric_conformance::steady::allocated_bytes;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_shm::{Cma, ShmConfig};

/// Largest memory of a pair, in bytes (`docs/shared-memory.md`).
const PAIR_BYTES: usize = 64 << 10;

/// The segments that this process has mapped: their number, their bytes, and their resident bytes.
/// A segment that both sides have mapped here counts once.
fn segments() -> (usize, usize, usize) {
    let mut found: HashMap<String, (usize, usize)> = HashMap::new();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inode = None;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let kb = || words[1].parse::<usize>().unwrap() << 10;
        match words[0] {
            // A mapping: addresses, permissions, offset, device, inode, name.
            range if range.contains('-') => {
                inode = line
                    .contains("/memfd:ferrofabric-pair")
                    .then(|| words[4].to_owned());
            }
            "Size:" | "Rss:" => {
                if let Some(inode) = &inode {
                    let (size, rss) = found.entry(inode.clone()).or_default();
                    let of = if words[0] == "Size:" { size } else { rss };
                    *of = kb().max(*of);
                }
            }
            _ => {}
        }
    }
    found.values().fold((0, 0, 0), |(n, size, rss), (s, r)| {
        (n + 1, size + s, rss + r)
    })
}

/// Messages between a pair: the length, and the number at a time. The last are short again, as most
/// messages are.
const EXCHANGES: [(usize, usize); 7] = [
    (8, 1),
    (1 << 10, 100),
    (1 << 20, 1),
    (256 << 10, 32),
    (20_000, 400),
    (8, 1000),
    (8, 1),
];

fn open() -> Ep {
    Ep::open(ShmConfig {
        cma: Cma::Off,
        ..ShmConfig::default()
    })
}

/// One endpoint that exchanges messages with all others, in one thread.
struct HubAndLeaves {
    hub: Ep,
    leaves: Vec<(Ep, FiAddr, FiAddr)>,
    buffers: ExchangeBuffers,
    /// The memory of all endpoints before they exchange messages.
    before: usize,
}

impl HubAndLeaves {
    /// Endpoints that have exchanged messages already, so that their queues have their size.
    fn open(peers: usize) -> Self {
        let (mut hub, mut buffers) = (open(), ExchangeBuffers::new());
        let mut leaves: Vec<_> = (0..peers)
            .map(|_| {
                let mut leaf = open();
                let to_hub = leaf.insert(&hub.name());
                let to_leaf = hub.insert(&leaf.name());
                (leaf, to_hub, to_leaf)
            })
            .collect();
        let mut other = open();
        for ep in leaves.iter_mut().map(|(leaf, ..)| leaf).chain([&mut hub]) {
            let (to_ep, to_other) = (other.insert(&ep.name()), ep.insert(&other.name()));
            for (len, count) in EXCHANGES {
                buffers.exchange(&mut other, to_ep, ep, to_other, len, count);
            }
        }
        drop(other);
        let deadline = Instant::now() + Duration::from_secs(30);
        for ep in leaves.iter_mut().map(|(leaf, ..)| leaf).chain([&mut hub]) {
            while ep.shm.stats().links_failed == 0 {
                ep.progress();
                assert!(Instant::now() < deadline, "the link did not end");
                std::thread::yield_now();
            }
        }
        Self {
            hub,
            leaves,
            buffers,
            before: allocated_bytes(),
        }
    }

    fn exchange(&mut self, len: usize, count: usize) {
        for (leaf, to_hub, to_leaf) in &mut self.leaves {
            let hub = &mut self.hub;
            self.buffers
                .exchange(hub, *to_leaf, leaf, *to_hub, len, count);
        }
    }

    /// Checks the memory of a pair, after the last exchange.
    fn check(&self, after: &str) {
        let pairs = self.leaves.len();
        let (mapped, bytes, resident) = segments();
        assert_eq!(mapped, pairs, "segments after {after}");
        let heap = allocated_bytes().saturating_sub(self.before) / pairs;
        let (bytes, resident) = (bytes / pairs, resident / pairs);
        println!(
            "{pairs} pairs, after {after}: segment {bytes}, of which resident {resident}, heap of both sides {heap}"
        );
        assert!(
            bytes + heap <= PAIR_BYTES,
            "{pairs} pairs, after {after}: {bytes} + {heap} bytes a pair"
        );
    }
}

/// The buffers of the messages.
struct ExchangeBuffers {
    out: Vec<u8>,
    into: Vec<u8>,
}

impl ExchangeBuffers {
    fn new() -> Self {
        Self {
            out: vec![1; 4 << 20],
            into: vec![0; 16 << 20],
        }
    }

    /// `count` messages of `len` bytes each way, at a time.
    fn exchange(
        &mut self,
        a: &mut Ep,
        to_b: FiAddr,
        b: &mut Ep,
        to_a: FiAddr,
        len: usize,
        count: usize,
    ) {
        for into in self.into.chunks_mut(len).take(count) {
            a.trecv(1, 0, into, 0);
            b.trecv(1, 0, into, 0);
        }
        let (mut sent, mut done) = ((0, 0), 0);
        let deadline = Instant::now() + Duration::from_secs(30);
        while done < 4 * count {
            assert!(Instant::now() < deadline, "{done} of {} done", 4 * count);
            // As many sends as are accepted, so that some wait for room.
            let out = &self.out[..len];
            // SAFETY: these bytes stay, and all sends have completed when this function returns.
            while sent.0 < count && unsafe { a.tsend_from(to_b, 1, out, 0) }.is_ok() {
                sent.0 += 1;
            }
            // SAFETY: as above.
            while sent.1 < count && unsafe { b.tsend_from(to_a, 1, out, 0) }.is_ok() {
                sent.1 += 1;
            }
            for ep in [&mut *a, b] {
                while let Some(found) = ep.poll() {
                    found.unwrap();
                    done += 1;
                }
            }
        }
    }
}

// The only test of this program: it counts the memory of the whole process.
#[test]
fn an_active_pair_takes_64_kib() {
    for peers in [2, 64] {
        let mut star = HubAndLeaves::open(peers);
        for (len, count) in EXCHANGES {
            star.exchange(len, count);
            star.check(&format!("{count} of {len} bytes"));
        }
    }
}
