//! One process and eight peers, some through shared memory and some through verbs, into one
//! wildcard receive queue.

use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PeerProcess, is_filled, succeeded, tsend, wait};
use ferrofabric_runtime::owning::Buffer;
use serial_test::file_serial;

const PEERS: u64 = 8;

/// The completion of one receive: which of the receives it was, its sender, and which of the
/// sender's messages.
struct MixedReceive {
    receive: u64,
    number: u64,
}

fn converge(count: u64, low: usize, high: usize, window: u64, receives: u64) {
    let mut hub = party::endpoint(&[]);
    let program = env!("CARGO_BIN_EXE_test-peer");
    let numbers = [count / PEERS, low as u64, high as u64, window];
    let (mut peers, addrs) = PeerProcess::start_senders(program, PEERS, numbers, &hub);
    let mut posted = 0;
    for _ in 0..receives {
        let buffer = Buffer::new(high).unwrap();
        hub.trecv(buffer, FiAddr::UNSPEC, 0, u64::MAX, posted)
            .unwrap();
        posted += 1;
    }
    for peer in &mut peers {
        peer.go();
    }
    let total = count / PEERS * PEERS;
    let mut got: Vec<Vec<MixedReceive>> = (0..PEERS).map(|_| Vec::new()).collect();
    for received in 0..total {
        let done = wait(&mut hub);
        let completion = succeeded(done.outcome);
        let (peer, number) = (
            (completion.tag >> 32) as usize,
            completion.tag & 0xffff_ffff,
        );
        assert_eq!(
            completion.src, addrs[peer],
            "source of message {number} of peer {peer}"
        );
        assert!(
            is_filled(&done.buffer[..completion.len], completion.tag),
            "content of message {number} of peer {peer}, {} bytes",
            completion.len
        );
        got[peer].push(MixedReceive {
            receive: done.token,
            number,
        });
        if received + receives < total {
            hub.trecv(done.buffer, FiAddr::UNSPEC, 0, u64::MAX, posted)
                .unwrap();
            posted += 1;
        }
    }
    for (peer, got) in got.iter_mut().enumerate() {
        // Messages of one peer meet the receives in the order in which both were posted.
        got.sort_unstable_by_key(|g| g.receive);
        assert!(
            got.iter().map(|g| g.number).eq(0..count / PEERS),
            "order and number of the messages of peer {peer}"
        );
    }
    for &addr in &addrs {
        tsend(
            &mut hub,
            Buffer::new(0).unwrap(),
            0,
            addr,
            u64::MAX,
            0,
            |done| {
                succeeded(done.outcome);
            },
        );
    }
    while hub.in_flight() > 0 {
        succeeded(wait(&mut hub).outcome);
    }
    let stats = hub.stats().unwrap();
    let of = |name: &str| {
        stats
            .iter()
            .find(|(n, _)| *n == name)
            .map_or(0, |(_, v)| *v)
    };
    assert_eq!(
        of("shm_messages_received"),
        total / 2,
        "half of the messages came through shared memory"
    );
    assert_eq!(
        of("verbs_messages_received"),
        total / 2,
        "half of the messages came through verbs"
    );
    for peer in peers {
        peer.finish();
    }
}

/// Covers: PEER-8, PEER-9, PEER-13
#[test]
#[file_serial(verbs)]
fn small_messages_of_eight_peers_are_all_matched_in_order() {
    if Rig::open().is_some() {
        converge(12_000, 0, 65_536, 16, 64);
    }
}

#[test]
#[file_serial(verbs)]
fn large_messages_of_eight_peers_are_all_matched_in_order() {
    if Rig::open().is_some() {
        converge(16, 1 << 20, 4 << 20, 2, 4);
    }
}

#[test]
#[ignore = "soak: a million messages take minutes"]
#[file_serial(verbs)]
fn a_million_messages_of_eight_peers() {
    if Rig::open().is_some() {
        converge(1_000_000, 0, 65_536, 16, 64);
    }
}

#[test]
#[ignore = "soak: gigabytes over an emulated network"]
#[file_serial(verbs)]
fn two_hundred_large_messages_of_eight_peers() {
    if Rig::open().is_some() {
        converge(200, 1 << 20, 64 << 20, 2, 4);
    }
}
