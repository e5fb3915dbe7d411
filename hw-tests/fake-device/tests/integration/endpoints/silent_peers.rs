//! Peers without a lane that do not answer: one that has closed is given up, one that computes is
//! not.

use std::time::{Duration, Instant};

use ferrofabric_av::AvAttr;
use ferrofabric_contracts::atomics::{AtomicForm, AtomicOp, AtomicOperator, Datatype};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::CqError;
use ferrofabric_contracts::types::{FiAddr, MrDesc, RmaKind, RmaOp};
use ferrofabric_fake_device::control::{FakeDevice, NetworkFaults};
use ferrofabric_runtime::owning::{AtomicValues, EndedOperation, OwnedCompletion, OwningEndpoint};
use ferrofabric_system::clock::HandClock;

use crate::endpoints::party::{
    PATIENCE, PeerPair, assert_clean, domain_at, first, message, room, stat,
};

const SECOND: Duration = Duration::from_secs(1);

/// The limit without a setting.
const DEFAULT_LIMIT: u64 = 60;

const LANES: [&str; 3] = ["rc", "ud", "auto"];

/// Length of a message that goes over RC only.
const LARGE: usize = 600_000;

/// Two endpoints at a clock.
fn pair_at(clock: &HandClock, settings: &[(&str, &str)]) -> PeerPair {
    let open = || OwningEndpoint::open(&*domain_at(clock, settings), &AvAttr::default()).unwrap();
    let (a, b) = (open(), open());
    let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
    let to_a = b.av().insert(&a.name().to_bytes()).unwrap();
    PeerPair { a, b, to_b, to_a }
}

/// Begins one operation.
type Begin = fn(&mut OwningEndpoint, FiAddr);

/// Operations of every kind.
const BEGIN: [(&str, Begin); 6] = [
    ("send", |end, to| {
        end.tsend(message(8, 1), 8, to, 1, 1)
            .map_err(first)
            .unwrap();
    }),
    ("large send", |end, to| {
        let sent = end.tsend(message(LARGE, 1), LARGE, to, 1, 1);
        sent.map_err(first).unwrap();
    }),
    ("inject", |end, to| end.tinject(&[1; 8], to, 1).unwrap()),
    ("write", |end, to| one_sided(end, to, RmaKind::Write)),
    ("read", |end, to| one_sided(end, to, RmaKind::Read)),
    ("atomic", |end, to| {
        let op = AtomicOp {
            form: AtomicForm::Base,
            operator: AtomicOperator::Sum,
            datatype: Datatype::Uint64,
            dest: to,
            key: 7,
            place: 0,
            desc: MrDesc::NONE,
            context: 0,
            flags: Flags::empty(),
        };
        let values = AtomicValues {
            operands: &[1_u64],
            compares: &[],
            results: 0,
        };
        end.post_atomic(op, values, 1).unwrap();
    }),
];

fn one_sided(end: &mut OwningEndpoint, to: FiAddr, kind: RmaKind) {
    let op = RmaOp {
        kind,
        dest: to,
        key: 7,
        place: 0,
        data: 0,
        desc: MrDesc::NONE,
        context: 0,
        flags: Flags::empty(),
    };
    end.post_rma(message(8, 1), 8, 1, op)
        .map_err(first)
        .unwrap();
}

/// Waits until the service thread of an endpoint, the only one there is, has sent its first packet.
fn await_first_packet(device: &FakeDevice, end: &mut OwningEndpoint, before: u64) {
    let begun = Instant::now();
    while device.calls("ibv_post_send") == before {
        assert!(begun.elapsed() < PATIENCE, "no packet was sent");
        assert!(end.poll_any().unwrap().is_none());
    }
}

/// Lets seconds pass. Returns the first end of an operation, and the second in which it came.
fn seconds_until_an_end(
    clock: &HandClock,
    end: &mut OwningEndpoint,
    seconds: u64,
) -> Option<(u64, CqError)> {
    for second in 1..=seconds {
        clock.advance(SECOND);
        for _ in 0..4 {
            match end.poll_any().unwrap() {
                None => {}
                Some(EndedOperation::Inject(error)) => return Some((second, *error)),
                Some(EndedOperation::Operation(done)) => {
                    return Some((second, *done.outcome.unwrap_err()));
                }
                other @ Some(_) => panic!("{other:?}"),
            }
        }
    }
    None
}

/// Begins an operation with a peer that has closed before there was a lane to it.
fn operation_to_one_who_closed(
    settings: &[(&str, &str)],
    begin: Begin,
    seconds: u64,
) -> Option<(u64, CqError)> {
    let device = FakeDevice::take();
    let clock = HandClock::new();
    let PeerPair { mut a, b, to_b, .. } = pair_at(&clock, settings);
    drop(b);
    let posts = device.calls("ibv_post_send");
    begin(&mut a, to_b);
    await_first_packet(&device, &mut a, posts);
    let end = seconds_until_an_end(&clock, &mut a, seconds);
    if end.is_some() {
        assert_eq!(a.in_flight(), 0);
    }
    drop(a);
    assert_clean(&device);
    end
}

/// An operation of each kind ends with an error within the default limit, which the error names.
#[test]
fn operations_to_one_who_closed_before_a_lane_end_by_default() {
    for lane in LANES {
        for (name, begin) in BEGIN {
            let what = format!("{name} by {lane}");
            let ended = operation_to_one_who_closed(&[("FERRO_LANE", lane)], begin, 90);
            let (second, error) = ended.unwrap_or_else(|| panic!("{what}: not over in 90 s"));
            println!("{what}: {} after {second} s: {}", error.errno, error.why);
            assert_eq!(error.errno, Errno::ETIMEDOUT, "{what}");
            assert!(error.why.contains("peer_timeout"), "{what}: {}", error.why);
            let limit = DEFAULT_LIMIT..=DEFAULT_LIMIT + 2;
            assert!(limit.contains(&second), "{what}: after {second} s");
        }
    }
}

/// The setting is the limit where it is given, be it shorter, longer or none.
#[test]
fn the_setting_limits_the_wait_for_a_first_lane() {
    for lane in LANES {
        for (setting, limit) in [("5s", Some(5)), ("200s", Some(200)), ("off", None)] {
            let settings = [("FERRO_LANE", lane), ("FERRO_PEER_TIMEOUT", setting)];
            let ended = operation_to_one_who_closed(&settings, BEGIN[0].1, 300);
            let second = ended.map(|(second, _)| second);
            assert!(
                match (limit, second) {
                    (Some(limit), Some(second)) => (limit..=limit + 2).contains(&second),
                    (limit, second) => limit.is_none() && second.is_none(),
                },
                "{lane}, {setting}: {second:?}"
            );
        }
    }
}

/// Later operations start an attempt of their own: nothing refuses the address for good.
#[test]
fn a_peer_that_was_given_up_is_tried_again() {
    let device = FakeDevice::take();
    let clock = HandClock::new();
    let PeerPair { mut a, b, to_b, .. } = pair_at(&clock, &[("FERRO_PEER_TIMEOUT", "5s")]);
    drop(b);
    for _ in 0..3 {
        let posts = device.calls("ibv_post_send");
        BEGIN[0].1(&mut a, to_b);
        await_first_packet(&device, &mut a, posts);
        let (second, _) = seconds_until_an_end(&clock, &mut a, 20).expect("an end");
        assert!((5..=7).contains(&second), "after {second} s");
    }
    drop(a);
    assert_clean(&device);
}

/// Drives both ends until a send and its receive are over. Their clock goes on as the real one does:
/// the service threads, which answer for them, may have no processor for a while.
fn drive_both(clock: &HandClock, pair: &mut PeerPair, mut over: Vec<OwnedCompletion>, what: &str) {
    let begun = Instant::now();
    let mut last = begun;
    while over.len() < 2 {
        assert!(begun.elapsed() < PATIENCE, "{what}: {over:?}");
        let now = Instant::now();
        clock.advance(now - std::mem::replace(&mut last, now));
        over.extend(pair.a.poll().unwrap());
        over.extend(pair.b.poll().unwrap());
    }
    for done in over {
        assert!(done.outcome.is_ok(), "{what}: {:?}", done.outcome);
    }
}

/// A peer whose application computes for ten minutes is not given up: its service thread answers
/// for it, also where it has never been driven.
#[test]
fn one_who_computes_is_not_given_up() {
    for lane in LANES {
        let device = FakeDevice::take();
        let clock = HandClock::new();
        let mut pair = pair_at(&clock, &[("FERRO_LANE", lane)]);
        let receive = pair.b.trecv(room(8), pair.to_a, 1, 0, 1);
        receive.map_err(first).unwrap();
        let sent = pair.a.tsend(message(8, 5), 8, pair.to_b, 1, 2);
        sent.map_err(first).unwrap();
        let mut over = Vec::new();
        // The threads that make the lane work in no time of this clock.
        let begun = Instant::now();
        while stat(&pair.a, "verbs_sessions_now") == 0 {
            assert!(begun.elapsed() < PATIENCE, "{lane}: no lane came up");
            over.extend(pair.a.poll().unwrap());
        }
        for _ in 0..600 {
            clock.advance(SECOND);
            for _ in 0..4 {
                over.extend(pair.a.poll().unwrap());
            }
        }
        drive_both(&clock, &mut pair, over, lane);
        drop(pair);
        assert_clean(&device);
    }
}

/// A process that was itself stopped received nothing meanwhile. It first asks again.
#[test]
fn one_who_was_stopped_asks_again() {
    for lane in LANES {
        let device = FakeDevice::take();
        let clock = HandClock::new();
        let mut pair = pair_at(&clock, &[("FERRO_LANE", lane)]);
        // The first packets are lost.
        device.network(&NetworkFaults {
            lost: 100,
            ..NetworkFaults::default()
        });
        let posts = device.calls("ibv_post_send");
        let sent = pair.a.tsend(message(8, 5), 8, pair.to_b, 1, 2);
        sent.map_err(first).unwrap();
        await_first_packet(&device, &mut pair.a, posts);
        device.network(&NetworkFaults::default());
        clock.advance(100 * SECOND);
        assert!(pair.a.poll().unwrap().is_none(), "{lane}");
        let receive = pair.b.trecv(room(8), pair.to_a, 1, 0, 1);
        receive.map_err(first).unwrap();
        drive_both(&clock, &mut pair, Vec::new(), lane);
        drop(pair);
        assert_clean(&device);
    }
}
