//! Sessions that go on over broken queue pairs: nothing lost, nothing twice, all in order.

use std::time::Instant;

use fastrand::Rng;
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::Rig;
use ferrofabric_hw_tests::party::{self, PATIENCE, check, fill, size, succeeded};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_verbs::fault;
use serial_test::file_serial;

/// Messages under way of each side.
const WINDOW: u64 = 12;

/// Token of a send; receives have the number of their message.
const SEND: u64 = 1 << 40;

/// One side: sends its messages to the other, and checks those that come.
struct BrokenLaneSide {
    endpoint: OwningEndpoint,
    other: FiAddr,
    seed: u64,
    sizes: Vec<usize>,
    expected: Vec<usize>,
    posted: u64,
    received: u64,
    sent: u64,
    over: u64,
}

impl BrokenLaneSide {
    fn done(&self) -> bool {
        self.over == self.sizes.len() as u64 && self.received == self.expected.len() as u64
    }

    fn step(&mut self) {
        while self.posted < self.expected.len() as u64 && self.posted < self.received + WINDOW {
            let room = Buffer::new(self.expected[self.posted as usize]).unwrap();
            let (src, any) = (FiAddr::UNSPEC, u64::MAX);
            self.endpoint.trecv(room, src, 0, any, self.posted).unwrap();
            self.posted += 1;
        }
        while self.sent < self.sizes.len() as u64 && self.sent < self.over + WINDOW {
            let len = self.sizes[self.sent as usize];
            let seed = (self.seed << 32) | self.sent;
            if len <= 64 && self.sent % 3 == 0 {
                // A message without a completion.
                let mut small = [0; 64];
                fill(&mut small[..len], seed);
                self.endpoint
                    .tinject(&small[..len], self.other, seed)
                    .unwrap();
                self.over += 1;
            } else {
                let mut message = Buffer::new(len).unwrap();
                fill(&mut message, seed);
                self.endpoint
                    .tsend(message, len, self.other, seed, SEND)
                    .unwrap();
            }
            self.sent += 1;
        }
        while let Some(done) = self.endpoint.poll().unwrap() {
            let completion = succeeded(done.outcome);
            if done.token == SEND {
                self.over += 1;
                continue;
            }
            self.received += 1;
            let number = completion.tag & 0xffff_ffff;
            assert_eq!(number, done.token, "each receive has its message");
            let what = format!("message {number}");
            check(&done.buffer[..completion.len], completion.tag, &what);
        }
    }

    fn stat(&self, name: &str) -> u64 {
        let stats = self.endpoint.stats().unwrap();
        let found = stats.iter().find(|(n, _)| *n == name);
        found.map_or(0, |(_, value)| *value)
    }
}

fn exchange(settings: &[(&str, &str)], count: u64, high: usize, every: u64) {
    let endpoints = [party::endpoint(settings), party::endpoint(settings)];
    let names = endpoints.each_ref().map(|endpoint| endpoint.name());
    let sizes = [1, 2].map(|seed| {
        let mut rng = Rng::with_seed(seed);
        let drawn = (0..count).map(|_| size(&mut rng, 0, high));
        drawn.collect::<Vec<_>>()
    });
    let mut others = [1usize, 0].into_iter();
    let mut sides = endpoints.map(|endpoint| {
        let there = others.next().unwrap();
        BrokenLaneSide {
            other: endpoint.av().insert(&names[there].to_bytes()).unwrap(),
            endpoint,
            seed: there as u64,
            sizes: sizes[1 - there].clone(),
            expected: sizes[there].clone(),
            posted: 0,
            received: 0,
            sent: 0,
            over: 0,
        }
    });
    let until = Instant::now() + PATIENCE;
    let mut next_break = every;
    let mut breaks = 0;
    while !sides.iter().all(BrokenLaneSide::done) {
        sides.iter_mut().for_each(BrokenLaneSide::step);
        if sides[0].received + sides[1].received >= next_break {
            next_break += every;
            breaks += 1;
            fault::break_lanes();
        }
        assert!(
            Instant::now() < until,
            "after {breaks} breaks: {:?}",
            sides.each_ref().map(|s| (s.sent, s.over, s.received))
        );
    }
    let resumed = sides
        .each_ref()
        .map(|side| side.stat("verbs_sessions_resumed"));
    let connected = sides[0].stat("verbs_queue_pairs_made") > 0;
    // Datagrams have no queue pair that breaks.
    let expected = u64::from(connected)..=2 * breaks;
    assert!(
        resumed.iter().all(|times| expected.contains(times)),
        "{resumed:?} of {breaks}"
    );
    println!("{breaks} breaks, {resumed:?} resumptions");
}

/// Small messages, which are kept until they are known to have arrived.
#[test]
#[file_serial(verbs)]
fn small_messages_survive() {
    if Rig::open().is_some() {
        exchange(&[("FERRO_SHM", "off")], 4000, 4000, 150);
    }
}

/// Messages in many packets each, of which some arrive and some do not.
#[test]
#[file_serial(verbs)]
fn fragmented_messages_survive() {
    if Rig::open().is_some() {
        let settings = [
            ("FERRO_SHM", "off"),
            ("FERRO_EAGER", "1K"),
            ("FERRO_EAGER_MAX", "64K"),
        ];
        exchange(&settings, 600, 65_536, 30);
    }
}

/// Messages of all sizes, which their senders write.
#[test]
#[file_serial(verbs)]
fn writes_by_senders_survive() {
    if Rig::open().is_some() {
        let settings = [
            ("FERRO_SHM", "off"),
            ("FERRO_RENDEZVOUS", "write"),
            ("FERRO_READ_CHUNK", "16K"),
        ];
        exchange(&settings, 400, 300_000, 20);
    }
}

/// Messages of all sizes, which their receivers read.
#[test]
#[file_serial(verbs)]
fn reads_by_receivers_survive() {
    if Rig::open().is_some() {
        let settings = [
            ("FERRO_SHM", "off"),
            ("FERRO_RENDEZVOUS", "read"),
            ("FERRO_READ_CHUNK", "16K"),
        ];
        exchange(&settings, 400, 300_000, 20);
    }
}
