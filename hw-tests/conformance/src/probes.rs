//! Peek, claim and discard.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{BLANK, CompletionResult, QueuedEndpoint, QueuedPair, any_tagged, is_gone};

const PEEK: Flags = Flags::PEEK;
const CLAIM: Flags = Flags::CLAIM;
const DISCARD: Flags = Flags::DISCARD;

/// Within a slot, an eager message, a bulk transfer.
const SIZES: [usize; 5] = [0, 24, 900, 9000, 120_000];

fn errno(event: &CompletionResult) -> Errno {
    event.as_ref().unwrap_err().errno
}

/// Each combination of flags, tagged and untagged, with messages of all sorts.
pub fn each_flag(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in SIZES {
            each_flag_once(&pair, kind, len);
        }
    }
}

fn each_flag_once(pair: &QueuedPair, kind: MsgKind, len: usize) {
    let (a, b) = (&pair.a, &pair.b);
    let counted = b.rx.counts();
    let tag = match kind {
        MsgKind::Msg | MsgKind::Remote(_) => 0,
        MsgKind::Tagged => 0x7a6,
    };
    let op = |flags: Flags| RecvOp {
        kind,
        src: pair.to_a,
        tag,
        ignore: 0,
        flags,
        ..any_tagged(b.context())
    };

    // Nothing is there: an error that says so, with context and tag.
    for flags in [PEEK, PEEK | CLAIM, PEEK | DISCARD, CLAIM, CLAIM | DISCARD] {
        let probe = op(flags);
        let error = b.probe(&probe).unwrap_err();
        assert_eq!(error.errno, Errno::ENOMSG, "{flags:?}");
        assert_eq!(error.completion.context, probe.context);
        assert_eq!(error.completion.tag, tag);
        assert_eq!(error.completion.flags, kind.recv_flags());
    }

    let sends: Vec<_> = (0..4u8)
        .map(|i| {
            let send = SendOp {
                kind,
                tag,
                data: 0xda7a + u64::from(i),
                flags: Flags::COMPLETION | Flags::REMOTE_CQ_DATA,
                ..pair.tagged(tag)
            };
            a.send(b, send, len, b'0' + i);
            send.context
        })
        .collect();

    // All about the first message, and it stays.
    let told = |event: CompletionResult, context: u64, which: u64| {
        let c = event.unwrap();
        assert_eq!((c.context, c.len, c.buf), (context, len, 0));
        assert_eq!((c.tag, c.src, c.data), (tag, pair.to_a, 0xda7a + which));
        assert_eq!(c.flags, kind.recv_flags() | Flags::REMOTE_CQ_DATA);
    };
    for _ in 0..2 {
        let found = pair.until("the message does not come", || {
            let probe = op(PEEK);
            let event = b.probe(&probe);
            match &event {
                Err(error) if error.errno == Errno::ENOMSG => None,
                _ => Some((event, probe.context)),
            }
        });
        told(found.0, found.1, 0);
    }
    if kind == MsgKind::Tagged {
        let other = RecvOp {
            tag: tag ^ 1,
            ..op(PEEK)
        };
        assert_eq!(errno(&b.probe(&other)), Errno::ENOMSG, "another tag");
        let ignored = RecvOp { ignore: 1, ..other };
        told(b.probe(&ignored), ignored.context, 0);
    }

    // The first two are claimed, the third is dropped.
    let claims = [op(PEEK | CLAIM), op(PEEK | CLAIM)];
    let claim = |which: usize| {
        let found = pair.until("the message does not come", || {
            Some(b.probe(&claims[which])).filter(Result::is_ok)
        });
        told(found, claims[which].context, which as u64);
    };
    claim(0);
    claim(1);
    let dropped = pair.until("the message does not come", || {
        let probe = op(PEEK | DISCARD);
        let event = b.probe(&probe);
        event.is_ok().then_some((event, probe.context))
    });
    told(dropped.0, dropped.1, 2);
    pair.wait(&a.tx, sends[2]).unwrap();

    // A receive takes none of the claimed or dropped messages, whatever its context.
    let into = b.memory(len, b'-');
    let plain = RecvOp {
        flags: Flags::COMPLETION,
        context: claims[0].context,
        ..op(PEEK)
    };
    b.recv(&plain, &[into]).unwrap();
    let last = pair.next(&b.rx).unwrap();
    assert_eq!((last.context, last.data), (plain.context, 0xda7a + 3));
    assert_eq!(b.bytes(into.addr, len), vec![b'3'; len]);

    // The second is dropped, the first received; each once.
    let unwanted = RecvOp {
        flags: CLAIM | DISCARD,
        ..claims[1]
    };
    told(b.probe(&unwanted), unwanted.context, 1);
    assert_eq!(errno(&b.probe(&unwanted)), Errno::ENOMSG);
    let wanted = RecvOp {
        flags: CLAIM | Flags::COMPLETION,
        ..claims[0]
    };
    let into = b.memory(len, b'-');
    b.recv(&wanted, &[into]).unwrap();
    let received = pair.next(&b.rx).unwrap();
    assert_eq!(
        (received.context, received.len, received.buf),
        (wanted.context, len, into.addr)
    );
    assert_eq!((received.tag, received.data), (tag, 0xda7a));
    assert_eq!(b.bytes(into.addr, len), vec![b'0'; len]);
    assert_eq!(errno(&b.probe(&wanted)), Errno::ENOMSG);

    for which in [0, 1, 3] {
        pair.wait(&a.tx, sends[which]).unwrap();
    }
    let (ok, failed) = b.rx.counts();
    assert_eq!(
        (ok - counted.0, failed - counted.1),
        (2, 0),
        "receives are counted, probes are not"
    );
}

/// Meaningless flags are refused, and nothing completes.
pub fn bad_flags(domain: &dyn Domain) {
    let end = QueuedEndpoint::open(domain);
    let iov = [end.memory(8, 0)];
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for flags in [
            DISCARD,
            PEEK | CLAIM | DISCARD,
            PEEK | Flags::MULTI_RECV,
            CLAIM | Flags::MULTI_RECV,
        ] {
            let op = RecvOp {
                kind,
                flags,
                ..any_tagged(end.context())
            };
            let refused = end.recv(&op, &iov);
            assert_eq!(refused, Err(OpError::Failed(Errno::EBADFLAGS)), "{flags:?}");
        }
    }
    end.rx.pump();
    assert!(end.rx.take().is_none());
}

/// A message that has come is found by the first peek, though nobody has driven the receiver. For
/// transports where what is sent is there.
pub fn a_peek_looks_at_what_has_come(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    const COUNT: u64 = 50;
    let pair = QueuedPair::open(domain_a, domain_b);
    for round in 0..50 {
        // More of them than one call to progress takes, and fewer than a ring holds.
        pair.barrier();
        for n in 0..COUNT {
            pair.a.send(&pair.b, pair.tagged(n), 8, 1);
        }
        let last = RecvOp {
            tag: COUNT - 1,
            ignore: 0,
            flags: PEEK | DISCARD,
            ..any_tagged(pair.b.context())
        };
        pair.b.recv(&last, &[]).unwrap();
        let mut out = [BLANK];
        assert_eq!(pair.b.rx.cq.read(&mut out), Ok(1), "round {round}");
        assert_eq!((out[0].context, out[0].tag), (last.context, COUNT - 1));
        let rest = RecvOp {
            flags: PEEK | DISCARD,
            ..any_tagged(pair.b.context())
        };
        while pair.b.probe(&rest).is_ok() {}
    }
}

/// A claimed message whose sender is gone before all of it has come ends in an error.
pub fn a_claimed_message_of_a_sender_that_is_gone(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    pair.a.send(&pair.b, pair.tagged(1), 1 << 20, 1);
    let claim = RecvOp {
        flags: PEEK | CLAIM,
        ..any_tagged(pair.b.context())
    };
    pair.until("the message does not come", || pair.b.probe(&claim).ok());
    let QueuedPair { a, b, .. } = pair;
    let QueuedEndpoint {
        endpoint, memory, ..
    } = a;
    drop(endpoint);
    let receive = RecvOp {
        flags: CLAIM | Flags::COMPLETION,
        ..claim
    };
    b.recv(&receive, &[b.memory(1 << 20, 0)]).unwrap();
    let event = b.next_alone();
    let error = event.unwrap_err();
    assert_eq!(error.completion.context, receive.context);
    assert!(
        error.errno == Errno::ENOMSG || is_gone(error.errno),
        "{error:?}"
    );
    drop(memory);
}
