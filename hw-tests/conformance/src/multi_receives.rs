//! Receives that take one message after another into one buffer.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{CompletionResult, QueuedEndpoint, QueuedPair, any_tagged, is_gone};

const MULTI: Flags = Flags::MULTI_RECV;

/// Long enough to be under way for a while.
const LONG: usize = 4 << 20;

fn multi(pair: &QueuedPair, kind: MsgKind) -> RecvOp {
    RecvOp {
        kind,
        src: pair.to_a,
        flags: MULTI | Flags::COMPLETION,
        ..any_tagged(pair.b.context())
    }
}

fn send(pair: &QueuedPair, kind: MsgKind, len: usize, fill: u8) -> u64 {
    let op = SendOp {
        kind,
        ..pair.tagged(u64::from(fill) * u64::from(kind == MsgKind::Tagged))
    };
    pair.a.send(&pair.b, op, len, fill);
    op.context
}

/// The next completion is a message of `a`, of `len` bytes that are all `fill`; returns it.
fn comes(pair: &QueuedPair, op: &RecvOp, len: usize, fill: u8) -> Completion {
    let c = pair.next(&pair.b.rx).unwrap();
    is_message(pair, op, &c, len, fill);
    c
}

fn is_message(pair: &QueuedPair, op: &RecvOp, c: &Completion, len: usize, fill: u8) {
    assert_eq!((c.context, c.len, c.src), (op.context, len, pair.to_a));
    assert_eq!(c.flags - MULTI, op.kind.recv_flags());
    assert_eq!(pair.b.bytes(c.buf, len), vec![fill; len]);
}

/// Messages lie behind each other, posted before and after; the last completion alone has the flag.
pub fn pieces_of_a_buffer(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for early in [true, false] {
            let pair = QueuedPair::open(domain_a, domain_b);
            let op = multi(&pair, kind);
            let buf = pair.b.memory(20_000, 0xff);
            let sizes = [9000, 0, 24, 1000, 9000, 950];
            let post = || pair.b.recv(&op, &[buf]).unwrap();
            if early {
                post();
            }
            for (i, len) in sizes.into_iter().enumerate() {
                send(&pair, kind, len, i as u8);
            }
            if !early {
                pair.drive();
                post();
            }
            // They lie in order; long ones may complete after short ones behind them.
            let mut at = buf.addr;
            let mut places: Vec<_> = sizes
                .into_iter()
                .enumerate()
                .map(|(i, len)| {
                    at += len;
                    (i as u8, at - len, len)
                })
                .collect();
            while !places.is_empty() {
                let c = pair.next(&pair.b.rx).unwrap();
                let place = places.iter().position(|p| (p.1, p.2) == (c.buf, c.len));
                let (fill, _, len) = places.remove(place.unwrap());
                is_message(&pair, &op, &c, len, fill);
                assert_eq!(c.flags.contains(MULTI), places.is_empty(), "{places:?}");
            }
            // 26 bytes are left: too few for another one.
            send(&pair, kind, 8, 9);
            let after = RecvOp {
                kind,
                ..any_tagged(pair.b.context())
            };
            pair.b.recv(&after, &[pair.b.memory(8, 0)]).unwrap();
            assert_eq!(pair.next(&pair.b.rx).unwrap().context, after.context);
            pair.b.cancel_late(op.context);
        }
    }
}

/// A short message that uses the buffer up completes before the long one in front of it: the buffer
/// is free when that is there too.
pub fn the_last_to_complete_frees_the_buffer(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let op = multi(&pair, MsgKind::Tagged);
    let buf = pair.b.memory(LONG + 100, 0xff);
    pair.b.recv(&op, &[buf]).unwrap();
    send(&pair, MsgKind::Tagged, LONG, 1);
    send(&pair, MsgKind::Tagged, 40, 2);
    let short = comes(&pair, &op, 40, 2);
    assert_eq!(short.buf, buf.addr + LONG);
    assert!(!short.flags.contains(MULTI), "the long one is under way");
    let long = comes(&pair, &op, LONG, 1);
    assert_eq!(long.buf, buf.addr);
    assert!(long.flags.contains(MULTI));
}

/// How much has to be left is the application's to say.
pub fn the_minimum_of_free_space(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let b = &pair.b.endpoint;
    assert_eq!(b.min_multi_recv(), Ok(64));
    for (min, free_after) in [(500, 2), (0, 5), (300, 3), (1200, 1)] {
        b.set_min_multi_recv(min).unwrap();
        assert_eq!(b.min_multi_recv(), Ok(min.max(1)));
        let op = multi(&pair, MsgKind::Msg);
        pair.b.recv(&op, &[pair.b.memory(1000, 0)]).unwrap();
        for i in 1..=free_after {
            send(
                &pair,
                MsgKind::Msg,
                [300, 250, 200, 200, 50][i - 1],
                i as u8,
            );
            let c = comes(&pair, &op, [300, 250, 200, 200, 50][i - 1], i as u8);
            assert_eq!(c.flags.contains(MULTI), i == free_after, "{min}: {i}");
        }
    }
}

/// A message longer than the rest of the buffer fills it, and the error releases the buffer.
pub fn a_message_that_is_too_long(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    for len in [1000, 9000, 120_000] {
        let op = multi(&pair, MsgKind::Tagged);
        let buf = pair.b.memory(500, 0xff);
        pair.b.recv(&op, &[buf]).unwrap();
        send(&pair, MsgKind::Tagged, 200, 1);
        assert!(!comes(&pair, &op, 200, 1).flags.contains(MULTI));
        send(&pair, MsgKind::Tagged, len, 2);
        let error = pair.next(&pair.b.rx).unwrap_err();
        assert_eq!((error.errno, error.olen), (Errno::ETRUNC, len - 300));
        assert_eq!(
            (error.completion.buf, error.completion.len),
            (buf.addr + 200, 300)
        );
        assert!(error.completion.flags.contains(MULTI));
        assert_eq!(pair.b.bytes(buf.addr + 200, 300), vec![2; 300]);
        pair.b.cancel_late(op.context);
    }
}

/// Without completions there is one all the same: that the buffer is free. All are counted.
pub fn only_the_last_completes_if_none_are_wanted(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let before = pair.b.rx.counts();
    let op = RecvOp {
        flags: MULTI,
        ..multi(&pair, MsgKind::Msg)
    };
    pair.b.recv(&op, &[pair.b.memory(1000, 0)]).unwrap();
    for fill in 1..=4 {
        send(&pair, MsgKind::Msg, 240, fill);
    }
    assert!(comes(&pair, &op, 240, 4).flags.contains(MULTI));
    assert_eq!(pair.b.rx.counts(), (before.0 + 4, before.1));
}

fn is_cancelled(event: CompletionResult, op: &RecvOp) {
    let error = event.unwrap_err();
    assert_eq!(error.errno, Errno::ECANCELED);
    assert_eq!(error.completion.context, op.context);
    assert_eq!(error.completion.flags, op.kind.recv_flags() | MULTI);
}

/// Unused or partly used, it completes once more, and takes nothing after that.
pub fn cancelled(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    for messages in [0, 1, 3] {
        let op = multi(&pair, MsgKind::Tagged);
        pair.b.recv(&op, &[pair.b.memory(1000, 0)]).unwrap();
        for fill in 1..=messages {
            send(&pair, MsgKind::Tagged, 100, fill);
            assert!(!comes(&pair, &op, 100, fill).flags.contains(MULTI));
        }
        pair.b.endpoint.cancel(op.context).unwrap();
        pair.b.cancel_late(op.context);
        is_cancelled(pair.next(&pair.b.rx), &op);
        send(&pair, MsgKind::Tagged, 100, 9);
        pair.barrier();
        assert!(pair.b.rx.take().is_none());
        let rest = RecvOp {
            flags: Flags::PEEK | Flags::DISCARD,
            ..any_tagged(pair.b.context())
        };
        pair.b.probe(&rest).unwrap();
    }
}

/// Cancelled while a message is on its way into it, it is the application's when that is there.
/// `held_up` when a sender that does nothing holds messages up.
pub fn cancelled_in_use(domain_a: &dyn Domain, domain_b: &dyn Domain, held_up: bool) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let op = multi(&pair, MsgKind::Tagged);
    pair.b.recv(&op, &[pair.b.memory(2 * LONG, 0)]).unwrap();
    send(&pair, MsgKind::Tagged, LONG, 1);
    // Nobody drives the sender.
    for _ in 0..100 {
        pair.b.rx.pump();
    }
    if !held_up {
        pair.barrier();
    }
    pair.b.endpoint.cancel(op.context).unwrap();
    if held_up {
        pair.b.rx.pump();
        assert!(pair.b.rx.take().is_none(), "the message is under way");
    }
    assert!(!comes(&pair, &op, LONG, 1).flags.contains(MULTI));
    is_cancelled(pair.next(&pair.b.rx), &op);
    pair.barrier();
    assert!(pair.b.rx.take().is_none());
}

/// The sender, the only one that it takes messages from, is gone while one is on its way: an error
/// for the message, then one for the buffer.
pub fn the_sender_is_gone(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let op = multi(&pair, MsgKind::Tagged);
    let buf: IoBuf = pair.b.memory(2 * LONG, 0);
    pair.b.recv(&op, &[buf]).unwrap();
    send(&pair, MsgKind::Tagged, LONG, 1);
    for _ in 0..100 {
        pair.b.rx.pump();
    }
    let QueuedPair { a, b, .. } = pair;
    let QueuedEndpoint {
        endpoint,
        memory: _memory,
        ..
    } = a;
    drop(endpoint);
    let errors: Vec<_> = (0..2).map(|_| b.next_alone().unwrap_err()).collect();
    assert_eq!(errors[0].completion.flags, op.kind.recv_flags());
    assert_eq!(errors[0].completion.buf, buf.addr);
    assert_eq!(errors[1].completion.flags, op.kind.recv_flags() | MULTI);
    for error in errors {
        assert!(is_gone(error.errno), "{error:?}");
        assert_eq!(error.completion.context, op.context);
    }
}

/// One buffer, no more and no less.
pub fn lists_are_refused(domain: &dyn Domain) {
    let end = QueuedEndpoint::open(domain);
    let op = RecvOp {
        flags: MULTI,
        ..any_tagged(end.context())
    };
    let buf = end.memory(100, 0);
    for iov in [&[][..], &[buf, buf]] {
        let refused = end.recv(&op, iov);
        assert_eq!(refused, Err(OpError::Failed(Errno::EINVAL)));
    }
}
