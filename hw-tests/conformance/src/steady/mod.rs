//! The steady state of short messages: it allocates nothing, and makes no system call but the
//! driver's own.

mod allocations;
mod syscalls;

use std::time::Instant;

use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::{Cq, Domain};

pub use allocations::{RecordingAllocator, allocated_by_size, allocated_bytes, places};
pub use syscalls::{SystemCall, Trace, measure, trace};

use crate::ends::{BLANK, PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};
use crate::reports::counter;

/// Bytes of a message.
const LEN: usize = 8;

/// Two ends in one thread that exchange messages of 8 bytes.
pub struct Exchange {
    pair: QueuedPair,
    into: IoBuf,
    from: IoBuf,
}

/// How a message goes.
#[derive(Clone, Copy, Debug)]
struct SteadyMessage {
    kind: MsgKind,
    flags: Flags,
    /// It comes before its receive.
    unexpected: bool,
}

const WAYS: [SteadyMessage; 5] = [
    way(MsgKind::Tagged, Flags::COMPLETION, false),
    way(MsgKind::Msg, Flags::COMPLETION, false),
    way(MsgKind::Tagged, Flags::INJECT, false),
    way(
        MsgKind::Tagged,
        Flags::COMPLETION.union(Flags::REMOTE_CQ_DATA),
        false,
    ),
    way(MsgKind::Tagged, Flags::COMPLETION, true),
];

const fn way(kind: MsgKind, flags: Flags, unexpected: bool) -> SteadyMessage {
    SteadyMessage {
        kind,
        flags,
        unexpected,
    }
}

impl Exchange {
    /// Connects two ends, and exchanges messages until every pool and queue has its size.
    pub fn new(domain_a: &dyn Domain, domain_b: &dyn Domain, warm_up: usize) -> Self {
        let pair = QueuedPair::open(domain_a, domain_b);
        let (into, from) = (pair.b.memory(LEN, 0), pair.a.memory(LEN, 5));
        let exchange = Self { pair, into, from };
        exchange.rounds(warm_up);
        exchange
    }

    /// So many messages of each way, in both directions. Returns how many that are.
    pub fn rounds(&self, rounds: usize) -> usize {
        let QueuedPair { a, b, to_a, to_b } = &self.pair;
        for _ in 0..rounds {
            for way in WAYS {
                self.message(a, b, *to_b, way);
                self.message(b, a, *to_a, way);
            }
        }
        rounds * WAYS.len() * 2
    }

    /// The same. They allocate nothing.
    pub fn allocates_nothing(&self, rounds: usize) {
        let one = places(|| drop(std::hint::black_box(Box::new(1))));
        assert_eq!(one.len(), 1, "the allocator does not record");
        let mut messages = 0;
        let places = places(|| messages = self.rounds(rounds));
        assert!(
            places.is_empty(),
            "{} allocations in {messages} messages: {}",
            places.len(),
            places[0]
        );
    }

    /// The sum of the two ends' counters of a name.
    pub fn counted(&self, name: &str) -> u64 {
        let ends = [&self.pair.a, &self.pair.b];
        let counts = ends.map(|end| counter(&end.endpoint.stats().unwrap(), name));
        counts.iter().sum()
    }

    /// So many messages one way, at most 32, as one run: all but the last with `MORE`.
    pub fn run(&self, count: usize) {
        let QueuedPair { a, b, to_b, .. } = &self.pair;
        for _ in 0..count {
            b.recv(&any_tagged(1), &[self.into]).unwrap();
        }
        for left in (0..count).rev() {
            let more = match left {
                0 => Flags::empty(),
                _ => Flags::MORE,
            };
            let send = SendOp {
                kind: MsgKind::Tagged,
                dest: *to_b,
                tag: 0,
                data: 0,
                desc: MrDesc::NONE,
                context: 2,
                flags: Flags::COMPLETION | more,
            };
            // SAFETY: the memory lives as long as the ends.
            unsafe { a.endpoint.send(&send, &[self.from]) }.unwrap();
        }
        let started = Instant::now();
        let (mut received, mut sent) = (0, 0);
        while (received, sent) != (count, count) {
            received += usize::from(take(&*b.rx.cq).is_some());
            sent += usize::from(take(&*a.tx.cq).is_some());
            assert!(
                started.elapsed() < PATIENCE,
                "{received} received and {sent} sent of {count}"
            );
        }
    }

    /// With nothing but the calls that an application makes.
    fn message(
        &self,
        from: &QueuedEndpoint,
        to: &QueuedEndpoint,
        dest: FiAddr,
        way: SteadyMessage,
    ) {
        let recv = RecvOp {
            kind: way.kind,
            ..any_tagged(1)
        };
        let send = SendOp {
            kind: way.kind,
            dest,
            tag: 0,
            data: 7,
            desc: MrDesc::NONE,
            context: 2,
            flags: way.flags,
        };
        if !way.unexpected {
            to.recv(&recv, &[self.into]).unwrap();
        }
        let started = Instant::now();
        // SAFETY: the memory lives as long as the ends.
        while let Err(error) = unsafe { from.endpoint.send(&send, &[self.from]) } {
            assert_eq!(error, OpError::Again);
            let _ = take(&*from.tx.cq);
            assert!(started.elapsed() < PATIENCE, "no room for a send");
        }
        if way.unexpected {
            // It comes, and nobody waits for it.
            for _ in 0..4 {
                assert_eq!(take(&*to.rx.cq), None);
            }
            to.recv(&recv, &[self.into]).unwrap();
        }
        let mut sent = !way.flags.contains(Flags::COMPLETION);
        let mut received = false;
        while !(sent && received) {
            if let Some(done) = take(&*to.rx.cq) {
                assert_eq!((done.context, done.len), (1, LEN));
                received = true;
            }
            if !sent {
                sent = take(&*from.tx.cq).is_some();
            }
        }
        assert!(to.rx.cntr.read().unwrap() > 0);
    }
}

fn take(cq: &dyn Cq) -> Option<Completion> {
    let mut out = [BLANK];
    match cq.read(&mut out) {
        Ok(_) => Some(out[0]),
        Err(error) => {
            assert_eq!(error, OpError::Again);
            None
        }
    }
}

/// The steady state allocates nothing. The program's allocator is [`RecordingAllocator`].
pub fn allocates_nothing(domain_a: &dyn Domain, domain_b: &dyn Domain, rounds: usize) {
    Exchange::new(domain_a, domain_b, rounds).allocates_nothing(rounds);
}
