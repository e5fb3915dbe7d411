//! The cost of matching in nanoseconds per pair of calls, and its growth with the depth. Each round
//! compares 100,000 posted receives or unexpected messages with 10 of them, in one process, burst
//! by burst in turn.
//!
//! `cargo bench -p ferrofabric-matching`; arguments are parts of names and select the measurements.
//! Every operation takes one entry out of the queue and puts a new one in, which has never been
//! there, so the depth stays. `order` takes the oldest entry, as senders that keep order do.
//! `random` takes any entry. In turn with these, a bare dependent load from one cache line per
//! entry measures the cost of one miss on this machine. `misses` gives the cost of the depth in
//! such misses. `empty` posts one receive and delivers one message for it, again and again, with
//! nothing else in the queue. `cancel` takes the oldest receive back and posts another.
//!
//! Figures are the lower quartile of the bursts, ratios the median of the rounds' ratios. `order`
//! must stay below 2. `random` cannot, because one cache miss takes several times as long as a
//! match whose data is all in the cache.

#![allow(missing_docs, reason = "a program")]

use std::hint::black_box;
use std::time::Instant;

use fastrand::Rng;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Arrived;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc};
use ferrofabric_matching::{Matcher, PostedReceive, ReceiveBuffers};

const SHALLOW: u64 = 10;
const DEEP: u64 = 100_000;
const SENDERS: u64 = 61;
const ROUNDS: usize = 60;
const WARMUP: usize = 500;
const BURST: usize = 4000;

type BenchToken = [u64; 2];

#[derive(Clone, Copy, PartialEq, Eq)]
enum MatchKind {
    Exact,
    AnySource,
    Masked,
    /// All three posted in turn.
    Mixed,
    /// Everything under one tag: one long list.
    OneTag,
}

impl MatchKind {
    const ALL: [(&str, MatchKind); 5] = [
        ("exact", MatchKind::Exact),
        ("any_source", MatchKind::AnySource),
        ("masked", MatchKind::Masked),
        ("mixed", MatchKind::Mixed),
        ("one_tag", MatchKind::OneTag),
    ];

    #[inline]
    fn receive(self, n: u64) -> PostedReceive {
        let (src, tag, ignore) = match self {
            MatchKind::Exact => (FiAddr(n % SENDERS), n, 0),
            MatchKind::AnySource => (FiAddr::UNSPEC, n, 0),
            MatchKind::Masked => (FiAddr(n % SENDERS), n | (0xabc << 40), 0xfff << 40),
            MatchKind::OneTag => (FiAddr::UNSPEC, 7, 0),
            MatchKind::Mixed => {
                return [MatchKind::Exact, MatchKind::AnySource, MatchKind::Masked][n as usize % 3]
                    .receive(n);
            }
        };
        PostedReceive {
            src,
            tag,
            ignore,
            buf: ReceiveBuffers::One(IoBuf {
                addr: 0x1000,
                len: 64,
            }),
            desc: MrDesc::NONE,
            context: n,
            flags: Flags::COMPLETION,
        }
    }

    #[inline]
    fn message(self, n: u64) -> Arrived {
        Arrived {
            src: FiAddr(n % SENDERS),
            tag: if self == MatchKind::OneTag { 7 } else { n },
            len: 8,
            data: 0,
            flags: Flags::empty(),
        }
    }
}

/// Numbers of the entries that go and come, so that choosing them costs the bursts nothing.
struct EntryScript {
    steps: Vec<(u32, u32)>,
    at: usize,
}

impl EntryScript {
    /// Long enough that the deep queue is gone through twice; then its end takes in what its
    /// beginning takes out.
    fn new(depth: u64, random: bool) -> EntryScript {
        let len = 2 * DEEP as usize;
        let mut queue: Vec<u32> = (0..depth as u32).collect();
        let mut rng = Rng::with_seed(0);
        let mut steps = Vec::with_capacity(len + depth as usize);
        for (step, next) in (depth as u32..).take(len).enumerate() {
            let at = match random {
                false => step % queue.len(),
                true => rng.usize(..queue.len()),
            };
            steps.push((std::mem::replace(&mut queue[at], next), next));
        }
        // The ones of the beginning come again, in the order that they had.
        for first in 0..depth as u32 {
            let at = match random {
                false => (len + first as usize) % queue.len(),
                true => first as usize,
            };
            steps.push((queue[at], first));
        }
        EntryScript { steps, at: 0 }
    }

    #[inline]
    fn next(&mut self) -> (u64, u64) {
        let (out, new) = self.steps[self.at];
        self.at += 1;
        if self.at == self.steps.len() {
            self.at = 0;
        }
        (u64::from(out), u64::from(new))
    }
}

/// The operations that a measurement repeats on a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A message takes a receive, another is posted.
    Posted,
    /// A receive takes a message, another comes.
    Unexpected,
    /// A receive is taken back, another posted.
    Cancel,
}

/// A queue that is kept at its depth.
struct BenchQueue {
    kind: MatchKind,
    matcher: Matcher<BenchToken>,
    script: EntryScript,
    work: Work,
}

impl BenchQueue {
    fn new(kind: MatchKind, work: Work, depth: u64, random: bool) -> BenchQueue {
        let mut matcher = Matcher::new(64);
        for n in 0..depth {
            if work == Work::Unexpected {
                matcher.queue(kind.message(n), [n, 0]);
            } else {
                assert!(matcher.post(kind.receive(n)).is_none());
            }
        }
        BenchQueue {
            kind,
            matcher,
            script: EntryScript::new(depth, random),
            work,
        }
    }

    #[inline(always)]
    fn posted(&mut self) {
        let (out, new) = self.script.next();
        let matched = self.matcher.arrive(&self.kind.message(out));
        assert_eq!(matched.map(|m| m.context), Some(out));
        assert!(self.matcher.post(self.kind.receive(new)).is_none());
    }

    #[inline(always)]
    fn unexpected(&mut self) {
        let (out, new) = self.script.next();
        let start = self.matcher.post(self.kind.receive(out));
        assert_eq!(start.map(|start| start.message.token[0]), Some(out));
        let message = self.kind.message(new);
        assert!(self.matcher.arrive(&message).is_none());
        self.matcher.queue(message, [new, 0]);
    }

    #[inline(always)]
    fn cancel(&mut self) {
        let (out, new) = self.script.next();
        let taken = self.matcher.cancel(out);
        assert_eq!(taken.map(|taken| taken.posted.context), Some(out));
        assert!(self.matcher.post(self.kind.receive(new)).is_none());
    }

    /// Nanoseconds per operation.
    fn burst(&mut self) -> f64 {
        match self.work {
            Work::Posted => time(|n| (0..n).for_each(|_| self.posted())),
            Work::Unexpected => time(|n| (0..n).for_each(|_| self.unexpected())),
            Work::Cancel => time(|n| (0..n).for_each(|_| self.cancel())),
        }
    }
}

fn time(mut run: impl FnMut(usize)) -> f64 {
    run(WARMUP);
    let start = Instant::now();
    run(BURST);
    start.elapsed().as_nanos() as f64 / BURST as f64
}

#[repr(align(64))]
#[derive(Clone)]
struct MissLine(u32);

/// One cycle through all lines, in random order.
struct Chase {
    lines: Vec<MissLine>,
    at: u32,
}

impl Chase {
    fn new() -> Chase {
        let mut lines: Vec<MissLine> = (0..DEEP as u32).map(MissLine).collect();
        let mut rng = Rng::with_seed(0);
        // Sattolo's shuffle.
        for i in (1..lines.len()).rev() {
            lines.swap(i, rng.usize(..i));
        }
        Chase { lines, at: 0 }
    }

    fn burst(&mut self) -> f64 {
        time(|n| {
            for _ in 0..n {
                self.at = black_box(self.lines[self.at as usize].0);
            }
        })
    }
}

fn quantile(values: &mut [f64], at: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * at) as usize]
}

fn main() {
    // A filter as `cargo bench` passes it on; its own options mean nothing here.
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    println!(
        "{:<26} {:>8} {:>10} {:>7} {:>9} {:>7}",
        "ns", "at 10", "at 100,000", "ratio", "one miss", "misses"
    );
    let is_wanted = |name: &str| wanted.iter().all(|w| name.contains(w.as_str()));
    for (side, work) in [("posted", Work::Posted), ("unexpected", Work::Unexpected)] {
        for (name, kind) in MatchKind::ALL {
            for (order, random) in [("order", false), ("random", true)] {
                // Of one list, the oldest goes always.
                let name = format!("{side}/{name}/{order}");
                if is_wanted(&name) && !(random && kind == MatchKind::OneTag) {
                    compare(&name, kind, work, random);
                }
            }
        }
    }
    if is_wanted("cancel/exact/order") {
        compare("cancel/exact/order", MatchKind::Exact, Work::Cancel, false);
    }
    for (name, src, tag, ignore) in [
        ("tagged", FiAddr(5), 5, 0),
        ("tagged_any", FiAddr::UNSPEC, 5, 0),
        ("untagged", FiAddr::UNSPEC, 0, u64::MAX),
    ] {
        let receive = PostedReceive {
            src,
            tag,
            ignore,
            ..MatchKind::Exact.receive(5)
        };
        for (side, unexpected) in [("posted", false), ("unexpected", true)] {
            let name = format!("empty/{side}/{name}");
            if is_wanted(&name) {
                let mut bursts: Vec<f64> = (0..ROUNDS)
                    .map(|_| ping_pong(&receive, unexpected))
                    .collect();
                println!("{name:<26} {:>8.1}", quantile(&mut bursts, 0.25));
            }
        }
    }
}

/// Nanoseconds of one receive and one message for it, the one before the other.
fn ping_pong(receive: &PostedReceive, unexpected: bool) -> f64 {
    let mut matcher: Matcher<BenchToken> = Matcher::new(64);
    let message = MatchKind::Exact.message(5);
    time(|n| {
        for _ in 0..n {
            let receive = black_box(receive).clone();
            if unexpected {
                assert!(matcher.arrive(black_box(&message)).is_none());
                matcher.queue(message, black_box([1, 2]));
                black_box(matcher.post(receive).map(|start| start.message.token));
            } else {
                assert!(matcher.post(receive).is_none());
                let matched = matcher.arrive(black_box(&message));
                black_box(matched.map(|m| (m.context, m.buf.segments()[0].addr)));
            }
        }
    })
}

fn compare(name: &str, kind: MatchKind, work: Work, random: bool) {
    let mut shallow = BenchQueue::new(kind, work, SHALLOW, random);
    let mut deep = BenchQueue::new(kind, work, DEEP, random);
    let mut chase = Chase::new();
    // Once through, as after a while of use.
    for _ in 0..2 * DEEP as usize / BURST {
        deep.burst();
    }
    let (mut tens, mut deeps, mut misses, mut ratios) = (vec![], vec![], vec![], vec![]);
    for _ in 0..ROUNDS {
        let (a, b) = (shallow.burst(), deep.burst());
        tens.push(a);
        deeps.push(b);
        ratios.push(b / a);
        misses.push(chase.burst());
    }
    let (ten, hundred) = (quantile(&mut tens, 0.25), quantile(&mut deeps, 0.25));
    let miss = quantile(&mut misses, 0.25);
    println!(
        "{name:<26} {ten:>8.1} {hundred:>10.1} {:>7.2} {miss:>9.1} {:>7.1}",
        quantile(&mut ratios, 0.5),
        (hundred - ten) / miss
    );
}
