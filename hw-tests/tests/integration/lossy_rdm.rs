//! RDM endpoints over a network that loses and reorders packets: run with `scripts/vm --netem`,
//! which has two devices whose packets really cross.
//!
//! Messages that are sent at once, those that their senders write, and handshakes. RDMA reads are
//! torn on Soft-RoCE when packets are lost (docs/soft-roce.md), so there the receiver reads
//! nothing.

use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::dgram::count;
use ferrofabric_hw_tests::party::{self, PeerProcess, check, succeeded, tsend, wait};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use serial_test::file_serial;

const PROGRAM: &str = env!("CARGO_BIN_EXE_test-peer");
/// Verbs alone, over one of the devices, with one kind of lane.
fn settings<'a>(device: &'a str, lane: &'a str) -> [(&'a str, &'a str); 3] {
    [
        ("FERRO_SHM", "off"),
        ("FERRO_DEVICE", device),
        ("FERRO_LANE", lane),
    ]
}

/// A peer on the other device sends so many messages; all arrive whole and in order.
fn receive_all(lane: &str, count: u64, low: usize, high: usize) -> OwningEndpoint {
    let mut hub = party::endpoint(&settings("ferro_rxe0", lane));
    let numbers = [3, count, low as u64, high as u64, 8];
    let there = settings("ferro_rxe1", lane);
    let mut peer = PeerProcess::start(PROGRAM, "sender", &there, &numbers, &hub.name());
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
        assert_eq!((completion.src, completion.tag), (addr, (3 << 32) | number));
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
    // The peer's goodbye may overtake the acknowledgement of this last message; it says that the
    // message was taken.
    succeeded(wait(&mut hub).outcome);
    peer.finish();
    hub
}

#[test]
#[file_serial(verbs)]
fn eager_messages_survive_loss() {
    if Rig::open().is_some() {
        receive_all("rc", 400, 0, 8192);
    }
}

#[test]
#[file_serial(verbs)]
fn large_messages_survive_loss() {
    if Rig::open().is_some() {
        receive_all("rc", 25, 8193, 400_000);
    }
}

#[test]
#[file_serial(verbs)]
fn handshakes_survive_loss() {
    if Rig::open().is_none() {
        return;
    }
    for _ in 0..10 {
        receive_all("rc", 2, 0, 100);
    }
}

/// Over datagrams alone: no RC queue pair is made, and lost packets are sent again.
#[test]
#[file_serial(verbs)]
fn datagrams_that_are_lost_are_sent_again() {
    if Rig::open().is_some() {
        let hub = receive_all("ud", 400, 0, 8192);
        assert_eq!(count(&hub, "verbs_queue_pairs_made"), 0);
        assert_eq!(count(&hub, "verbs_ud_lanes"), 1);
    }
}

/// Sessions begin over datagrams and move to RC under load.
#[test]
#[file_serial(verbs)]
fn sessions_that_change_lanes_lose_nothing() {
    if Rig::open().is_none() {
        return;
    }
    for (count_of, low, high) in [(300, 0, 3000), (20, 0, 200_000)] {
        let hub = receive_all("auto", count_of, low, high);
        // Soft-RoCE breaks a queue pair whose long write is out of tries (docs/soft-roce.md), more
        // often on busy processors. Each one that breaks is replaced once; without, there is one.
        let made = count(&hub, "verbs_queue_pairs_made");
        let broken = count(&hub, "verbs_lanes_failed");
        println!("{made} queue pairs, {broken} lanes that broke");
        assert!((1..=1 + broken).contains(&made), "{:?}", hub.stats());
        assert!(count(&hub, "verbs_ud_lanes") > 0);
    }
}
