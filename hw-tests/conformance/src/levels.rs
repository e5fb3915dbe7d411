//! Completion levels (fi_cq(3)) and fences (fi_endpoint(3)): when a send is complete, and which
//! ones wait for it.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{BLANK, QueuedPair, any_tagged};

/// Of every way that messages take.
const SIZES: [usize; 8] = [0, 8, 48, 4000, 9000, 30_000, 120_000, 1 << 20];

/// Calls to progress on both sides in which what may come has come.
const ROUNDS: usize = 100;

fn delivered(pair: &QueuedPair, kind: MsgKind, tag: u64) -> SendOp {
    let op = pair.tagged(tag);
    SendOp {
        kind,
        tag: if kind == MsgKind::Tagged { tag } else { 0 },
        data: 77,
        flags: op.flags | Flags::DELIVERY_COMPLETE | Flags::REMOTE_CQ_DATA,
        ..op
    }
}

fn receive(pair: &QueuedPair, kind: MsgKind) -> RecvOp {
    RecvOp {
        kind,
        ..any_tagged(pair.b.context())
    }
}

fn settle(pair: &QueuedPair) {
    for _ in 0..ROUNDS {
        pair.drive();
    }
}

/// With `FI_DELIVERY_COMPLETE` a send completes when its message stands in the receive's buffer,
/// and not before.
pub fn delivery(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    let inject = domain_a.info().tx.inject_size;
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in SIZES.into_iter().chain([inject]) {
            for (level, injected) in [
                (Flags::DELIVERY_COMPLETE, false),
                (Flags::MATCH_COMPLETE, false),
                (Flags::DELIVERY_COMPLETE, true),
            ] {
                if injected && len > inject {
                    continue;
                }
                let op = delivered(&pair, kind, 5);
                let with = if injected {
                    Flags::INJECT
                } else {
                    Flags::empty()
                };
                let op = SendOp {
                    flags: (op.flags - Flags::DELIVERY_COMPLETE) | level | with,
                    ..op
                };
                // Nobody waits for it.
                let sent = a.tx.counts();
                a.send(b, op, len, 3);
                settle(&pair);
                let early = a.tx.take_of(op.context);
                assert!(early.is_none(), "{len} bytes are not received: {early:?}");
                assert_eq!(a.tx.counts(), sent);
                let (recv, into) = (receive(&pair, kind), b.memory(len, 0));
                b.recv(&recv, &[into]).unwrap();
                complete(&pair, &op, &recv, into, 3);
                assert_eq!(a.tx.counts(), (sent.0 + 1, sent.1));
                // Somebody waits.
                let op = SendOp {
                    context: a.context(),
                    ..op
                };
                let (recv, into) = (receive(&pair, kind), b.memory(len, 0));
                b.recv(&recv, &[into]).unwrap();
                a.send(b, op, len, 4);
                complete(&pair, &op, &recv, into, 4);
            }
        }
    }
}

/// Waits for the send alone: then the message is there.
fn complete(pair: &QueuedPair, send: &SendOp, recv: &RecvOp, into: IoBuf, fill: u8) {
    let (a, b) = (&pair.a, &pair.b);
    let done = pair.until("a delivered send does not complete", || {
        let done = a.tx.take_of(send.context)?;
        let there = b.bytes(into.addr, into.len);
        assert!(
            there.iter().all(|byte| *byte == fill),
            "the send of {} bytes completed before they were there",
            into.len
        );
        Some(done)
    });
    assert_eq!(done.unwrap().flags, send.kind.send_flags());
    let got = pair.wait(&b.rx, recv.context).unwrap();
    assert_eq!((got.len, got.tag, got.data), (into.len, send.tag, 77));
}

/// A message that is dropped or does not fit counts as delivered, too; the messages that follow it
/// arrive after it.
pub fn delivery_of_dropped_and_truncated_messages(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    for len in SIZES {
        let op = delivered(&pair, MsgKind::Tagged, 1);
        a.send(b, op, len, 1);
        pair.barrier();
        assert!(a.tx.take_of(op.context).is_none());
        let drop = RecvOp {
            flags: Flags::PEEK | Flags::DISCARD,
            ..receive(&pair, MsgKind::Tagged)
        };
        assert_eq!(b.probe(&drop).unwrap().len, len);
        pair.wait(&a.tx, op.context).unwrap();
        if len == 0 {
            continue;
        }
        for unexpected in [false, true] {
            let recv = receive(&pair, MsgKind::Tagged);
            let op = delivered(&pair, MsgKind::Tagged, 2);
            let post = || b.recv(&recv, &[b.memory(len / 2, 0)]).unwrap();
            if !unexpected {
                post();
            }
            a.send(b, op, len, 1);
            if unexpected {
                pair.barrier();
                post();
            }
            pair.wait(&a.tx, op.context).unwrap();
            let error = pair.wait(&b.rx, recv.context).unwrap_err();
            assert_eq!((error.errno, error.olen), (Errno::ETRUNC, len - len / 2));
        }
    }
    // Of both sorts in turns.
    let sends: Vec<SendOp> = (0..64)
        .map(|tag| match tag % 2 {
            0 => delivered(&pair, MsgKind::Tagged, tag),
            _ => pair.tagged(tag),
        })
        .collect();
    for op in &sends {
        a.send(b, *op, SIZES[op.tag as usize % 6], 1);
    }
    for op in &sends {
        let recv = receive(&pair, MsgKind::Tagged);
        b.recv(&recv, &[b.memory(SIZES[5], 0)]).unwrap();
        assert_eq!(pair.wait(&b.rx, recv.context).unwrap().tag, op.tag);
    }
    for op in &sends {
        pair.wait(&a.tx, op.context).unwrap();
    }
}

/// A send that was not delivered fails when its receiver is gone.
pub fn delivery_to_a_peer_that_closes(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let ops = SIZES.map(|len| {
        let op = delivered(&pair, MsgKind::Tagged, 1);
        pair.a.send(&pair.b, op, len, 1);
        op
    });
    pair.barrier();
    let crate::ends::QueuedPair { a, b, .. } = pair;
    drop(b);
    for op in ops {
        let until = std::time::Instant::now() + crate::ends::PATIENCE;
        let event = loop {
            a.tx.pump();
            if let Some(event) = a.tx.take_of(op.context) {
                break event;
            }
            assert!(std::time::Instant::now() < until, "the send hangs");
            std::thread::yield_now();
        };
        let error = event.unwrap_err();
        assert!(crate::ends::is_gone(error.errno), "{error:?}");
    }
}

/// A send with `FI_FENCE` starts when all earlier sends are complete; later sends stay behind it.
pub fn fences(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    let peek = |tag| {
        let op = RecvOp {
            tag,
            ignore: 0,
            flags: Flags::PEEK,
            ..receive(&pair, MsgKind::Tagged)
        };
        b.probe(&op).is_ok()
    };
    for (fence, len) in [(Flags::empty(), 8), (Flags::FENCE, 8), (Flags::FENCE, 9000)] {
        // One that is not complete before it is received, by its length or by its level.
        for (first, level) in [(1 << 20, Flags::empty()), (8, Flags::DELIVERY_COMPLETE)] {
            let slow = pair.tagged(1);
            let slow = SendOp {
                flags: slow.flags | level,
                ..slow
            };
            let fenced = SendOp {
                flags: Flags::COMPLETION | fence,
                ..pair.tagged(2)
            };
            let behind = pair.tagged(3);
            a.send(b, slow, first, 1);
            a.send(b, fenced, len, 2);
            a.send(b, behind, 8, 3);
            pair.until("the first is not announced", || peek(1).then_some(()));
            settle(&pair);
            if fence.is_empty() {
                pair.until("without a fence they come", || peek(3).then_some(()));
            } else {
                assert!(!peek(2) && !peek(3), "a fence was passed");
            }
            let mut done = Vec::new();
            for tag in 1..=3 {
                let recv = RecvOp {
                    tag,
                    ignore: 0,
                    ..receive(&pair, MsgKind::Tagged)
                };
                b.recv(&recv, &[b.memory(1 << 20, 0)]).unwrap();
                done.push(recv.context);
            }
            for context in done {
                pair.wait(&b.rx, context).unwrap();
            }
            let mut order = Vec::new();
            while order.len() < 3 {
                order.push(pair.next(&a.tx).unwrap().context);
            }
            if !fence.is_empty() {
                assert_eq!(order[0], slow.context, "{order:?}");
            }
        }
    }
    // With nothing before it, it goes at once.
    let op = SendOp {
        flags: Flags::COMPLETION | Flags::FENCE,
        ..pair.tagged(9)
    };
    a.send(b, op, 8, 1);
    pair.until("a fence with nothing before it", || peek(9).then_some(()));
}

/// A level that nobody can keep is refused, not forgotten.
pub fn refused(domain: &dyn Domain) {
    let pair = QueuedPair::open(domain, domain);
    let op = SendOp {
        flags: Flags::COMPLETION | Flags::COMMIT_COMPLETE,
        ..pair.tagged(1)
    };
    // SAFETY: no bytes.
    let sent = unsafe { pair.a.endpoint.send(&op, &[]) };
    assert_eq!(sent, Err(OpError::Failed(Errno::EOPNOTSUPP)));
    settle(&pair);
    assert_eq!(pair.a.tx.cq.read(&mut [BLANK]), Err(OpError::Again));
}
