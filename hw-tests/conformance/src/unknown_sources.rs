//! Messages of unknown sources, which are senders that are not in the address vector, at receivers
//! with `FI_SOURCE_ERR` (fi_getinfo(3)): their completions are errors that name the sender
//! (`FI_EADDRNOTAVAIL` of fi_cq(3)).

use ferrofabric_av::{AvAttr, format};
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::CqError;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{PATIENCE, QueuedEndpoint, QueuedPair, any_tagged};

/// In one packet, in several, too long for that.
const SIZES: [usize; 5] = [0, 8, 300, 9000, 300_000];

/// `b` has `FI_SOURCE_ERR`, and `a` is an unknown source to it.
fn open(domain_a: &dyn Domain, domain_b: &dyn Domain, av: &AvAttr) -> QueuedPair {
    let a = QueuedEndpoint::open(domain_a);
    let b = QueuedEndpoint::open_with(domain_b, av, |config| config.source_err = true);
    let to_b = a.av.insert(&b.endpoint.name().to_bytes()).unwrap();
    let to_a = FiAddr::NOTAVAIL;
    QueuedPair { a, b, to_a, to_b }
}

/// Inserts the sender that an error names into the address vector of `b`, as an application does:
/// with the error data and nothing else.
fn insert(domain_b: &dyn Domain, pair: &QueuedPair, name: &NativeAddr) -> FiAddr {
    let data = format::endpoint_to_bytes(domain_b.info().addr_format, name);
    pair.b.av.insert(&data).unwrap()
}

/// The error completion of a receive of `len` bytes that are all `fill`, which names `a`.
fn is_from_unknown_source(pair: &QueuedPair, recv: &RecvOp, error: &CqError, len: usize, fill: u8) {
    assert_eq!(error.errno, Errno::EADDRNOTAVAIL, "{error:?}");
    assert_eq!(error.sender.as_deref(), Some(&pair.a.endpoint.name()));
    assert_eq!((error.olen, error.completion.src), (0, FiAddr::NOTAVAIL));
    let c = &error.completion;
    assert_eq!((c.context, c.len), (recv.context, len));
    assert_eq!(c.flags - Flags::MULTI_RECV, recv.kind.recv_flags());
    assert_eq!(pair.b.bytes(c.buf, len), vec![fill; len]);
}

fn send(pair: &QueuedPair, kind: MsgKind, len: usize, fill: u8) -> SendOp {
    let op = SendOp {
        kind,
        ..pair.tagged(u64::from(kind == MsgKind::Tagged) * 7)
    };
    pair.a.send(&pair.b, op, len, fill);
    op
}

/// The message of an unknown source lies in the buffer. Its completion is an error that names the
/// source, and counters count an error. Inserted by that name the source is a peer, which the
/// completions of later messages name; removed it is an unknown source again. All this holds
/// whether a receive waited for the message or not, and whether it asked for a completion.
///
/// Covers: AV-25
pub fn are_named_and_become_peers(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = open(domain_a, domain_b, &AvAttr::default());
    let (a, b) = (&pair.a, &pair.b);
    for kind in [MsgKind::Msg, MsgKind::Tagged] {
        for len in SIZES {
            for (early, flags) in [
                (true, Flags::COMPLETION),
                (false, Flags::COMPLETION),
                (true, Flags::empty()),
            ] {
                let what = format!("{kind:?} of {len} bytes, {early}, {flags:?}");
                let post = || {
                    let recv = RecvOp {
                        kind,
                        flags,
                        ..any_tagged(b.context())
                    };
                    b.recv(&recv, &[b.memory(len, 0)]).unwrap();
                    recv
                };
                let before = b.rx.counts();
                let mut recv = early.then(post);
                let sent = send(&pair, kind, len, 1);
                let recv = *recv.get_or_insert_with(|| {
                    pair.drive();
                    post()
                });
                let error = pair.wait(&b.rx, recv.context).expect_err(&what);
                is_from_unknown_source(&pair, &recv, &error, len, 1);
                assert_eq!(error.completion.tag, sent.tag);
                pair.wait(&a.tx, sent.context).unwrap();
                assert_eq!(b.rx.counts(), (before.0, before.1 + 1));

                let addr = insert(domain_b, &pair, error.sender.as_deref().unwrap());
                let wild = post();
                let directed = RecvOp {
                    kind,
                    src: addr,
                    ..any_tagged(b.context())
                };
                b.recv(&directed, &[b.memory(len, 0)]).unwrap();
                let sent = [2, 3].map(|fill| send(&pair, kind, len, fill));
                if flags.is_empty() {
                    pair.until(&what, || (b.rx.counts().0 > before.0).then_some(()));
                } else {
                    let c = pair.wait(&b.rx, wild.context).expect(&what);
                    assert_eq!((c.src, c.len), (addr, len), "{what}");
                }
                let c = pair.wait(&b.rx, directed.context).expect(&what);
                assert_eq!((c.src, c.len), (addr, len), "{what}");
                for sent in sent {
                    pair.wait(&a.tx, sent.context).unwrap();
                }
                b.av.remove(addr).unwrap();
                assert!(b.rx.take().is_none(), "{what}");
            }
        }
    }
}

/// Messages of an unknown source fill a multi-receive and lists of buffers like others. A source
/// that is inserted before its message meets a receive is a peer. A message that is too long fails
/// as such, whoever sent it.
///
/// Covers: AV-25
pub fn in_every_receive(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let pair = open(domain_a, domain_b, &AvAttr::default());
    let (a, b) = (&pair.a, &pair.b);
    b.endpoint.set_min_multi_recv(1).unwrap();
    for len in SIZES.into_iter().filter(|len| *len != 0) {
        let multi = RecvOp {
            flags: Flags::MULTI_RECV | Flags::COMPLETION,
            ..any_tagged(b.context())
        };
        b.recv(&multi, &[b.memory(2 * len, 0)]).unwrap();
        let mut freed = false;
        for fill in [1, 2] {
            let sent = send(&pair, MsgKind::Tagged, len, fill);
            let error = pair.wait(&b.rx, multi.context).unwrap_err();
            is_from_unknown_source(&pair, &multi, &error, len, fill);
            pair.wait(&a.tx, sent.context).unwrap();
            freed = error.completion.flags.contains(Flags::MULTI_RECV);
        }
        assert!(freed, "the buffer is full and still not the application's");

        let pieces = [b.memory(len / 2, 0), b.memory(len - len / 2, 0)];
        let list = any_tagged(b.context());
        b.recv(&list, &pieces).unwrap();
        let sent = send(&pair, MsgKind::Tagged, len, 3);
        let error = pair.wait(&b.rx, list.context).unwrap_err();
        assert_eq!(error.errno, Errno::EADDRNOTAVAIL);
        assert_eq!((error.completion.len, error.completion.buf), (len, 0));
        for IoBuf { addr, len } in pieces {
            assert_eq!(b.bytes(addr, len), vec![3; len]);
        }
        pair.wait(&a.tx, sent.context).unwrap();

        let short = any_tagged(b.context());
        b.recv(&short, &[b.memory(len - 1, 0)]).unwrap();
        let sent = send(&pair, MsgKind::Tagged, len, 4);
        let error = pair.wait(&b.rx, short.context).unwrap_err();
        assert_eq!((error.errno, error.olen), (Errno::ETRUNC, 1));
        pair.wait(&a.tx, sent.context).unwrap();

        let sent = send(&pair, MsgKind::Tagged, len, 5);
        let late = any_tagged(b.context());
        pair.until("a message does not come", || {
            let peek = RecvOp {
                flags: Flags::PEEK | Flags::COMPLETION,
                ..any_tagged(b.context())
            };
            // A peek delivers nothing: it says that nobody is known to have sent it.
            let found = b.probe(&peek).ok()?;
            assert_eq!(found.src, FiAddr::NOTAVAIL);
            Some(())
        });
        let addr = insert(domain_b, &pair, &a.endpoint.name());
        b.recv(&late, &[b.memory(len, 0)]).unwrap();
        assert_eq!(pair.wait(&b.rx, late.context).unwrap().src, addr);
        pair.wait(&a.tx, sent.context).unwrap();
        b.av.remove(addr).unwrap();
    }
}

/// A message that is here whole can be received after its sender has closed, and says whose it was.
///
/// Covers: AV-25
pub fn that_have_closed(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for len in [8, 300] {
        let pair = open(domain_a, domain_b, &AvAttr::default());
        let sent = send(&pair, MsgKind::Tagged, len, 1);
        pair.wait(&pair.a.tx, sent.context).unwrap();
        let QueuedPair { a, b, .. } = pair;
        let name = a.endpoint.name();
        let found = || {
            let peek = RecvOp {
                flags: Flags::PEEK | Flags::COMPLETION,
                ..any_tagged(b.context())
            };
            b.probe(&peek).is_ok()
        };
        let until = std::time::Instant::now() + PATIENCE;
        while !found() {
            assert!(std::time::Instant::now() < until, "a message is lost");
        }
        drop(a);
        // `a` announces its close by a message, and the message of another sender arrives after
        // that.
        let other = QueuedEndpoint::open(domain_a);
        let to_b = other.av.insert(&b.endpoint.name().to_bytes()).unwrap();
        let next = QueuedPair {
            a: other,
            b,
            to_a: FiAddr::NOTAVAIL,
            to_b,
        };
        send(&next, MsgKind::Msg, 0, 0);
        let recv = RecvOp {
            kind: MsgKind::Msg,
            ..any_tagged(next.b.context())
        };
        next.b.recv(&recv, &[]).unwrap();
        let error = next.wait(&next.b.rx, recv.context).unwrap_err();
        assert_eq!(error.sender.as_deref(), Some(&next.a.endpoint.name()));

        let recv = any_tagged(next.b.context());
        next.b.recv(&recv, &[next.b.memory(len, 0)]).unwrap();
        let error = next.wait(&next.b.rx, recv.context).unwrap_err();
        assert_eq!(
            (error.errno, error.sender.as_deref()),
            (Errno::EADDRNOTAVAIL, Some(&name))
        );
        assert_eq!(next.b.bytes(error.completion.buf, len), vec![1; len]);
    }
}

/// With IDs of the application's own, a peer that has none yet is a peer: its messages complete,
/// from `FI_ADDR_NOTAVAIL`. An unknown source is an error there, too.
///
/// Covers: AV-20, AV-25
pub fn beside_peers_with_ids(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    let av = AvAttr {
        user_ids: true,
        ..AvAttr::default()
    };
    let pair = open(domain_a, domain_b, &av);
    let b = &pair.b;
    for len in SIZES {
        let receive = |fill| {
            let recv = any_tagged(b.context());
            b.recv(&recv, &[b.memory(len, 0)]).unwrap();
            let sent = send(&pair, MsgKind::Tagged, len, fill);
            let event = pair.wait(&b.rx, recv.context);
            pair.wait(&pair.a.tx, sent.context).unwrap();
            (recv, event)
        };
        let (recv, event) = receive(1);
        let error = event.unwrap_err();
        is_from_unknown_source(&pair, &recv, &error, len, 1);
        let addr = insert(domain_b, &pair, error.sender.as_deref().unwrap());
        assert_eq!(receive(2).1.unwrap().src, FiAddr::NOTAVAIL);
        b.av.set_user_id(addr, FiAddr(77)).unwrap();
        assert_eq!(receive(3).1.unwrap().src, FiAddr(77));
        b.av.remove(addr).unwrap();
        let (recv, event) = receive(4);
        is_from_unknown_source(&pair, &recv, &event.unwrap_err(), len, 4);
    }
}
