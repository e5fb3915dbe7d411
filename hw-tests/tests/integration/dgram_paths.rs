//! DGRAM endpoints and the ways to their peers: names, limits of a peer's port, address handles,
//! peers that can not be reached.

use ferrofabric_conformance::ends::QueuedEndpoint;
use ferrofabric_contracts::addr::{NATIVE_LEN, NativeAddr, VerbsAddr};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::{PrefixRoom, domain, endpoint, info, next, pair, quiet, send_op};
use ferrofabric_runtime::owning::Buffer;
use serial_test::file_serial;

const BOTH: [PrefixRoom; 2] = [PrefixRoom::None, PrefixRoom::Room];

#[test]
#[file_serial(verbs)]
fn more_than_the_port_of_a_peer_takes_is_refused() {
    for prefix in BOTH {
        let Some(mut pair) = pair(prefix) else {
            return;
        };
        let name = pair.b.name();
        let smaller = NativeAddr {
            verbs: name.verbs.map(|v| VerbsAddr {
                mtu_bytes: 256,
                ..v
            }),
            ..name
        };
        let to_b = pair.a.av().insert(&smaller.to_bytes()).unwrap();
        let bytes = pair.prefix + 257;
        let too_long = Err(OpError::Failed(Errno::EMSGSIZE));
        assert_eq!(pair.a.inject(&vec![0; bytes], to_b, None), too_long);
        let into = pair.buffer(256, false);
        pair.b.recv(into, FiAddr::UNSPEC, 2).unwrap();
        pair.a.inject(&vec![0; bytes - 1], to_b, None).unwrap();
        let done = next(&mut pair.b, "the receive");
        assert_eq!(done.outcome.unwrap().len, bytes - 1);
        quiet(&mut [&mut pair.a, &mut pair.b]);
    }
}

/// Peers behind one path have one address handle, which goes with the last of them.
///
/// Covers: AV-17, AV-24
#[test]
#[file_serial(verbs)]
fn many_peers_share_a_handle() {
    const PEERS: usize = 12;
    if Rig::open().is_none() {
        return;
    }
    let domain = domain(&[], PrefixRoom::None);
    let hub = QueuedEndpoint::open(&*domain);
    let peers: Vec<QueuedEndpoint> = (0..PEERS).map(|_| QueuedEndpoint::open(&*domain)).collect();
    let insert = |peer: &QueuedEndpoint| hub.av.insert(&peer.endpoint.name().to_bytes()).unwrap();
    let addrs: Vec<FiAddr> = peers.iter().map(insert).collect();
    let handles = || {
        hub.tx.pump();
        let stats = hub.endpoint.stats().unwrap();
        let handles = stats.iter().find(|(name, _)| *name == "dgram_handles_now");
        handles.unwrap().1
    };
    for &addr in &addrs {
        let op = send_op(addr, hub.context());
        hub.send_alone(op, 8, 1);
        let until = std::time::Instant::now() + ferrofabric_hw_tests::dgram::PATIENCE;
        while hub.tx.take_of(op.context).is_none() {
            hub.tx.pump();
            assert!(std::time::Instant::now() < until, "a send is not over");
        }
        assert_eq!(handles(), 1, "one path, one handle");
    }
    let (last, others) = addrs.split_last().unwrap();
    for addr in others {
        hub.av.remove(*addr).unwrap();
    }
    assert_eq!(handles(), 1);
    hub.av.remove(*last).unwrap();
    assert_eq!(handles(), 0);
    // SAFETY: there is no memory.
    let removed = unsafe { hub.endpoint.send(&send_op(*last, 1), &[]) };
    assert_eq!(removed, Err(OpError::Failed(Errno::EADDRNOTAVAIL)));
}

/// A peer without a queue pair of this network is out of reach.
#[test]
#[file_serial(verbs)]
fn peers_of_shared_memory_are_out_of_reach() {
    let Some(pair) = pair(PrefixRoom::None) else {
        return;
    };
    let elsewhere = NativeAddr {
        shm: Some(1),
        verbs: None,
        ..pair.b.name()
    };
    let elsewhere = pair.a.av().insert(&elsewhere.to_bytes()).unwrap();
    let refused = pair.a.inject(b"?", elsewhere, None);
    assert_eq!(refused, Err(OpError::Failed(Errno::EHOSTUNREACH)));
}

/// Whose address does not resolve is an error of its own sends; others do not wait for it.
#[test]
#[file_serial(verbs)]
fn a_peer_that_can_not_be_reached_fails_by_itself() {
    let Some(mut pair) = pair(PrefixRoom::None) else {
        return;
    };
    let name = pair.b.name();
    let nowhere = |qpn: u32| NativeAddr {
        verbs: name.verbs.map(|v| VerbsAddr {
            gid: [0; 16],
            qpn,
            ..v
        }),
        ..name
    };
    let addr = pair.a.av().insert(&nowhere(1).to_bytes()).unwrap();
    for token in 0..3 {
        let out = pair.message(100, token, false);
        pair.a.send(out, 100, addr, None, token).unwrap();
    }
    pair.b
        .recv(Buffer::new(9).unwrap(), FiAddr::UNSPEC, 1)
        .unwrap();
    pair.a.inject(b"meanwhile", pair.to_b, None).unwrap();
    assert_eq!(next(&mut pair.b, "the receive").outcome.unwrap().len, 9);
    for token in 0..3 {
        let done = next(&mut pair.a, "the failure");
        let error = done.outcome.unwrap_err();
        assert_eq!((done.token, error.errno), (token, Errno::EHOSTUNREACH));
    }
    // Operations that wait for a removed peer end, and soon.
    let addr = pair.a.av().insert(&nowhere(2).to_bytes()).unwrap();
    let out = pair.message(100, 7, false);
    pair.a.send(out, 100, addr, None, 7).unwrap();
    pair.a.av().remove(addr).unwrap();
    let error = next(&mut pair.a, "the cancellation").outcome.unwrap_err();
    assert!(
        [Errno::ECANCELED, Errno::EHOSTUNREACH].contains(&error.errno),
        "{error:?}"
    );
    quiet(&mut [&mut pair.a, &mut pair.b]);
}

/// Covers: GI-4
#[test]
#[file_serial(verbs)]
fn names_and_offers() {
    if Rig::open().is_none() {
        return;
    }
    let plain = info(&[], PrefixRoom::None);
    let room = info(&[], PrefixRoom::Room);
    assert_eq!((plain.ep.msg_prefix_size, room.ep.msg_prefix_size), (0, 40));
    assert_eq!(plain.ep.max_msg_size, room.ep.max_msg_size);
    assert_eq!(plain.tx.inject_size, room.tx.inject_size);
    let domain = domain(&[], PrefixRoom::None);
    let (a, b) = (endpoint(&*domain), endpoint(&*domain));
    let (of_a, of_b) = (a.name(), b.name());
    assert_eq!(of_a.to_bytes().len(), NATIVE_LEN);
    assert_ne!(of_a.verbs.unwrap().qpn, of_b.verbs.unwrap().qpn);
    assert_ne!(of_a.incarnation, of_b.incarnation);
    assert_eq!(of_a.shm, None);
    let mtu = usize::from(of_a.verbs.unwrap().mtu_bytes);
    assert_eq!(mtu, plain.ep.max_msg_size);
}
