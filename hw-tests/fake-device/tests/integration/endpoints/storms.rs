//! Faults drawn at random, many at a time, from a seed that a failure names.

use fastrand::Rng;
use ferrofabric_fake_device::control::{FakeDevice, Fault, FaultEffect, FaultPoint};
use ferrofabric_verbs_sys::ibv_wc_status as Status;

use crate::endpoints::counters::{CounterStart, random};
use crate::endpoints::faults::STATUSES;
use crate::endpoints::party::PeerPair;

/// Statuses of a broken connection: operations under way go on over the next one.
const BROKEN: [Status; 3] = [
    Status::IBV_WC_WR_FLUSH_ERR,
    Status::IBV_WC_REM_ACCESS_ERR,
    Status::IBV_WC_RETRY_EXC_ERR,
];

/// A fault with one of these statuses, or a datagram that is lost.
fn fault(rng: &mut Rng, statuses: &[Status]) -> Fault {
    let status = statuses[rng.usize(..statuses.len())];
    let (point, effect) = match rng.u32(..8) {
        0 | 1 => (FaultPoint::Send, FaultEffect::Fail(status)),
        2 => (FaultPoint::Send, FaultEffect::FailAfterwards(status)),
        6 | 7 => (FaultPoint::Send, FaultEffect::StopInside(status)),
        3 | 4 => (FaultPoint::Read, FaultEffect::Fail(status)),
        _ => (FaultPoint::Datagram, FaultEffect::Lose),
    };
    Fault::new(point, effect).after(rng.u32(..12))
}

/// Values of `FERRO_LANE` that carry the messages.
const LANES: [&str; 3] = ["rc", "ud", "auto"];

/// Connections that break again and again, and sessions that end if `statuses` are such.
fn storm(lane: &str, seed: u64, statuses: &[Status]) {
    println!("{lane}, seed {seed}");
    let mut rng = Rng::with_seed(seed);
    let device = FakeDevice::take();
    let _counters = CounterStart::drawn(seed);
    let mut pair = PeerPair::open(&[("FERRO_LANE", lane)]);
    for round in 0..3 {
        for _ in 0..=rng.u32(..4) {
            device.script(fault(&mut rng, statuses));
        }
        let traffic = pair.traffic(1000 * (round + 1), 12, || ());
        if statuses == BROKEN {
            assert_eq!((traffic.sent, traffic.received), (24, 24), "{traffic:?}");
        }
    }
    device.reset();
    if statuses != BROKEN {
        // A session that one side has given up ends at the other with the next message.
        pair.traffic(9000, 2, || ());
    }
    pair.settle(&device);
    pair.exchange(8, 1);
    pair.exchange(80_000, 2);
    pair.close(&device);
}

/// One end has sent on a connection of which the other end has seen nothing but its end.
#[test]
fn connections_that_break_with_their_first_packets() {
    for lost in 0..6 {
        for after in 0..3 {
            println!("datagram {lost} is lost, and packet {after} fails");
            let device = FakeDevice::take();
            let mut pair = PeerPair::open(&[]);
            device.script(Fault::new(FaultPoint::Datagram, FaultEffect::Lose).after(lost));
            let fails = FaultEffect::Fail(Status::IBV_WC_REM_ACCESS_ERR);
            device.script(Fault::new(FaultPoint::Send, fails).after(after));
            let traffic = pair.traffic(100, 12, || ());
            assert_eq!((traffic.sent, traffic.received), (24, 24), "{traffic:?}");
            device.reset();
            pair.close(&device);
        }
    }
}

/// Nothing is lost.
#[test]
fn connections_that_break() {
    for lane in LANES {
        for seed in 0..10 {
            storm(lane, seed, &BROKEN);
        }
    }
}

/// So many storms of each lane, from a seed that nobody knows; or the one of a seed.
fn soak(statuses: &[Status]) {
    let number = |name| {
        let given = std::env::var(name).ok();
        given.map(|number| number.parse::<u64>().unwrap())
    };
    let seeds = match number("FERRO_STORM") {
        Some(seed) => seed..seed + 1,
        None => {
            let begin = random();
            begin..begin + number("FERRO_STORMS").unwrap_or(300)
        }
    };
    for lane in LANES {
        for seed in seeds.clone() {
            storm(lane, seed, statuses);
        }
    }
}

#[test]
#[ignore = "a phase of its own; FERRO_STORM names one seed, FERRO_STORMS a number of them"]
fn many_connections_that_break() {
    soak(&BROKEN);
}

#[test]
#[ignore = "a phase of its own; FERRO_STORM names one seed, FERRO_STORMS a number of them"]
fn many_sessions_that_end() {
    soak(&STATUSES);
}
