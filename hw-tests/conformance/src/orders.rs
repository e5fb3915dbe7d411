//! The orders between operations that an endpoint may have (fi_endpoint(3), `msg_order`): none
//! waits for a completion here, and each sees those before it.

use std::sync::Arc;

use ferrofabric_contracts::atomics::{AtomicForm, AtomicOperator, Datatype};
use ferrofabric_contracts::flags::{Flags, Order};
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{Domain, Mr};

use crate::atomics::{Initiator, arrays, op};
use crate::ends::any_tagged;
use crate::target::{BOTH, KEY, Target, filled};

/// Of every way that operations take; a short one after each longer one may overtake it.
const SIZES: [usize; 7] = [1 << 19, 8, 9000, 48, 120_000, 4000, 1];

/// Times that each sequence runs: the first operations go before a device has a grant.
const ROUNDS: usize = 6;

/// A target, for an initiator whose operations keep an order.
fn open<'a>(
    domain_a: &dyn Domain,
    domain_b: &'a dyn Domain,
    order: Order,
) -> (Target<'a>, Arc<dyn Mr>) {
    let domains = (domain_a, domain_b);
    let target = Target::open_with(domains, |config| config.tx.msg_order = order, |_| {});
    let region = target.register(KEY, BOTH);
    (target, region)
}

/// A message from `a` to `b`, and its receive in memory of `b`.
fn message(target: &Target<'_>, into: IoBuf) -> (SendOp, u64) {
    let b = &target.pair.b;
    let receive = RecvOp {
        tag: 1,
        ignore: 0,
        ..any_tagged(b.context())
    };
    b.recv(&receive, &[into]).unwrap();
    let send = SendOp {
        kind: MsgKind::Tagged,
        ..target.pair.tagged(1)
    };
    (send, receive.context)
}

/// Each byte is that of the last write, whatever way the writes went.
pub fn writes_after_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for order in [Order::WAW, Order::RMA_WAW] {
        let (target, _region) = open(domain_a, domain_b, order);
        target.await_grant();
        let mut expected = target.content(0, SIZES[0]);
        let mut writes = Vec::new();
        for number in 0..ROUNDS * SIZES.len() {
            let len = SIZES[number % SIZES.len()];
            let place = number % 3;
            let len = len.min(SIZES[0] - place);
            let (from, bytes) = filled(&target.pair.a, len, 13 * number);
            expected[place..place + len].copy_from_slice(&bytes);
            let data = match number % 5 {
                0 => Flags::REMOTE_CQ_DATA,
                _ => Flags::empty(),
            };
            let write = RmaOp {
                flags: Flags::COMPLETION | data,
                ..target.op(RmaKind::Write, place)
            };
            target.begin(&write, &[from]);
            writes.push(write);
        }
        for write in &writes {
            target.over(write).unwrap();
        }
        assert!(target.content(0, SIZES[0]) == expected, "{order:?}");
    }
}

/// A read has the bytes of the write before it, and not those of the write behind it.
pub fn reads_between_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for order in [
        Order::RAW | Order::WAR,
        Order::RMA_RAW | Order::RMA_WAR | Order::RMA_RAR,
    ] {
        let (target, _region) = open(domain_a, domain_b, order);
        let a = &target.pair.a;
        let mut ops = Vec::new();
        let mut reads = Vec::new();
        for number in 0..ROUNDS * SIZES.len() {
            let len = SIZES[number % SIZES.len()];
            let (from, bytes) = filled(a, len, 11 * number);
            let write = target.op(RmaKind::Write, 100);
            target.begin(&write, &[from]);
            let read = target.op(RmaKind::Read, 100);
            let into = a.memory(len, 0xee);
            target.begin(&read, &[into]);
            ops.extend([write, read]);
            reads.push((into, bytes));
        }
        for op in &ops {
            target.over(op).unwrap();
        }
        for (into, bytes) in reads {
            assert!(a.bytes(into.addr, bytes.len()) == bytes, "{order:?}");
        }
    }
}

/// A message comes after the bytes of the write before it, and after a read before it has its
/// bytes.
pub fn sends_after_reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, _region) = open(domain_a, domain_b, Order::SAW | Order::SAR);
    let a = &target.pair.a;
    for number in 0..ROUNDS * SIZES.len() {
        let len = SIZES[number % SIZES.len()];
        let (from, bytes) = filled(a, len, 17 * number);
        let write = target.op(RmaKind::Write, 0);
        target.begin(&write, &[from]);
        let (send, receive) = message(&target, target.pair.b.memory(8, 0));
        target.pair.send_list(&send, &[a.memory(8, 1)]);
        target.pair.wait(&target.pair.b.rx, receive).unwrap();
        assert!(target.content(0, len) == bytes, "{len} bytes");

        let read = target.op(RmaKind::Read, 0);
        let into = a.memory(len, 0xee);
        target.begin(&read, &[into]);
        let (again, receive) = message(&target, target.pair.b.memory(8, 0));
        target.pair.send_list(&again, &[a.memory(8, 1)]);
        target.pair.wait(&target.pair.b.rx, receive).unwrap();
        // SAFETY: the memory lives as long as the endpoint, and no operation changes it now.
        unsafe { target.memory.as_mut_ptr().write_bytes(0x55, len) };
        target.over(&read).unwrap();
        assert!(a.bytes(into.addr, len) == bytes, "{len} bytes");
        target.over(&write).unwrap();
        for sent in [send, again] {
            target.pair.wait(&a.tx, sent.context).unwrap();
        }
    }
}

/// A read has the bytes of the message before it, and a write comes after those: of messages that
/// are short enough to be injected. The bytes of longer ones may come later. A message that no
/// receive takes holds up neither.
pub fn reads_and_writes_after_sends(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, _region) = open(domain_a, domain_b, Order::RAS | Order::WAS);
    let a = &target.pair.a;
    let unmatched = SendOp {
        kind: MsgKind::Tagged,
        ..target.pair.tagged(2)
    };
    target.pair.send_list(&unmatched, &[a.memory(SIZES[0], 9)]);
    for number in 0..ROUNDS * SIZES.len() {
        let len = SIZES[number % SIZES.len()].min(domain_a.info().tx.inject_size);
        let (from, bytes) = filled(a, len, 19 * number);
        let (send, receive) = message(&target, target.memory.part(0, len));
        target.pair.send_list(&send, &[from]);
        let read = target.op(RmaKind::Read, 0);
        let into = a.memory(len, 0xee);
        target.begin(&read, &[into]);
        target.over(&read).unwrap();
        assert!(a.bytes(into.addr, len) == bytes, "{len} bytes");
        target.pair.wait(&target.pair.b.rx, receive).unwrap();

        let received = target.pair.b.memory(len, 0xee);
        let (again, receive) = message(&target, received);
        target.pair.send_list(&again, &[from]);
        let mark = [number as u8 + 1; 8];
        let write = target.op(RmaKind::Write, 1 << 20);
        let marked = a.memory(8, mark[0]);
        target.begin(&write, &[marked]);
        target.pair.until("no write comes", || {
            (target.content(1 << 20, 8) == mark).then_some(())
        });
        let came = target.pair.b.bytes(received.addr, len);
        assert!(came == bytes, "{len} bytes");
        target.over(&write).unwrap();
        target.pair.wait(&target.pair.b.rx, receive).unwrap();
        for sent in [send, again] {
            target.pair.wait(&a.tx, sent.context).unwrap();
        }
    }
    let b = &target.pair.b;
    let last = any_tagged(b.context());
    b.recv(&last, &[b.memory(SIZES[0], 0)]).unwrap();
    target.pair.wait(&b.rx, last.context).unwrap();
    target.pair.wait(&a.tx, unmatched.context).unwrap();
}

/// Atomic operations, reads and writes of one word, each after the one before it.
pub fn atomics_between_reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let order = Order::RAR | Order::RAW | Order::WAR | Order::WAW;
    let (target, _region) = open(domain_a, domain_b, order);
    let initiator = Initiator::of(&target);
    let a = &target.pair.a;
    let sum = op(AtomicForm::Base, AtomicOperator::Sum, Datatype::Uint64);
    let fetch = op(AtomicForm::Fetch, AtomicOperator::Sum, Datatype::Uint64);
    for round in 0..4 * ROUNDS as u64 {
        let (from, into) = (a.memory(8, round as u8), a.memory(8, 0xee));
        let start = u64::from_ne_bytes([round as u8; 8]);
        let write = target.op(RmaKind::Write, 0);
        target.begin(&write, &[from]);
        let adding = arrays(&initiator, &sum, &3u64.to_ne_bytes(), &[]);
        let summed = initiator.begin(&sum, &adding);
        let read = target.op(RmaKind::Read, 0);
        target.begin(&read, &[into]);
        let fetching = arrays(&initiator, &fetch, &4u64.to_ne_bytes(), &[]);
        let fetched = initiator.begin(&fetch, &fetching);
        let last = target.op(RmaKind::Write, 0);
        target.begin(&last, &[a.memory(8, 0)]);
        for one in [&write, &read, &last] {
            target.over(one).unwrap();
        }
        initiator.over(summed).unwrap();
        initiator.over(fetched).unwrap();
        let sum = (start + 3).to_ne_bytes();
        assert_eq!(a.bytes(into.addr, 8), sum);
        assert_eq!(initiator.word(fetching.results), start + 3);
        assert_eq!(target.content(0, 8), [0; 8]);
    }
}
