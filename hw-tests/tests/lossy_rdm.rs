//! RDM endpoints over a network that loses and reorders packets: run with `scripts/vm --netem`, which has two devices
//! whose packets really cross.
//!
//! Messages that are sent at once, those that their senders write, and handshakes. RDMA reads are torn on Soft-RoCE when
//! packets are lost (docs/soft-roce.md), so there the receiver reads nothing.

#![allow(missing_docs, clippy::unwrap_used)]

use ferrofabric_core::owning::Buffer;
use ferrofabric_core::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, Peer, check, succeeded, tsend, wait};
use serial_test::file_serial;

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-peer");
const HERE: &[(&str, &str)] = &[("FERRO_SHM", "off"), ("FERRO_DEVICE", "ferro_rxe0")];
const THERE: &[(&str, &str)] = &[("FERRO_SHM", "off"), ("FERRO_DEVICE", "ferro_rxe1")];

/// A peer on the other device sends so many messages; all arrive whole and in order.
fn receive_all(count: u64, low: usize, high: usize) {
    let mut hub = party::endpoint(HERE);
    let numbers = [3, count, low as u64, high as u64, 8];
    let mut peer = Peer::start(PROGRAM, "sender", THERE, &numbers, &hub.name());
    let addr = hub.av().insert(&peer.name.to_bytes()).unwrap();
    peer.go();
    for number in 0..count {
        hub.trecv(
            Buffer::new(high).unwrap(),
            FiAddr::UNSPEC,
            0,
            u64::MAX,
            number,
        )
        .unwrap();
        let done = wait(&mut hub);
        let completion = succeeded(done.outcome);
        assert_eq!((completion.src, completion.tag), (addr, 3 << 32 | number));
        check(
            &done.buffer[..completion.len],
            completion.tag,
            &format!("message {number}"),
        );
    }
    tsend(
        &mut hub,
        Buffer::new(0).unwrap(),
        0,
        addr,
        u64::MAX,
        0,
        |_| {},
    );
    // The peer's goodbye may overtake the acknowledgement of this last message; it says that the message was taken.
    succeeded(wait(&mut hub).outcome);
    peer.finish();
}

#[test]
#[file_serial(verbs)]
fn eager_messages_survive_loss() {
    if Rig::open().is_some() {
        receive_all(400, 0, 8192);
    }
}

#[test]
#[file_serial(verbs)]
fn large_messages_survive_loss() {
    if Rig::open().is_some() {
        receive_all(25, 8193, 400_000);
    }
}

#[test]
#[file_serial(verbs)]
fn handshakes_survive_loss() {
    if Rig::open().is_none() {
        return;
    }
    for _ in 0..10 {
        receive_all(2, 0, 100);
    }
}
