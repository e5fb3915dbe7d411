//! Half round trips and one-way rates between two pinned processes, beside what a bare cache line
//! takes just before and after: `cargo bench -p ferrofabric-shm [-- SECONDS]`. Only the ratio to
//! that counts. `-- ring` measures what bounds large messages: two copies through a bare ring, for
//! rings of several shapes.

#![allow(clippy::unwrap_used, reason = "a benchmark")]

#[path = "../tests/integration/owner/mod.rs"]
mod owner;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_shm::{Cma, ShmConfig};
use owner::Ep;

const SIZES: [usize; 13] = [
    0,
    8,
    32,
    48,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
    1 << 20,
    4 << 20,
];

fn pin(core: usize) {
    // SAFETY: a zeroed set is an empty one.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// One way of a cache line between the two cores, in ns: the least of some bursts.
fn probe() -> f64 {
    static LINE: AtomicU64 = AtomicU64::new(0);
    const ROUNDS: u64 = 20_000;
    LINE.store(0, Ordering::SeqCst);
    let other = std::thread::spawn(|| {
        pin(1);
        for i in 0..ROUNDS {
            while LINE.load(Ordering::Acquire) != 2 * i + 1 {
                std::hint::spin_loop();
            }
            LINE.store(2 * i + 2, Ordering::Release);
        }
    });
    let mut start = Instant::now();
    for i in 0..ROUNDS {
        if i == ROUNDS / 4 {
            start = Instant::now();
        }
        LINE.store(2 * i + 1, Ordering::Release);
        while LINE.load(Ordering::Acquire) != 2 * i + 2 {
            std::hint::spin_loop();
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / (ROUNDS - ROUNDS / 4) as f64 / 2.0;
    other.join().unwrap();
    ns
}

fn config() -> ShmConfig {
    let mut config = ShmConfig::default();
    let set = |name: &str| std::env::var(name).ok().and_then(|v| v.parse().ok());
    if let Some(bytes) = set("CHUNK") {
        config.chunk_bytes = bytes;
    }
    if let Some(bytes) = set("EAGER") {
        config.eager_bytes = bytes;
    }
    if let Some(bytes) = set("FIRST") {
        config.first_bytes = bytes;
    }
    match std::env::var("CMA").as_deref() {
        Ok("on") => config.cma = Cma::On,
        Ok("auto") => config.cma = Cma::Auto,
        _ => config.cma = Cma::Off,
    }
    config
}

struct BenchPair {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
    ep: Ep,
    peer: FiAddr,
}

impl BenchPair {
    fn spawn() -> Self {
        let mut ep = Ep::open(config());
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["child", &ep.name().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        lines.read_line(&mut line).unwrap();
        let peer = ep.insert(&line.trim().parse::<NativeAddr>().unwrap());
        Self {
            child,
            lines,
            ep,
            peer,
        }
    }

    fn tell(&mut self, what: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{what}").unwrap();
        stdin.flush().unwrap();
    }

    fn hear(&mut self) {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
    }
}

/// Waits for `n` completions.
#[inline]
fn reap(ep: &mut Ep, mut n: usize) {
    let mut out = [Completion::BLANK; 8];
    while n > 0 {
        let most = n.min(out.len());
        n -= ep.read(&mut out[..most]);
    }
}

/// Ping-pong; how long each `burst` rounds took.
fn pong(
    ep: &mut Ep,
    peer: FiAddr,
    size: usize,
    rounds: usize,
    burst: usize,
    first: bool,
) -> Vec<Duration> {
    let out = vec![1u8; size];
    let mut into = vec![0u8; size];
    let mut took = Vec::new();
    let mut start = Instant::now();
    for round in 0..rounds {
        ep.trecv(7, 0, &mut into, 1);
        if first {
            // SAFETY: the bytes stay until both operations have completed.
            unsafe { ep.tsend_from(peer, 7, &out, 2) }.unwrap();
            reap(ep, 2);
            if (round + 1) % burst == 0 {
                let now = Instant::now();
                took.push(now - start);
                start = now;
            }
        } else {
            // The first message is the receive.
            reap(ep, 1);
            // SAFETY: the bytes stay until the send has completed.
            unsafe { ep.tsend_from(peer, 7, &out, 2) }.unwrap();
            reap(ep, 1);
        }
    }
    took
}

const WINDOW: usize = 64;

/// Messages one way; how long each `WINDOW` of them took.
fn stream(ep: &mut Ep, peer: FiAddr, size: usize, batches: usize, sends: bool) -> Vec<Duration> {
    let out = vec![1u8; size];
    let mut into = vec![0u8; size];
    let mut took = Vec::new();
    let mut start = Instant::now();
    for _ in 0..batches {
        for _ in 0..WINDOW {
            if sends {
                // SAFETY: the bytes stay until all of them have completed.
                while unsafe { ep.tsend_from(peer, 7, &out, 2) }.is_err() {
                    ep.progress();
                }
            } else {
                ep.trecv(7, 0, &mut into, 1);
            }
        }
        reap(ep, WINDOW);
        let now = Instant::now();
        took.push(now - start);
        start = now;
    }
    // One answer for all.
    if sends {
        ep.trecv(9, 0, &mut into, 1);
    } else {
        ep.tsend(peer, 9, &[], 2).unwrap();
    }
    reap(ep, 1);
    took
}

fn child(name: &str) {
    pin(1);
    let mut ep = Ep::open(config());
    println!("{}", ep.name());
    let peer = ep.insert(&name.parse::<NativeAddr>().unwrap());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let mut words = line.split(' ');
        let what = words.next().unwrap().to_owned();
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        let (size, rounds) = (number(), number());
        println!("ready");
        match what.as_str() {
            "pong" => drop(pong(&mut ep, peer, size, rounds, 1, false)),
            _ => drop(stream(&mut ep, peer, size, rounds, false)),
        }
    }
}

/// The cost of the software alone: a message to the own endpoint, in ns from the send to both
/// completions.
fn alone() {
    let mut ep = Ep::open(config());
    let own = ep.name();
    let me = ep.insert(&own);
    pin(0);
    let mut least = f64::MAX;
    for _ in 0..200 {
        let start = Instant::now();
        pong(&mut ep, me, 8, 1000, 1000, true);
        least = least.min(start.elapsed().as_nanos() as f64 / 1000.0);
    }
    println!("alone: {least:.1} ns a message");
}

/// Pieces of a ring, and bytes of each: the first is the shape of a segment's.
const RINGS: [(usize, usize); 6] = [
    (3, 8768),
    (8, 8192),
    (4, 16_384),
    (8, 16_384),
    (32, 8192),
    (8, 65_536),
];

/// A word that one side writes and the other one looks at.
#[repr(align(128))]
struct Lined(AtomicU64);

/// Messages of 1 MiB, four buffers on each side, in two copies through a ring, and nothing else:
/// GB/s of the best of some bursts, in which the shapes take turns.
fn bare_rings() {
    const BURSTS: usize = 40;
    let mut best = [0f64; RINGS.len()];
    for _ in 0..BURSTS {
        for (best, (pieces, bytes)) in best.iter_mut().zip(RINGS) {
            *best = best.max(bare_ring(pieces, bytes));
        }
    }
    println!("line: {:.0} ns one way", probe());
    for (best, (pieces, bytes)) in best.iter().zip(RINGS) {
        println!("{pieces:>3} x {bytes:>6} bytes: {best:>6.1} GB/s");
    }
}

/// One burst through a ring of so many pieces, in GB/s.
fn bare_ring(pieces: usize, bytes: usize) -> f64 {
    const LEN: usize = 1 << 20;
    const BUFFERS: usize = 4;
    const MESSAGES: usize = 128;
    struct BenchShared(*mut u8);
    // SAFETY: a piece is written and read by turns, which the words below settle.
    unsafe impl Sync for BenchShared {}
    let mut ring = vec![1u8; pieces * bytes];
    let ring = BenchShared(ring.as_mut_ptr());
    let (sent, taken) = (Lined(AtomicU64::new(0)), Lined(AtomicU64::new(0)));
    // Offsets and lengths of the pieces of all messages, with their number.
    let walk = || {
        (0..MESSAGES)
            .flat_map(move |m| (0..LEN).step_by(bytes).map(move |at| (m, at)))
            .enumerate()
            .map(move |(n, (m, at))| (n, m % BUFFERS, at, bytes.min(LEN - at)))
    };
    let wait = |until: &dyn Fn() -> bool| {
        while !until() {
            std::hint::spin_loop();
        }
    };
    let mut start = Instant::now();
    std::thread::scope(|scope| {
        let (ring, sent, taken) = (&ring, &sent, &taken);
        scope.spawn(move || {
            pin(1);
            let mut into = vec![vec![2u8; LEN]; BUFFERS];
            taken.0.store(1, Ordering::Release);
            for (n, buffer, at, len) in walk() {
                wait(&|| sent.0.load(Ordering::Acquire) > n as u64);
                // SAFETY: the piece lies in the ring and holds `len` bytes that its writer is done
                // with.
                unsafe {
                    let from = ring.0.add(n % pieces * bytes);
                    std::ptr::copy_nonoverlapping(from, into[buffer].as_mut_ptr().add(at), len);
                }
                taken.0.store(n as u64 + 2, Ordering::Release);
            }
        });
        let out = vec![vec![3u8; LEN]; BUFFERS];
        wait(&|| taken.0.load(Ordering::Acquire) > 0);
        start = Instant::now();
        let (mut count, mut free) = (0, pieces);
        for (n, buffer, at, len) in walk() {
            if n >= free {
                wait(&|| taken.0.load(Ordering::Acquire) as usize + pieces - 1 > n);
                free = taken.0.load(Ordering::Acquire) as usize + pieces - 1;
            }
            // SAFETY: the piece lies in the ring, and its reader is done with what it held.
            unsafe {
                let to = ring.0.add(n % pieces * bytes);
                std::ptr::copy_nonoverlapping(out[buffer].as_ptr().add(at), to, len);
            }
            count = n as u64 + 1;
            sent.0.store(count, Ordering::Release);
        }
        wait(&|| taken.0.load(Ordering::Acquire) > count);
    });
    (LEN * MESSAGES) as f64 / start.elapsed().as_nanos() as f64
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|a| a == "alone") {
        return alone();
    }
    if args.iter().any(|a| a == "ring") {
        pin(0);
        return bare_rings();
    }
    if args.get(1).is_some_and(|a| a == "child") {
        return child(&args[2]);
    }
    let seconds: f64 = args.iter().find_map(|a| a.parse().ok()).unwrap_or(0.1);
    let only: Option<usize> = std::env::var("SIZE").ok().and_then(|v| v.parse().ok());
    pin(0);
    let mut pair = BenchPair::spawn();
    println!(
        "{:>8} {:>9} {:>9} {:>9} {:>9} {:>9}   (half round trip µs: least, lower quartile)",
        "bytes", "least", "quartile", "M/s", "GB/s", "line ns"
    );
    for size in SIZES.into_iter().filter(|s| only.is_none_or(|o| o == *s)) {
        let before = probe();
        let guess = 300.0 + size as f64 / 20.0;
        let rounds = ((seconds * 1e9 / guess) as usize).max(40);
        let burst = ((50e3 / guess) as usize).clamp(1, rounds / 20);
        pair.tell(&format!("pong {size} {rounds}"));
        pair.hear();
        let mut half: Vec<f64> = pong(&mut pair.ep, pair.peer, size, rounds, burst, true)
            .iter()
            .map(|d| d.as_secs_f64() * 1e6 / burst as f64 / 2.0)
            .collect();
        half.sort_by(f64::total_cmp);

        let batches = (rounds / WINDOW * 4).max(10);
        pair.tell(&format!("stream {size} {batches}"));
        pair.hear();
        let mut rate: Vec<f64> = stream(&mut pair.ep, pair.peer, size, batches, true)
            .iter()
            .map(|d| WINDOW as f64 / d.as_secs_f64() / 1e6)
            .collect();
        rate.sort_by(|a, b| b.total_cmp(a));
        // The sender may be a whole ring ahead of the receiver, so the best bursts are too good.
        let rate = rate[rate.len() / 4];
        println!(
            "{size:>8} {:>9.3} {:>9.3} {rate:>9.2} {:>9.2} {:>9.0}",
            half[0],
            half[half.len() / 4],
            rate * size as f64 / 1e3,
            before.max(probe()),
        );
    }
    drop(pair.child.stdin.take());
    pair.child.wait().unwrap();
    if std::env::var("STATS").is_ok() {
        println!("{:?}", pair.ep.shm.stats());
    }
}
