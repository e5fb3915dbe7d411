//! Receives into lists of buffers, on domains whose `rx.iov_limit` is 4.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{QueuedEndpoint, QueuedPair, any_tagged};

const ROOM: [usize; 4] = [100, 0, 8000, 50_000];

fn list(end: &QueuedEndpoint) -> [IoBuf; 4] {
    ROOM.map(|len| end.memory(len, 0xff))
}

/// Checks that the list holds a message of `len` bytes `fill`, and that no byte beyond it has
/// changed.
fn check_filled(end: &QueuedEndpoint, iov: &[IoBuf], len: usize, fill: u8) {
    let bytes: Vec<u8> = iov.iter().flat_map(|b| end.bytes(b.addr, b.len)).collect();
    assert!(bytes[..len].iter().all(|b| *b == fill));
    assert!(bytes[len..].iter().all(|b| *b == 0xff));
}

/// Messages of all sorts, before and after their receive, longer than the list or not, wanted to
/// complete or not.
pub fn messages_go_into_lists(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    let room: usize = ROOM.iter().sum();
    let mut fill = 0;
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in [0, 24, 101, 8100, 9000, room, room + 1, 300_000] {
            for early in [true, false] {
                for wish in [Flags::COMPLETION, Flags::empty()] {
                    fill = (fill + 1) % 0xff;
                    let before = b.rx.counts();
                    let recv = RecvOp {
                        kind,
                        flags: wish,
                        ..any_tagged(b.context())
                    };
                    let send = SendOp {
                        kind,
                        ..pair.tagged(0)
                    };
                    let iov = list(b);
                    if early {
                        b.recv(&recv, &iov).unwrap();
                        a.send(b, send, len, fill);
                    } else {
                        a.send(b, send, len, fill);
                        pair.drive();
                        b.recv(&recv, &iov).unwrap();
                    }
                    pair.wait(&a.tx, send.context).unwrap();
                    let counts = pair.until("a receive is not counted", || {
                        Some(b.rx.counts()).filter(|counts| *counts != before)
                    });
                    b.rx.pump();
                    let event = b.rx.take_of(recv.context);
                    if len > room {
                        let error = event.unwrap().unwrap_err();
                        assert_eq!((error.errno, error.olen), (Errno::ETRUNC, len - room));
                        assert_eq!(error.completion.len, room);
                        assert_eq!(counts, (before.0, before.1 + 1));
                    } else {
                        assert_eq!(event.is_some(), !wish.is_empty());
                        if let Some(event) = event {
                            let completion = event.unwrap();
                            assert_eq!((completion.len, completion.buf), (len, 0));
                        }
                        assert_eq!(counts, (before.0 + 1, before.1));
                    }
                    check_filled(b, &iov, len.min(room), fill);
                }
            }
        }
    }
}

/// A claimed message goes into a list, a cancelled list takes none, and one that is too long is
/// refused.
pub fn claims_and_cancellations(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = QueuedPair::open(domain_a, domain_b);
    let (a, b) = (&pair.a, &pair.b);
    a.send(b, pair.tagged(1), 9000, 1);
    pair.barrier();
    let claim = RecvOp {
        flags: Flags::PEEK | Flags::CLAIM,
        ..any_tagged(b.context())
    };
    b.probe(&claim).unwrap();
    let claim = RecvOp {
        flags: Flags::CLAIM | Flags::COMPLETION,
        ..claim
    };
    let iov = list(b);
    let five = [iov[0]; 5];
    let refused = Err(OpError::Failed(Errno::EINVAL));
    assert_eq!(b.recv(&claim, &five), refused);
    assert_eq!(b.recv(&any_tagged(b.context()), &five), refused);
    b.recv(&claim, &iov).unwrap();
    assert_eq!(pair.wait(&b.rx, claim.context).unwrap().len, 9000);
    check_filled(b, &iov, 9000, 1);

    let recv = any_tagged(b.context());
    let iov = list(b);
    b.recv(&recv, &iov).unwrap();
    b.endpoint.cancel(recv.context).unwrap();
    let error = pair.wait(&b.rx, recv.context).unwrap_err();
    assert_eq!(error.errno, Errno::ECANCELED);
    a.send(b, pair.tagged(1), 24, 1);
    pair.barrier();
    check_filled(b, &iov, 0, 0);
}
