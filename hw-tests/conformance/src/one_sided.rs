//! One-sided operations (fi_rma(3)): reads and writes of a peer's regions.

use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{MrDesc, MsgKind, RmaKind, RmaOp, SendOp};
use ferrofabric_runtime::fabric::{Cntr, Domain};

use crate::ends::{QueuedPair, any_tagged};
use crate::target::{BOTH, KEY, REGION, Target, close_beside, filled};

/// Of every way that messages take.
const SIZES: [usize; 9] = [0, 1, 8, 48, 4000, 9000, 30_000, 120_000, 1 << 20];

/// The bytes of a write are in the region, there alone, and are read back.
///
/// Covers: GI-3
pub fn reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    for (number, len) in SIZES.into_iter().enumerate() {
        for place in [0, 13, REGION - len] {
            let (from, bytes) = filled(a, len, number + place);
            target.done(&target.op(RmaKind::Write, place), &[from]);
            assert_eq!(target.content(place, len), bytes, "{len} bytes at {place}");
            let into = a.memory(len, 0xee);
            target.done(&target.op(RmaKind::Read, place), &[into]);
            assert_eq!(a.bytes(into.addr, len), bytes, "{len} bytes from {place}");
        }
    }
    // Nothing else changes.
    let before = target.content(0, REGION);
    let (from, bytes) = filled(a, 100, 3);
    target.done(&target.op(RmaKind::Write, 5000), &[from]);
    let after = target.content(0, REGION);
    assert!(after[..5000] == before[..5000] && after[5100..] == before[5100..]);
    assert_eq!(after[5000..5100], bytes);
}

/// Buffers are gathered and scattered, and a write that is injected needs them no longer.
pub fn lists_and_injects(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    for len in [30, 6000, 60_000] {
        let (from, bytes) = filled(a, len, len);
        let cut = len / 3;
        let parts = [from.part(0, cut), from.part(cut, len)];
        target.done(&target.op(RmaKind::Write, 77), &parts);
        assert_eq!(target.content(77, len), bytes);
        let into = a.memory(len, 0);
        let parts = [into.part(0, 2 * cut), into.part(2 * cut, len)];
        target.done(&target.op(RmaKind::Read, 77), &parts);
        assert_eq!(a.bytes(into.addr, len), bytes);
    }
    let len = domain_a.info().tx.inject_size;
    let (from, bytes) = filled(a, len, 9);
    let op = RmaOp {
        flags: Flags::COMPLETION | Flags::INJECT,
        ..target.op(RmaKind::Write, 1)
    };
    target.begin(&op, &[from]);
    // SAFETY: the operation does not use the memory any more.
    unsafe { from.as_mut_ptr().write_bytes(0, len) };
    target.over(&op).unwrap();
    assert_eq!(target.content(1, len), bytes);
}

/// CQ data comes to the target after the bytes that it came with.
///
/// Covers: AV-25
pub fn writes_with_data(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let QueuedPair { a, b, to_a, .. } = &target.pair;
    for (number, len) in SIZES.into_iter().enumerate() {
        let (from, bytes) = filled(a, len, number + 40);
        let op = RmaOp {
            data: (1 << 40) | number as u64,
            flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
            ..target.op(RmaKind::Write, 300)
        };
        target.begin(&op, &[from]);
        let notice = target.pair.next(&b.rx).unwrap();
        assert_eq!(target.content(300, len), bytes);
        let flags = Flags::RMA | Flags::REMOTE_WRITE | Flags::REMOTE_CQ_DATA;
        let came = (notice.flags, notice.data, notice.len, notice.src);
        assert_eq!(came, (flags, op.data, len, *to_a));
        target.over(&op).unwrap();
    }
}

/// A region that closes while operations use it: each ends, those that were begun after the close
/// fail, and nothing is written after it.
pub fn regions_that_close(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const EACH: usize = 40;

    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    for len in [8, 5000, 300_000] {
        let region = target.register(KEY, BOTH);
        let mut ops = Vec::new();
        for number in 0..EACH {
            let (buf, _) = filled(a, len, number);
            let kind = [RmaKind::Write, RmaKind::Read][number % 2];
            let op = target.op(kind, number * 1000);
            target.begin(&op, &[buf]);
            ops.push(op);
        }
        target.pair.drive();
        close_beside(region, a);
        let after = target.content(0, REGION);
        let ended: Vec<_> = ops.iter().map(|op| target.over(op)).collect();
        for error in ended.iter().filter_map(|one| one.as_ref().err()) {
            assert_eq!(error.errno, Errno::EACCES);
        }
        target.refused(&target.op(RmaKind::Write, 0), &[a.memory(len, 1)]);
        assert_eq!(target.content(0, REGION), after);
    }
}

/// A fenced operation begins when those before it are over: a read has its bytes, and the data of a
/// write has come.
pub fn fences_after_reads_and_writes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const HALF: usize = REGION / 2;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let QueuedPair { a, b, .. } = &target.pair;
    for len in [8, 9000, HALF] {
        let (from, bytes) = filled(a, len, 60 + len);
        target.done(&target.op(RmaKind::Write, 0), &[from]);
        let between = a.memory(len, 0xee);
        let read = target.op(RmaKind::Read, 0);
        let fenced = RmaOp {
            flags: Flags::COMPLETION | Flags::FENCE | Flags::REMOTE_CQ_DATA,
            ..target.op(RmaKind::Write, HALF)
        };
        target.begin(&read, &[between]);
        target.begin(&fenced, &[between]);
        // A message behind the write comes after the notice of it.
        let message = SendOp {
            kind: MsgKind::Tagged,
            flags: Flags::COMPLETION | Flags::FENCE,
            ..target.pair.tagged(1)
        };
        let receive = any_tagged(b.context());
        b.recv(&receive, &[b.memory(8, 0)]).unwrap();
        a.send(b, message, 8, 1);
        let came = [target.pair.next(&b.rx), target.pair.next(&b.rx)].map(Result::unwrap);
        assert!(came[0].flags.contains(Flags::REMOTE_WRITE), "{came:?}");
        assert_eq!(came[1].context, receive.context);
        assert_eq!(target.content(HALF, len), bytes);
        target.over(&read).unwrap();
        target.over(&fenced).unwrap();
        target.pair.wait(&a.tx, message.context).unwrap();
    }
}

/// More reads than an endpoint has under way at a time.
pub fn many_reads(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const READS: usize = 3000;

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    let (from, bytes) = filled(a, READS, 8);
    target.done(&target.op(RmaKind::Write, 0), &[from]);
    let into = a.memory(READS, 0);
    let reads: Vec<_> = (0..READS)
        .map(|number| {
            let op = target.op(RmaKind::Read, number);
            target.begin(&op, &[into.part(number, 1)]);
            op
        })
        .collect();
    for op in &reads {
        target.over(op).unwrap();
    }
    assert_eq!(a.bytes(into.addr, READS), bytes);
}

/// Reads of one peer complete in the order of their calls, short ones behind long ones too: when
/// one completes, the bytes of all before it are there.
pub fn reads_in_order(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const LENGTHS: [usize; 6] = [1 << 20, 8, 30_000, 300_000, 0, 4000];

    let target = Target::open(domain_a, domain_b);
    let _region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    let (from, bytes) = filled(a, REGION, 4);
    target.done(&target.op(RmaKind::Write, 0), &[from]);
    // A device takes over in the midst of them, where there is one.
    for round in 0..20 {
        let reads: Vec<_> = (0..2 * LENGTHS.len())
            .map(|number| {
                let len = LENGTHS[number % LENGTHS.len()];
                let (op, into) = (target.op(RmaKind::Read, number), a.memory(len, 0));
                target.begin(&op, &[into]);
                (op, into)
            })
            .collect();
        for (place, (op, into)) in reads.iter().enumerate() {
            let done = target.pair.next(&a.tx).unwrap();
            assert_eq!(done.context, op.context, "round {round}, read {place}");
            let there = a.bytes(into.addr, into.len);
            assert!(there == bytes[place..][..into.len], "{round}, {place}");
        }
    }
}

/// Operations that are under way, of each kind and several lengths.
fn under_way(target: &Target<'_>) -> Vec<RmaOp> {
    let a = &target.pair.a;
    (0..60)
        .map(|number| {
            let kind = [RmaKind::Write, RmaKind::Read][number % 2];
            let data = [Flags::empty(), Flags::REMOTE_CQ_DATA][usize::from(number % 4 == 0)];
            let op = RmaOp {
                flags: Flags::COMPLETION | data,
                ..target.op(kind, number * 1000)
            };
            target.begin(
                &op,
                &[a.memory([8, 5000, 300_000][number % 3], number as u8)],
            );
            op
        })
        .collect()
}

/// Each operation on the memory of a target that closes ends, and its region closes.
pub fn a_target_that_closes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let ops = under_way(&target);
    // It has taken memory for parts whose bytes will never come.
    target.pair.b.rx.pump();
    let QueuedPair { a, b, .. } = target.pair;
    let memory = b.memory;
    drop(b.endpoint);
    drop(region);
    a.outlive_peer(ops.iter().map(|op| op.context).collect());
    drop(memory);
}

/// A region whose initiator closes in the midst of operations closes, too.
pub fn an_initiator_that_closes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    under_way(&target);
    target.pair.drive();
    let QueuedPair { a, b, .. } = target.pair;
    drop(a.endpoint);
    b.rx.pump();
    drop(region);
}

/// The reads of a peer that is removed from the address vector end.
///
/// Covers: AV-17
pub fn a_target_that_is_removed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let ops = under_way(&target);
    let a = &target.pair.a;
    a.av.remove(target.pair.to_b).unwrap();
    for op in &ops {
        if let Err(error) = target.over(op) {
            // Of a write with data, the bytes may be there, and the data is not sent any more.
            let expected = [Errno::ECANCELED, Errno::EADDRNOTAVAIL];
            assert!(expected.contains(&error.errno), "{error:?}");
        }
    }
    close_beside(region, a);
}

/// Operations count where counters are bound, at both ends.
///
/// Covers: GI-3
pub fn counters(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let (target, of_a, of_b) = Target::open_counted(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let (a, b) = (&target.pair.a, &target.pair.b);
    let counts = |cntr: &Arc<dyn Cntr>| (cntr.read().unwrap(), cntr.read_errors().unwrap());
    let (sends, receives) = (a.tx.counts(), b.rx.counts());
    let silent = |kind| RmaOp {
        flags: Flags::empty(),
        ..target.op(kind, 0)
    };
    let buf = a.memory(9000, 1);
    for number in 1..=3 {
        target.begin(&silent(RmaKind::Write), &[buf]);
        target.begin(&silent(RmaKind::Read), &[buf]);
        target.pair.until("the operations do not count", || {
            let all = [&of_a[0], &of_a[1], &of_b[0], &of_b[1]].map(counts);
            (all == [(number, 0); 4]).then_some(())
        });
    }
    drop(region);
    for (kind, cntr) in [(RmaKind::Read, &of_a[0]), (RmaKind::Write, &of_a[1])] {
        target.refused(&target.op(kind, 0), &[buf]);
        assert_eq!(counts(cntr), (3, 1));
    }
    assert_eq!([&of_b[0], &of_b[1]].map(counts), [(3, 0); 2]);
    // They are no sends and receives, and had no completions.
    assert_eq!((a.tx.counts(), b.rx.counts()), (sends, receives));
    assert!(a.tx.take().is_none());
}

/// Once a device has a grant, it carries out what it can, with the same effect as messages; and a
/// region that closes takes its grants with it, even if another one gets its key.
pub fn by_devices(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let a = &target.pair.a;
    for round in 0..3 {
        let region = target.register(KEY, BOTH);
        target.await_grant();
        for (number, len) in SIZES.into_iter().enumerate() {
            let (from, bytes) = filled(a, len, number + round);
            for level in [Flags::empty(), Flags::DELIVERY_COMPLETE] {
                let write = RmaOp {
                    flags: Flags::COMPLETION | level,
                    ..target.op(RmaKind::Write, 100)
                };
                let cleared = a.memory(len, 0);
                target.done(&target.op(RmaKind::Write, 100), &[cleared]);
                target.done(&write, &[from]);
                assert_eq!(target.content(100, len), bytes);
            }
            let into = a.memory(len, 0xee);
            target.done(&target.op(RmaKind::Read, 100), &[into]);
            assert_eq!(a.bytes(into.addr, len), bytes);
        }
        close_beside(region, a);
        let (from, _) = filled(a, 8, 0);
        target.refused(&target.op(RmaKind::Write, 0), &[from]);
    }
}

/// Sends of `b` that wait behind a fence for a receive of `a`: as many as there is room for, but not
/// a million.
pub(crate) fn sends_behind_a_fence(pair: &QueuedPair) -> Vec<SendOp> {
    const MOST: usize = 2000;
    let QueuedPair { b, to_a, .. } = pair;
    let from = b.memory(8, 1);
    let mut sends = Vec::new();
    while sends.len() < MOST {
        let fenced = match sends.len() {
            0 => Flags::DELIVERY_COMPLETE,
            1 => Flags::FENCE,
            _ => Flags::empty(),
        };
        let op = SendOp {
            kind: MsgKind::Tagged,
            dest: *to_a,
            tag: sends.len() as u64,
            data: 0,
            desc: MrDesc::NONE,
            context: b.context(),
            flags: Flags::COMPLETION | fenced,
        };
        // SAFETY: the buffer lives as long as the endpoint.
        match unsafe { b.endpoint.send(&op, &[from]) } {
            Ok(()) => sends.push(op),
            Err(OpError::Again) => break,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(sends.len() > 2);
    sends
}

/// Receives messages of `b` in their order.
pub(crate) fn receive_all(pair: &QueuedPair, sends: &[SendOp]) {
    let QueuedPair { a, b, .. } = pair;
    for op in sends {
        let receive = any_tagged(a.context());
        a.recv(&receive, &[a.memory(8, 0)]).unwrap();
        let came = pair.wait(&a.rx, receive.context).unwrap();
        assert_eq!(came.tag, op.tag);
        pair.wait(&b.tx, op.context).unwrap();
    }
}

/// A read is answered although the target's own sends to the initiator wait behind a fence for a
/// receive that the initiator posts after the read.
pub fn a_read_from_a_target_that_is_fenced(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let region = target.register(KEY, BOTH);
    let a = &target.pair.a;
    let sends = sends_behind_a_fence(&target.pair);
    for len in [8, 5000, 300_000] {
        for _ in 0..20 {
            target.done(&target.op(RmaKind::Read, 0), &[a.memory(len, 0)]);
        }
    }
    close_beside(region, a);
    receive_all(&target.pair, &sends);
}

/// Each read succeeds though the target removes its initiator while it is under way, and the region
/// closes afterwards.
pub fn an_initiator_that_is_removed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let target = Target::open(domain_a, domain_b);
    let QueuedPair { a, b, to_a, .. } = &target.pair;
    let mut to_a = *to_a;
    for round in 0..40 {
        let region = target.register(KEY, BOTH);
        let ops: Vec<_> = (0..60)
            .map(|number| {
                let op = target.op(RmaKind::Read, number * 1000);
                let len = [8, 5000, 300_000][(number + round) % 3];
                target.begin(&op, &[a.memory(len, 0)]);
                op
            })
            .collect();
        for _ in 0..round % 10 {
            b.rx.pump();
            if round % 2 == 0 {
                a.rx.pump();
            }
        }
        b.av.remove(to_a).unwrap();
        for op in &ops {
            target.over(op).unwrap();
        }
        close_beside(region, a);
        to_a = b.av.insert(&a.endpoint.name().to_bytes()).unwrap();
    }
}
