//! Small messages beside a large one: how much of that goes first, by count. Time says nothing
//! here.

use std::time::Instant;

use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PATIENCE, succeeded};
use ferrofabric_runtime::owning::{Buffer, OwnedCompletion, OwningEndpoint};
use serial_test::file_serial;

/// Chunks of a large message that a small one may have to wait for.
const AHEAD: u64 = 4;

/// Tags and tokens of the large message and of the small ones.
const LARGE: u64 = 1;
const SMALL: u64 = 2;

struct FairnessSide {
    endpoint: OwningEndpoint,
    other: FiAddr,
    /// Operations of the large message that are over.
    large_over: u32,
    /// Sends and receives of small messages that are.
    small_over: u32,
}

impl FairnessSide {
    fn stat(&self, name: &str) -> u64 {
        let stats = self.endpoint.stats().unwrap();
        stats.iter().find(|(n, _)| *n == name).unwrap().1
    }

    fn step(&mut self) {
        if let Some(OwnedCompletion { token, outcome, .. }) = self.endpoint.poll().unwrap() {
            succeeded(outcome);
            match token {
                LARGE => self.large_over += 1,
                _ => self.small_over += 1,
            }
        }
    }

    fn expect_small(&mut self) {
        let room = Buffer::new(8).unwrap();
        let any = FiAddr::UNSPEC;
        self.endpoint.trecv(room, any, SMALL, 0, SMALL).unwrap();
    }

    fn send_large(&mut self, to: &mut Self, bytes: usize) {
        let (room, any) = (Buffer::new(bytes).unwrap(), FiAddr::UNSPEC);
        to.endpoint.trecv(room, any, LARGE, 0, LARGE).unwrap();
        let message = Buffer::new(bytes).unwrap();
        (self.endpoint)
            .tsend(message, bytes, self.other, LARGE, LARGE)
            .unwrap();
    }

    fn send_small(&mut self) {
        self.endpoint.tinject(&[7; 8], self.other, SMALL).unwrap();
    }
}

/// Drives the receiver alone until a small message has come. Its sender is not driven and posts
/// nothing, so only the requests that were under way when the message was posted can have come
/// first.
fn small_message(from: &mut FairnessSide, to: &mut FairnessSide) -> u64 {
    to.expect_small();
    let before = to.small_over;
    let posted = from.stat("verbs_chunks");
    from.send_small();
    let ahead = from.stat("verbs_chunks_under_way");
    let until = Instant::now() + PATIENCE;
    while to.small_over == before {
        to.step();
        assert!(
            Instant::now() < until,
            "a small message behind {ahead} chunks"
        );
    }
    assert_eq!(
        from.stat("verbs_chunks"),
        posted,
        "the sender was not driven"
    );
    ahead
}

fn beside_a_large_message(rendezvous: &str, bytes: usize, messages: u32) {
    let settings = [("FERRO_SHM", "off"), ("FERRO_RENDEZVOUS", rendezvous)];
    let endpoints = [party::endpoint(&settings), party::endpoint(&settings)];
    let names = endpoints.each_ref().map(OwningEndpoint::name);
    let mut others = [1usize, 0].into_iter();
    let [mut a, mut b] = endpoints.map(|endpoint| FairnessSide {
        other: (endpoint.av())
            .insert(&names[others.next().unwrap()].to_bytes())
            .unwrap(),
        endpoint,
        large_over: 0,
        small_over: 0,
    });
    // A message of this size moves over a connection, whatever lane there was first.
    a.send_large(&mut b, 1 << 20);
    let until = Instant::now() + PATIENCE;
    while (a.large_over, b.large_over) != (1, 1) {
        a.step();
        b.step();
        assert!(Instant::now() < until, "the first message did not come");
    }

    (a.large_over, b.large_over) = (0, 0);
    a.send_large(&mut b, bytes);
    let mut ahead = [Vec::new(), Vec::new()];
    let mut until = Instant::now() + PATIENCE;
    let mut moved = 0;
    while a.large_over == 0 || b.large_over == 0 {
        a.step();
        b.step();
        let now = a.stat("verbs_chunks") + b.stat("verbs_chunks");
        if now != moved {
            (moved, until) = (now, Instant::now() + PATIENCE);
        }
        assert!(Instant::now() < until, "the large message stands still");
        let moving = [&a, &b].map(|side| side.stat("verbs_chunks_under_way") != 0);
        if moving != [false; 2] && ahead[0].len() < messages as usize {
            ahead[0].push(small_message(&mut a, &mut b));
            ahead[1].push(small_message(&mut b, &mut a));
        }
    }
    println!("{rendezvous}: chunks ahead of small messages, either way: {ahead:?}");
    let worst = ahead.iter().flatten().max().unwrap();
    assert_eq!(
        ahead[0].len(),
        messages as usize,
        "the large message was over"
    );
    assert!((1..=AHEAD).contains(worst), "{ahead:?}");
}

#[test]
#[file_serial(verbs)]
fn small_messages_wait_for_four_chunks_that_are_written() {
    if Rig::open().is_some() {
        beside_a_large_message("write", 16 << 20, 16);
    }
}

#[test]
#[file_serial(verbs)]
fn small_messages_wait_for_four_chunks_that_are_read() {
    if Rig::open().is_some() {
        beside_a_large_message("read", 32 << 20, 16);
    }
}

#[test]
#[ignore = "soak: 1 GiB takes minutes"]
#[file_serial(verbs)]
fn small_messages_beside_a_gibibyte() {
    if Rig::open().is_some() {
        beside_a_large_message("write", 1 << 30, 500);
    }
}
