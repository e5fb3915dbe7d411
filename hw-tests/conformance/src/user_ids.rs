//! User IDs in place of addresses (`FI_AV_USER_ID` of fi_av(3)).

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, MsgKind, RecvOp};
use ferrofabric_runtime::fabric::Domain;

use crate::ends::{QueuedEndpoint, QueuedPair, any_tagged};
use crate::vectors::{
    NOBODY, SIZES, TYPES, Talk, errno_of, name_of, of_type, refusal, send_op, with_av,
};

/// With IDs of the application's, completions, errors, peeks and pieces of a multi-receive report
/// the ID of their source: `FI_ADDR_NOTAVAIL` until there is one. Sends, directed receives, lookups
/// and removals take the address and never the ID. Where IDs come with the insertion, no other call
/// sets them.
///
/// Covers: AV-20
pub fn replace_addresses(domain_a: &dyn Domain, domain_b: &dyn Domain) {
    for av_type in TYPES {
        let attr = AvAttr {
            user_ids: true,
            ..of_type(av_type)
        };
        let talk = Talk::between(QueuedEndpoint::open(domain_a), with_av(domain_b, &attr));
        let (a, b) = (&talk.pair.a, &talk.pair.b);
        let to_b = a.av.insert(&name_of(b)).unwrap();
        let to_a = b.av.insert(&name_of(a)).unwrap();
        b.endpoint.set_min_multi_recv(1).unwrap();
        for (id, set) in [
            (FiAddr::NOTAVAIL, false),
            (FiAddr(4711), true),
            (FiAddr(u64::MAX - 2), true),
            // IDs are opaque: an ID may be 0, or look like an address of somebody else's.
            (FiAddr(0), true),
        ] {
            if set {
                b.av.set_user_id(to_a, id).unwrap();
            }
            for kind in [MsgKind::Msg, MsgKind::Tagged] {
                for len in SIZES {
                    assert_eq!(talk.there(to_b, kind, len).src, id, "{kind:?} of {len}");
                }
            }
            reports(&talk.pair, to_a, to_b, id);
        }
        let id = FiAddr(4711);
        b.av.set_user_id(to_a, id).unwrap();
        assert_eq!(errno_of(b.av.lookup(id)), Some(Errno::EINVAL));
        assert_eq!(errno_of(b.av.remove(id)), Some(Errno::EINVAL));
        assert_eq!(
            errno_of(b.av.set_user_id(id, FiAddr(1))),
            Some(Errno::EINVAL)
        );
        assert_eq!(refusal(b, id), NOBODY);
        assert_eq!(talk.back(to_a, MsgKind::Msg, 8).src, to_b);
        // One sort of IDs excludes the other.
        let no = Some(Errno::EINVAL);
        assert_eq!(errno_of(b.av.tag_inserted(to_a, FiAddr(1))), no);
        assert_eq!(errno_of(a.av.set_user_id(to_b, FiAddr(1))), no);
        a.av.tag_inserted(to_b, FiAddr(12)).unwrap();
        assert_eq!(talk.back(to_a, MsgKind::Tagged, 9000).src, FiAddr(12));
        // An ID goes with its address.
        b.av.remove(to_a).unwrap();
        let again = b.av.insert(&name_of(a)).unwrap();
        assert_eq!(talk.there(to_b, MsgKind::Tagged, 8).src, FiAddr::NOTAVAIL);
        b.av.remove(again).unwrap();
        assert_eq!(errno_of(b.av.set_user_id(again, id)), no);
    }
}

/// Directed receives, truncations, peeks and multi-receives of a message from `a`.
fn reports(pair: &QueuedPair, to_a: FiAddr, to_b: FiAddr, id: FiAddr) {
    let (a, b) = (&pair.a, &pair.b);
    let send = |tag, len| {
        let op = send_op(a, to_b, MsgKind::Tagged, tag);
        a.send(b, op, len, 3);
        op.context
    };
    let directed = |src, tag| RecvOp {
        src,
        tag,
        ignore: 0,
        ..any_tagged(b.context())
    };
    // A receive from the ID is one from nobody: its message goes to the receive behind it.
    let from_id = directed(FiAddr(4711), 5);
    b.recv(&from_id, &[b.memory(8, 0)]).unwrap();
    let from_a = directed(to_a, 5);
    b.recv(&from_a, &[b.memory(8, 0)]).unwrap();
    let sent = send(5, 8);
    assert_eq!(pair.wait(&b.rx, from_a.context).unwrap().src, id);
    pair.wait(&a.tx, sent).unwrap();
    b.endpoint.cancel(from_id.context).unwrap();
    let cancelled = pair.wait(&b.rx, from_id.context).unwrap_err();
    assert_eq!(cancelled.errno, Errno::ECANCELED);

    let short = directed(to_a, 6);
    b.recv(&short, &[b.memory(4, 0)]).unwrap();
    let sent = send(6, 8);
    let error = pair.wait(&b.rx, short.context).unwrap_err();
    assert_eq!((error.errno, error.completion.src), (Errno::ETRUNC, id));
    pair.wait(&a.tx, sent).unwrap();

    let sent = send(7, 8);
    let found = pair.until("a message does not come", || {
        let peek = RecvOp {
            flags: Flags::PEEK | Flags::COMPLETION,
            ..directed(to_a, 7)
        };
        b.probe(&peek).ok()
    });
    assert_eq!(found.src, id);
    let multi = RecvOp {
        flags: Flags::MULTI_RECV | Flags::COMPLETION,
        ..directed(to_a, 7)
    };
    b.recv(&multi, &[b.memory(8, 0)]).unwrap();
    assert_eq!(pair.wait(&b.rx, multi.context).unwrap().src, id);
    pair.wait(&a.tx, sent).unwrap();
}
