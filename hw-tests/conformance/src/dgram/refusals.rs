//! Operations that DGRAM endpoints do not offer are refused with an error (fi_endpoint(3),
//! fi_msg(3)).

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{FiAddr, IoBuf, MsgKind, RecvOp, SendOp};

use super::pair::{DatagramPair, SEND, any, send_op};
use crate::fabric::Fabric;

/// No tags, no receives that are more than a buffer for one datagram, no completion levels beyond
/// transmission, no fences, no longer lists than offered, no peers that are not in the address
/// vector.
///
/// Covers: GI-3
pub fn operations_that_datagrams_lack(fabric: &Fabric) {
    let pair = DatagramPair::open(fabric);
    let info = fabric.info();
    let absent = Flags::TAGGED | Flags::DIRECTED_RECV | Flags::MULTI_RECV | Flags::RMA;
    assert!(!info.caps.intersects(absent), "{:?}", info.caps);
    let list = [pair.a.memory(pair.prefix + 8, 0)];
    let failed = |errno| Err(OpError::Failed(errno));
    // SAFETY: the memory lives as long as the endpoint.
    let send = |op: &SendOp, list: &[IoBuf]| unsafe { pair.a.endpoint.send(op, list) };
    let op = send_op(SEND, pair.to_b, 1, 1);

    let tagged = SendOp {
        kind: MsgKind::Tagged,
        ..op
    };
    assert_eq!(send(&tagged, &list), failed(Errno::ENOSYS));
    let tagged = RecvOp {
        kind: MsgKind::Tagged,
        ..any(1)
    };
    assert_eq!(pair.a.recv(&tagged, &list), failed(Errno::ENOSYS));
    for flags in [Flags::PEEK, Flags::MULTI_RECV, Flags::CLAIM, Flags::DISCARD] {
        let special = RecvOp { flags, ..any(1) };
        let refused = pair.a.recv(&special, &list);
        assert_eq!(refused, failed(Errno::EBADFLAGS), "{flags:?}");
    }
    for flags in [
        Flags::DELIVERY_COMPLETE,
        Flags::MATCH_COMPLETE,
        Flags::FENCE,
    ] {
        assert!(!fabric.offers(flags), "{flags:?}");
        let promise = SendOp { flags, ..op };
        assert_eq!(
            send(&promise, &list),
            failed(Errno::EOPNOTSUPP),
            "{flags:?}"
        );
    }
    for dest in [FiAddr(12345), FiAddr::UNSPEC, FiAddr::NOTAVAIL] {
        let nobody = SendOp { dest, ..op };
        assert_eq!(send(&nobody, &list), failed(Errno::EADDRNOTAVAIL));
    }
    let room = pair.a.memory(pair.prefix + 1, 0);
    let many = vec![room; info.tx.iov_limit.max(info.rx.iov_limit) + 1];
    assert_eq!(send(&op, &many), failed(Errno::EINVAL));
    assert_eq!(pair.a.recv(&any(1), &many), failed(Errno::EINVAL));
    let least = pair.a.endpoint.set_min_multi_recv(1);
    assert_eq!(least, failed(Errno::EOPNOTSUPP));
    pair.quiet();
    assert_eq!((pair.a.tx.counts(), pair.a.rx.counts()), ((0, 0), (0, 0)));
}
