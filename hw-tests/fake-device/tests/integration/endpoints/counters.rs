//! Counters that go round: sequence numbers, credit, requests. Tests begin near the places where
//! they do; where, a seed says that is printed.

use std::sync::OnceLock;
use std::time::Instant;

use fastrand::Rng;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_verbs::origins::{Origin, begin_counters_at};

use crate::endpoints::breakage::{connections, data_queue_pair};
use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, check, first, message, room, stat,
};
use crate::endpoints::removals::until_left;

/// Names the seed from which the suite's counters begin.
const SEED: &str = "FERRO_COUNTERS";

/// Where counters begin.
#[derive(Clone, Copy, Debug, Default)]
struct Begin {
    session: Origin,
    request: u32,
}

impl Begin {
    /// At 0 for every other seed, else within a few messages of where a counter of 16, 31 or 32
    /// bits goes round.
    fn drawn(seed: u64) -> Self {
        if seed % 2 == 0 {
            return Self::default();
        }
        let mut rng = Rng::with_seed(seed ^ 0xc0_0417);
        let mut near = || {
            let place = [0, 1 << 16, 1 << 31][rng.usize(..3)];
            // Below 0 are the last before 2³².
            u32::wrapping_sub(place, rng.u32(..60))
        };
        let session = Origin {
            sequence: near(),
            credit_units: near(),
        };
        Self {
            session,
            request: near(),
        }
    }

    fn set(self) {
        begin_counters_at(self.session, self.request);
    }
}

/// Where the counters of the suite begin: the same for all of its tests, for sessions of one end
/// begin where the other's do.
pub(crate) fn of_the_suite() {
    let (seed, begin) = suite();
    println!("{SEED}={seed}: {begin:?}");
}

fn suite() -> &'static (u64, Begin) {
    static SUITE: OnceLock<(u64, Begin)> = OnceLock::new();
    SUITE.get_or_init(|| {
        let given = std::env::var(SEED).ok();
        let seed = given.map_or_else(random, |seed| seed.parse().unwrap());
        let begin = Begin::drawn(seed);
        begin.set();
        (seed, begin)
    })
}

/// A seed that nobody knows.
pub(crate) fn random() -> u64 {
    Rng::new().u64(..1 << 32)
}

/// Counters begin elsewhere than those of the suite, as long as this lives.
pub(crate) struct CounterStart(());

impl CounterStart {
    /// Where a seed says.
    pub(crate) fn drawn(seed: u64) -> Self {
        let begin = Begin::drawn(seed);
        println!("{begin:?}");
        Self::begin(begin)
    }

    fn at(session: Origin) -> Self {
        Self::begin(Begin {
            session,
            request: 0,
        })
    }

    fn begin(begin: Begin) -> Self {
        of_the_suite();
        begin.set();
        Self(())
    }
}

impl Drop for CounterStart {
    fn drop(&mut self) {
        suite().1.set();
    }
}

const UD: &[(&str, &str)] = &[("FERRO_LANE", "ud")];

/// A Resume that is sent again holds the credit of that moment: from 2³¹ returned units on, 0 would
/// look like a return that never was.
#[test]
fn a_resume_is_repeated_after_much_credit() {
    for credit_units in [0x8000_0001, 0x9000_0000, 0xffff_ff00] {
        println!("from {credit_units:#x} units");
        let device = FakeDevice::take();
        let _counters = CounterStart::at(Origin {
            sequence: 0,
            credit_units,
        });
        let mut pair = PeerPair::connected(UD);
        pair.a.av().remove(pair.to_b).unwrap();
        until_left(&mut pair, &device, 1);
        // `b` has said its last on that lane.
        pair.rest(|pair| stat(&pair.b, "verbs_sessions_parked_now") == 1);
        pair.to_b = pair.a.av().insert(&pair.b.name().to_bytes()).unwrap();
        // The answer to the first Resume is lost: the end without an answer sends its own again.
        let data = data_queue_pair(&device, &pair.b);
        device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).on(data));
        pair.exchange(8, 10);
        assert_eq!(device.faults_left(), 0, "nothing was lost");
        pair.exchange(80_000, 11);
        drop(pair);
        assert_clean(&device);
    }
}

/// A session whose numbers have gone round, to where they began, is one that was used: if its lane
/// breaks it gets another, for the message that was announced to its receiver.
#[test]
fn a_session_that_has_gone_round_is_resumed() {
    const BYTES: usize = 600_000;
    let device = FakeDevice::take();
    // Three packets each way, and the next number is 0.
    let _counters = CounterStart::at(Origin {
        sequence: 0u32.wrapping_sub(3),
        credit_units: 0,
    });
    let mut pair = PeerPair::connected(&[("FERRO_LANE", "rc")]);
    (pair.a.trecv(room(8), pair.to_b, 7, 0, 1))
        .map_err(first)
        .unwrap();
    (pair.b.tsend(message(8, 7), 8, pair.to_a, 7, 2))
        .map_err(first)
        .unwrap();
    for done in pair.run(2) {
        assert!(done.outcome.is_ok(), "{done:?}");
    }
    let large = message(BYTES, 8);
    (pair.a.tsend(large, BYTES, pair.to_b, 8, 3))
        .map_err(first)
        .unwrap();
    pair.rest(|pair| stat(&pair.b, "verbs_unexpected_now") == 1);
    for qp in connections(&device) {
        device.break_queue_pair(qp);
    }
    let begun = Instant::now();
    while stat(&pair.a, "verbs_lanes_failed") == 0 || stat(&pair.b, "verbs_lanes_failed") == 0 {
        assert!(begun.elapsed() < PATIENCE, "the lane does not break");
        for end in [&mut pair.a, &mut pair.b] {
            assert!(end.poll().unwrap().is_none());
        }
    }
    (pair.b.trecv(room(BYTES), pair.to_a, 8, 0, 4))
        .map_err(first)
        .unwrap();
    for done in pair.run(2) {
        assert!(done.outcome.is_ok(), "{done:?}");
        if done.token == 4 {
            check(&done.buffer, 8, "the message that was announced");
        }
    }
    drop(pair);
    assert_clean(&device);
}

/// A packet that is sent again holds the credit of that moment. The credit of its first sending,
/// more than half the circle of the short counter ago, would look like a return that never was.
#[test]
fn a_packet_is_replayed_after_much_credit() {
    const MESSAGE: usize = 8192;
    const LARGE: usize = 600_000;
    /// Of 129 units each: more than 2¹⁵, less than 2¹⁶.
    const MESSAGES: u64 = 260;
    /// Length of an acknowledgement, with the headers before it. All that has a number is longer.
    const ACK_BYTES: u32 = 88;
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(UD);
    // Only acknowledgements arrive whole at `b`.
    let data = data_queue_pair(&device, &pair.b);
    let cut = FaultEffect::ByteLen(ACK_BYTES);
    device.script(
        Fault::new(FaultPoint::DatagramReceive, cut)
            .on(data)
            .times(u32::MAX),
    );
    (pair.b.trecv(room(8), pair.to_a, 1000, 0, 1))
        .map_err(first)
        .unwrap();
    (pair.a.tsend(message(8, 1000), 8, pair.to_b, 1000, 2))
        .map_err(first)
        .unwrap();
    for tag in 0..MESSAGES {
        (pair.a.trecv(room(MESSAGE), pair.to_b, tag, 0, 3))
            .map_err(first)
            .unwrap();
        (pair
            .b
            .tsend(message(MESSAGE, tag), MESSAGE, pair.to_a, tag, 4))
        .map_err(first)
        .unwrap();
        for done in pair.run(2) {
            assert!(done.outcome.is_ok() && done.token > 2, "{done:?}");
        }
    }
    // An RC lane takes the session over.
    (pair.b.trecv(room(LARGE), pair.to_a, 1001, 0, 5))
        .map_err(first)
        .unwrap();
    (pair
        .a
        .tsend(message(LARGE, 1001), LARGE, pair.to_b, 1001, 6))
    .map_err(first)
    .unwrap();
    for done in pair.run(4) {
        assert!(done.outcome.is_ok(), "{done:?}");
        match done.token {
            1 => check(&done.buffer, 1000, "replayed"),
            5 => check(&done.buffer, 1001, "read"),
            _ => {}
        }
    }
    assert_eq!(connections(&device).len(), 2);
    device.reset();
    drop(pair);
    assert_clean(&device);
}
