//! Cost of matching, in nanoseconds per pair of calls, at depths from 0 to 100,000.
//!
//! `cargo bench -p ferrofabric-core --bench matching`. Each figure of a depth is for a queue that is kept at that
//! depth: one entry goes, one like it comes, in order (`fifo`: as senders keep order) or at random (`random`: every access
//! a cache miss once the queue outgrows the caches).

#![allow(missing_docs, reason = "what the macros make is public")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use ferrofabric_core::flags::Flags;
use ferrofabric_core::matching::{Buffers, Matcher, Posted};
use ferrofabric_core::peer::Arrived;
use ferrofabric_core::types::{FiAddr, IoBuf};

type Token = [u64; 2];

const DEPTHS: [u64; 4] = [10, 1_000, 10_000, 100_000];

/// A kind of receive, for the n-th message of a sender.
#[derive(Clone, Copy)]
enum Class {
    Exact,
    AnySource,
    Masked,
    /// All three posted in turn.
    Mixed,
    /// Everything under one tag: one long list.
    OneTag,
}

impl Class {
    const ALL: [(&str, Class); 5] = [
        ("exact", Class::Exact),
        ("any_source", Class::AnySource),
        ("masked", Class::Masked),
        ("mixed", Class::Mixed),
        ("one_tag", Class::OneTag),
    ];

    #[inline]
    fn receive(self, n: u64) -> Posted {
        let (src, tag, ignore) = match self {
            Class::Exact => (sender(n), n, 0),
            Class::AnySource => (FiAddr::UNSPEC, n, 0),
            Class::Masked => (sender(n), n | 0xabc << 40, 0xfff << 40),
            Class::OneTag => (FiAddr::UNSPEC, 7, 0),
            Class::Mixed => {
                return [Class::Exact, Class::AnySource, Class::Masked][n as usize % 3].receive(n);
            }
        };
        Posted {
            src,
            tag,
            ignore,
            buf: Buffers::One(IoBuf {
                addr: 0x1000,
                len: 64,
            }),
            desc: 0,
            context: n,
            flags: Flags::COMPLETION,
        }
    }

    #[inline]
    fn message(self, n: u64) -> Arrived {
        Arrived {
            src: sender(n),
            tag: if matches!(self, Class::OneTag) { 7 } else { n },
            len: 8,
            data: 0,
            flags: Flags::empty(),
        }
    }
}

fn sender(n: u64) -> FiAddr {
    FiAddr(n % 61)
}

/// The numbers below `depth`, over and over, in order or in one fixed random order.
struct Numbers {
    order: Vec<u32>,
    at: usize,
}

impl Numbers {
    fn new(depth: u64, random: bool) -> Numbers {
        let mut order: Vec<u32> = (0..depth as u32).collect();
        if random {
            let mut state = 0x9e37_79b9_7f4a_7c15_u64;
            for i in (1..order.len()).rev() {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                order.swap(i, (state % (i as u64 + 1)) as usize);
            }
        }
        Numbers { order, at: 0 }
    }

    #[inline]
    fn next(&mut self) -> u64 {
        let n = self.order[self.at];
        self.at += 1;
        if self.at == self.order.len() {
            self.at = 0;
        }
        u64::from(n)
    }
}

/// One receive posted, one message for it, again and again; and the other way round.
fn ping_pong(c: &mut Criterion) {
    let mut group = c.benchmark_group("ping_pong");
    let message = Class::Exact.message(5);
    let kinds = [
        ("tagged", 5, 0),
        ("tagged_any", 5, 0),
        ("untagged", 0, u64::MAX),
    ];
    for (name, tag, ignore) in kinds {
        let mut receive = Class::Exact.receive(5);
        (receive.tag, receive.ignore) = (tag, ignore);
        if name != "tagged" {
            receive.src = FiAddr::UNSPEC;
        }
        let mut m: Matcher<Token> = Matcher::new(64);
        group.bench_function(BenchmarkId::new("post_arrive", name), |b| {
            b.iter(|| {
                let posted = m.post(Posted {
                    src: black_box(receive.src),
                    tag: black_box(receive.tag),
                    ignore: receive.ignore,
                    buf: Buffers::One(IoBuf {
                        addr: black_box(0x1000),
                        len: 64,
                    }),
                    desc: 0,
                    context: black_box(9),
                    flags: Flags::COMPLETION,
                });
                assert!(posted.is_none());
                let matched = m.arrive(black_box(&message));
                matched.map(|matched| (matched.context, matched.buf.segments()[0].addr))
            });
        });
        let mut m: Matcher<Token> = Matcher::new(64);
        group.bench_function(BenchmarkId::new("queue_post", name), |b| {
            b.iter(|| {
                let matched = m.arrive(black_box(&message));
                assert!(matched.is_none());
                m.queue(message, black_box([1, 2]));
                let start = m.post(Posted {
                    src: black_box(receive.src),
                    tag: black_box(receive.tag),
                    ..receive.clone()
                });
                start.map(|start| start.message.token)
            });
        });
    }
    group.finish();
}

/// Many receives posted: a message takes one, which is posted again.
fn posted(c: &mut Criterion) {
    let mut group = c.benchmark_group("posted");
    for (name, class) in Class::ALL {
        for depth in DEPTHS {
            for (order, random) in [("fifo", false), ("random", true)] {
                let mut m: Matcher<Token> = Matcher::new(64);
                for n in 0..depth {
                    assert!(m.post(class.receive(n)).is_none());
                }
                let mut numbers = Numbers::new(depth, random);
                let id = BenchmarkId::new(format!("{name}_{order}"), depth);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let n = numbers.next();
                        let matched = m.arrive(&class.message(n));
                        assert!(matched.is_some());
                        let start = m.post(class.receive(n));
                        assert!(start.is_none());
                        matched.map(|matched| matched.context)
                    });
                });
            }
        }
    }
    group.finish();
}

/// Many unexpected messages: a receive takes one, which comes again.
fn unexpected(c: &mut Criterion) {
    let mut group = c.benchmark_group("unexpected");
    for (name, class) in Class::ALL {
        for depth in DEPTHS {
            for (order, random) in [("fifo", false), ("random", true)] {
                let mut m: Matcher<Token> = Matcher::new(64);
                for n in 0..depth {
                    m.queue(class.message(n), [n, 0]);
                }
                let mut numbers = Numbers::new(depth, random);
                let id = BenchmarkId::new(format!("{name}_{order}"), depth);
                group.bench_function(id, |b| {
                    b.iter(|| {
                        let n = numbers.next();
                        let start = m.post(class.receive(n));
                        assert!(start.is_some());
                        let message = class.message(n);
                        assert!(m.arrive(&message).is_none());
                        m.queue(message, [n, 0]);
                        start.map(|start| start.message.token)
                    });
                });
            }
        }
    }
    group.finish();
}

/// A receive is posted among many and cancelled.
fn cancel(c: &mut Criterion) {
    let mut group = c.benchmark_group("cancel");
    for depth in DEPTHS {
        let mut m: Matcher<Token> = Matcher::new(64);
        for n in 0..depth {
            assert!(m.post(Class::Exact.receive(n)).is_none());
        }
        let mut numbers = Numbers::new(depth, false);
        group.bench_function(BenchmarkId::new("cancel_post", depth), |b| {
            b.iter(|| {
                let taken = m.cancel(numbers.next());
                assert!(m.post(taken.expect("posted").posted).is_none());
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(30)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(700));
    targets = ping_pong, posted, unexpected, cancel
}
criterion_main!(benches);
