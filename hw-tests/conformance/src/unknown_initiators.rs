//! One-sided and atomic operations whose initiator is not in the target's address vector: never
//! was, is inserted meanwhile, or is removed meanwhile.

use ferrofabric_contracts::atomics::{
    AtomicForm, AtomicOperator as Operator, Datatype, MAX_ATOMIC_BYTES,
};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, RmaKind, RmaOp};
use ferrofabric_runtime::fabric::Domain;

use crate::atomics::{Initiator, arrays, op, set};
use crate::ends::{QueuedEndpoint, QueuedPair};
use crate::target::{BOTH, KEY, REGION, Target, close_beside, filled};

/// Of every way that replies take.
const SIZES: [usize; 7] = [0, 8, 48, 4000, 9000, 70_000, 300_000];

/// A target whose address vector is empty.
fn open<'a>(domain_a: &dyn Domain, domain_b: &'a dyn Domain) -> Target<'a> {
    let (a, b) = (
        QueuedEndpoint::open(domain_a),
        QueuedEndpoint::open(domain_b),
    );
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let to_a = FiAddr::NOTAVAIL;
    let memory = b.memory(REGION, 0);
    Target {
        pair: QueuedPair { a, b, to_a, to_b },
        domain: domain_b,
        memory,
    }
}

/// Has the target insert the initiator.
fn insert(target: &Target<'_>) -> FiAddr {
    let QueuedPair { a, b, .. } = &target.pair;
    b.av.insert(&a.endpoint.name().to_bytes()).unwrap()
}

/// One operation after the other.
fn each_form(target: &Target<'_>) {
    let a = &target.pair.a;
    for (number, len) in SIZES.into_iter().enumerate() {
        let (from, bytes) = filled(a, len, number + 5);
        let write = RmaOp {
            flags: Flags::COMPLETION | Flags::DELIVERY_COMPLETE,
            ..target.op(RmaKind::Write, 64)
        };
        target.done(&write, &[from]);
        assert_eq!(target.content(64, len), bytes, "{len} bytes");
        let into = a.memory(len, 0xee);
        target.done(&target.op(RmaKind::Read, 64), &[into]);
        assert_eq!(a.bytes(into.addr, len), bytes, "{len} bytes");
    }
    let initiator = Initiator::of(target);
    for len in [8, 400, MAX_ATOMIC_BYTES] {
        set(target, 0, &[0; MAX_ATOMIC_BYTES]);
        let ones = 1u64.to_le_bytes().repeat(len / 8);
        for form in [AtomicForm::Base, AtomicForm::Fetch] {
            let sum = op(form, Operator::Sum, Datatype::Uint64);
            let arrays = arrays(&initiator, &sum, &ones, &[]);
            initiator.done(&sum, &arrays);
            if form == AtomicForm::Fetch {
                assert_eq!(initiator.word(arrays.results), 1);
            }
        }
        assert_eq!(target.content(0, len), 2u64.to_le_bytes().repeat(len / 8));
    }
    target.refused(
        &RmaOp {
            key: KEY + 1,
            ..target.op(RmaKind::Read, 0)
        },
        &[a.memory(8, 0)],
    );
}

/// Reads and fetches are under way while the target's address vector changes: each succeeds, and
/// the fetches are carried out in their order.
fn beside(target: &Target<'_>, rounds: usize, change: impl FnOnce()) {
    const OPS: usize = 60;
    const READ_FROM: usize = 1 << 20;

    let a = &target.pair.a;
    let initiator = Initiator::of(target);
    set(target, 0, &[0; MAX_ATOMIC_BYTES]);
    let bytes: Vec<u8> = (0..300_000).map(|at| (at * 3 + rounds) as u8).collect();
    set(target, READ_FROM, &bytes);
    let sum = op(AtomicForm::Fetch, Operator::Sum, Datatype::Uint64);
    let (mut fetches, mut reads) = (Vec::new(), Vec::new());
    for number in 0..OPS {
        let len = [8, MAX_ATOMIC_BYTES, 400][number % 3];
        let arrays = arrays(&initiator, &sum, &1u64.to_le_bytes().repeat(len / 8), &[]);
        fetches.push((initiator.begin(&sum, &arrays), arrays.results));
        let read = target.op(RmaKind::Read, READ_FROM);
        let into = a.memory([8, 5000, 300_000][number / 2 % 3], 0);
        target.begin(&read, &[into]);
        reads.push((read, into));
    }
    for _ in 0..rounds {
        target.pair.b.rx.pump();
        a.rx.pump();
    }
    change();
    for (before, (context, results)) in fetches.into_iter().enumerate() {
        initiator.over(context).unwrap();
        assert_eq!(initiator.word(results), before as u64);
    }
    for (read, into) in reads {
        target.over(&read).unwrap();
        assert!(a.bytes(into.addr, into.len) == bytes[..into.len]);
    }
}

/// A target serves an initiator that it has not inserted, beside and after its insertion, and
/// beside and after its removal.
pub fn that_are_inserted_and_removed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    each_form(&target);
    for round in 0..6 {
        beside(&target, round, || {});
        let mut to_a = FiAddr::NOTAVAIL;
        beside(&target, round, || to_a = insert(&target));
        beside(&target, round, || target.pair.b.av.remove(to_a).unwrap());
    }
    each_form(&target);
    insert(&target);
    each_form(&target);
    close_beside(region, &target.pair.a);
}

/// The first operation of all is under way when its initiator is inserted.
pub fn that_are_inserted_at_once(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for round in 0..6 {
        let target = open(domain_a, domain_b);
        let region = target.register(KEY, BOTH);
        beside(&target, round, || {
            insert(&target);
        });
        close_beside(region, &target.pair.a);
    }
}

/// Operations of an unknown initiator are under way while `disturb` breaks lanes: each succeeds.
pub fn whose_lanes_break(
    domain_a: &dyn Domain,
    domain_b: &dyn Domain,
    mut disturb: impl FnMut(usize),
) {
    let target = open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    each_form(&target);
    for round in 0..12 {
        beside(&target, round % 4, || disturb(round));
    }
    each_form(&target);
    close_beside(region, &target.pair.a);
}

/// A region closes while operations of an unknown initiator use it: each ends.
pub fn regions_that_close_meanwhile(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = open(domain_a, domain_b);
    let a = &target.pair.a;
    for round in 0..4 {
        let region = target.register(KEY, BOTH);
        let reads: Vec<_> = (0..60)
            .map(|number| {
                let read = target.op(RmaKind::Read, number * 1000);
                target.begin(&read, &[a.memory([8, 5000, 300_000][number % 3], 0)]);
                read
            })
            .collect();
        for _ in 0..round {
            target.pair.drive();
        }
        close_beside(region, a);
        for read in reads {
            if let Err(error) = target.over(&read) {
                assert_eq!(error.errno, Errno::EACCES, "{error:?}");
            }
        }
    }
}

/// Two unknown initiators number their reads in the same way, and each gets its own bytes.
pub fn two_of_one_target(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const OPS: usize = 40;

    let target = open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let QueuedPair { a, b, to_b, .. } = &target.pair;
    let other = QueuedEndpoint::open(domain_a);
    let other_to_b = other.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let ends = [(a, *to_b, 0), (&other, other_to_b, 1 << 20)];
    for (_, _, place) in ends {
        let bytes: Vec<u8> = (0..REGION / 2).map(|at| (at + place / 7) as u8).collect();
        set(&target, place, &bytes);
    }
    let mut begun = Vec::new();
    for number in 0..OPS {
        for (end, dest, place) in ends {
            let place = place + number * 1000;
            let into = end.memory([8, 5000, 300_000][number % 3], 0xee);
            let read = RmaOp {
                dest,
                context: end.context(),
                ..target.op(RmaKind::Read, place)
            };
            target.pair.until("no room for an operation", || {
                other.tx.pump();
                // SAFETY: the buffer lives as long as the endpoint.
                unsafe { end.endpoint.rma(&read, &[into]) }.ok()
            });
            begun.push((end, read, into, place));
        }
    }
    for (end, read, into, place) in begun {
        let ended = target.pair.until("a read does not complete", || {
            other.tx.pump();
            end.tx.take_of(read.context)
        });
        ended.unwrap();
        assert!(end.bytes(into.addr, into.len) == target.content(place, into.len));
    }
    std::thread::scope(|threads| {
        let closing = threads.spawn(|| drop(region));
        while !closing.is_finished() {
            a.tx.pump();
            other.tx.pump();
        }
    });
}
