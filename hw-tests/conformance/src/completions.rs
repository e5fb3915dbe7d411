//! Tests of the operations that have a completion, and of those that are counted.

use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{MrDesc, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, QueuedPair, any_tagged, is_gone};

const SIZES: [usize; 4] = [0, 24, 9000, 120_000];

/// Only operations with `FI_COMPLETION` have a completion; all operations are counted. `INJECT`
/// does not imply `FI_COMPLETION`.
pub fn only_where_asked_for(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    let inject = domain_a.info().tx.inject_size;
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in SIZES.into_iter().chain([inject]) {
            for flags in [
                Flags::empty(),
                Flags::COMPLETION,
                Flags::INJECT,
                Flags::INJECT | Flags::COMPLETION,
                // Says nothing of a message.
                Flags::RMA | Flags::COMPLETION,
            ] {
                if flags.contains(Flags::INJECT) && len > inject {
                    continue;
                }
                let asks = flags.contains(Flags::COMPLETION);
                let (sent, received) = (a.tx.counts(), b.rx.counts());
                let recv = RecvOp {
                    kind,
                    flags: flags & Flags::COMPLETION,
                    ..any_tagged(b.context())
                };
                let into = b.memory(len, 0xff);
                b.recv(&recv, &[into]).unwrap();
                let send = SendOp {
                    kind,
                    flags,
                    ..pair.tagged(0)
                };
                a.send(b, send, len, 1);
                let counted = pair.until("an operation is not counted", || {
                    let counts = (a.tx.counts(), b.rx.counts());
                    (counts.0.0 > sent.0 && counts.1.0 > received.0).then_some(counts)
                });
                let expected = ((sent.0 + 1, sent.1), (received.0 + 1, received.1));
                assert_eq!(counted, expected);
                assert_eq!(b.bytes(into.addr, len), vec![1; len]);
                pair.drive();
                let completions = [a.tx.take_of(send.context), b.rx.take_of(recv.context)];
                for completion in completions {
                    assert_eq!(completion.is_some(), asks, "{flags:?} of {len} bytes");
                    assert!(completion.is_none_or(|c| c.is_ok()));
                }
                assert!(a.tx.take().is_none() && b.rx.take().is_none());
            }
        }
    }
}

/// A failed operation has an error completion, with and without `FI_COMPLETION`: a receive that is
/// too short, a cancelled receive, a send to a peer that has closed.
pub fn errors_always(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    let before = b.rx.counts();
    let quiet = |context| RecvOp {
        flags: Flags::empty(),
        ..any_tagged(context)
    };
    let mut failed = 0;
    for len in SIZES.into_iter().filter(|len| *len != 0) {
        let recv = quiet(b.context());
        b.recv(&recv, &[b.memory(len - 1, 0)]).unwrap();
        let send = pair.tagged(0);
        a.send(b, send, len, 1);
        let error = pair.wait(&b.rx, recv.context).unwrap_err();
        pair.wait(&a.tx, send.context).unwrap();
        assert_eq!((error.errno, error.olen), (Errno::ETRUNC, 1));
        failed += 1;
        assert_eq!(b.rx.counts(), (before.0, before.1 + failed));
    }
    let recv = quiet(b.context());
    b.recv(&recv, &[]).unwrap();
    b.endpoint.cancel(recv.context).unwrap();
    let error = pair.wait(&b.rx, recv.context).unwrap_err();
    assert_eq!(error.errno, Errno::ECANCELED);
    assert_eq!(b.rx.counts(), (before.0, before.1 + failed + 1));

    let sent = a.tx.counts();
    let send = SendOp {
        flags: Flags::empty(),
        ..pair.tagged(7)
    };
    a.send(b, send, 1 << 20, 1);
    pair.barrier();
    let QueuedPair { a, b, .. } = pair;
    drop(b);
    let error = next_failure(&a);
    assert!(is_gone(error.errno), "{error:?}");
    assert_eq!(
        (error.completion.context, error.completion.tag),
        (send.context, 7)
    );
    let (ok, errors) = a.tx.counts();
    assert_eq!(
        (ok - sent.0, errors),
        (1, sent.1 + 1),
        "one is the barrier's"
    );
}

fn next_failure(end: &QueuedEndpoint) -> ferrofabric_contracts::peer::CqError {
    let until = std::time::Instant::now() + PATIENCE;
    loop {
        end.tx.pump();
        match end.tx.take() {
            Some(event) => return event.unwrap_err(),
            None => assert!(std::time::Instant::now() < until, "the send hangs"),
        }
        std::thread::yield_now();
    }
}

/// Sends to an address where nobody is, injected or not, asking for a completion or not.
pub fn errors_of_sends_to_missing_peers(domain: &dyn Domain, nobody: impl Fn(&mut NativeAddr)) {
    let end = QueuedEndpoint::open(domain);
    let mut name = end.endpoint.name();
    nobody(&mut name);
    let dest = end.av.insert(&name.to_bytes()).unwrap();
    let flags = [Flags::empty(), Flags::INJECT, Flags::COMPLETION];
    let mut contexts = Vec::new();
    for flags in flags {
        let send = SendOp {
            kind: MsgKind::Tagged,
            dest,
            tag: 3,
            data: 0,
            desc: MrDesc::NONE,
            context: end.context(),
            flags,
        };
        end.send_alone(send, 8, 1);
        contexts.push(send.context);
    }
    for context in contexts {
        let error = next_failure(&end);
        assert_eq!(
            (error.completion.context, error.completion.src),
            (context, dest)
        );
    }
    assert_eq!(end.tx.counts(), (0, 3));
}

/// A send under way to a peer that closes its endpoint in order fails with `ESHUTDOWN`, whatever
/// carries it: fi_errno(3).
pub fn a_peer_that_closes_is_shut_down(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let send = pair.tagged(7);
    pair.a.send(&pair.b, send, 1 << 20, 1);
    pair.barrier();
    let QueuedPair { a, b, .. } = pair;
    drop(b);
    let error = next_failure(&a);
    assert_eq!(error.errno, Errno::ESHUTDOWN, "{error:?}");
    assert_eq!(error.completion.context, send.context);
}
