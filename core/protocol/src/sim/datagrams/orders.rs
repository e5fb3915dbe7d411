//! Against the plain model: for any behaviour of the network, each message arrives once, whole, in
//! order.

use std::time::Duration;

use super::end::ROOM;
use super::world::DatagramWorld;
use crate::datagram_lane::DatagramLaneConfig;
use crate::sim::network::Weather;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn sizes(max: usize) -> impl Strategy<Value = Vec<u32>> {
    let size = prop_oneof![3 => 0..64u32, 2 => 0..ROOM + 1, 1 => 0..4 * ROOM];
    proptest::collection::vec(size, 0..max)
}

fn config() -> impl Strategy<Value = DatagramLaneConfig> {
    (1..70u32, 1..70u32, 1..20u32).prop_map(|(initial_window, max_window, ack_every)| {
        DatagramLaneConfig {
            initial_window,
            max_window,
            ack_every,
            ..DatagramLaneConfig::default()
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn once_and_in_order(
        seed in any::<u64>(),
        config in config(),
        loss_ppm in 0..200_000u64,
        repeat_ppm in 0..200_000u64,
        late_ppm in 0..30_000u64,
        jitter_us in 0..200u64,
        may_hold in prop_oneof![Just(usize::MAX), 0..4usize],
        quota_units in prop_oneof![Just(4096u16), 8..60u16],
        start in prop_oneof![Just(0u32), Just(u32::MAX - 7)],
        plans in (sizes(150), sizes(150)),
    ) {
        let weather = Weather {
            loss_ppm,
            repeat_ppm,
            late_ppm,
            jitter: Duration::from_micros(jitter_us),
            ..Weather::FAIR
        };
        let mut world = DatagramWorld::new(1, config, weather, seed);
        (world.may_hold, world.quota_units, world.start) = (may_hold, quota_units, start);
        world.plan = vec![plans.0.clone(), plans.1.clone()];
        world.begin_all();
        prop_assert!(world.finish(600 * SECOND), "stalled");
        prop_assert!(world.calm_down(10 * SECOND), "something goes on for ever");
        world.assert_complete();
        prop_assert_eq!(world.ends[0].received, plans.1.len() as u64);
        prop_assert_eq!(world.ends[1].received, plans.0.len() as u64);
    }
}

/// Nothing is consumed: eager messages stop at the quota, requests go on, and nothing waits for
/// ever.
#[test]
fn exhausted_credit_stops_nothing() {
    let weather = Weather {
        loss_ppm: 50_000,
        ..Weather::FAIR
    };
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, 3);
    world.quota_units = 64;
    world.ends[1].consumes = false;
    world.plan = vec![vec![8; 500], Vec::new()];
    world.begin_all();
    assert!(world.finish(60 * SECOND), "stalled");
    world.assert_complete();
    assert_eq!(world.ends[0].requests, 500 - 32, "2 units each of 64");
    world.ends[1].consume_all();
    world.add(1, 0); // carries the credit
    assert!(world.finish(60 * SECOND) && world.calm_down(SECOND));
    let requests = world.ends[0].requests;
    (0..30).for_each(|_| world.add(0, 8));
    assert!(world.finish(60 * SECOND));
    assert_eq!(world.ends[0].requests, requests, "credit is back");
}

#[test]
fn ping_pong_costs_no_packet_of_its_own() {
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), Weather::FAIR, 1);
    world.plan = vec![vec![8; 1000], vec![8; 1000]];
    for (end, allowance) in [(0, 1), (1, 0)] {
        (world.ends[end].replies, world.ends[end].allowance) = (true, allowance);
    }
    world.begin_all();
    assert!(world.finish(SECOND));
    world.assert_complete();
    assert_eq!(world.fates.datagrams, 2001, "and one for the last pong");
    assert_eq!(world.shared.counters.repeated, 0);
    let round = (world.now.0 - 1) / 1000;
    assert!(round < 21_000, "{round} ns, for two ways of 5 to 10 µs");
}

#[test]
fn a_stream_is_acknowledged_every_few_packets() {
    let weather = Weather {
        jitter: Duration::ZERO,
        ..Weather::FAIR
    };
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, 1);
    world.plan = vec![vec![8; 10_000], Vec::new()];
    world.begin_all();
    assert!(world.finish(SECOND));
    world.assert_complete();
    assert_eq!(world.shared.counters.repeated, 0);
    assert_eq!(world.ends[0].lane.window(), 64);
    let acks = world.ends[1].acks_alone;
    assert!((10_000 / 64..10_000 / 7).contains(&acks), "{acks} acks");
}

/// Datagrams that overtake each other by far are not taken for lost, once that was seen.
#[test]
fn a_network_that_reorders_costs_few_repeats() {
    let weather = Weather {
        jitter: Duration::from_micros(20),
        ..Weather::FAIR
    };
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, 1);
    world.plan = vec![vec![8; 20_000], Vec::new()];
    world.begin_all();
    assert!(world.finish(SECOND));
    world.assert_complete();
    let counters = world.shared.counters;
    assert!(counters.repeated < 40, "{counters:?}");
    assert!(world.ends[0].lane.window() > 32);
}

/// A peer that does not answer gets probes more and more rarely, and for ever.
#[test]
fn silence_is_no_storm_and_no_death() {
    let weather = Weather {
        loss_ppm: 1_000_000,
        ..Weather::FAIR
    };
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, 1);
    world.plan = vec![vec![8; 1000], Vec::new()];
    world.begin_all();
    assert!(!world.finish(3600 * SECOND));
    let sent = world.fates.datagrams;
    assert!((3600 / 2..3600 * 4 / 3 + 30).contains(&sent), "{sent}");
    world.weather = Weather::FAIR;
    assert!(world.finish(5 * SECOND));
    world.assert_complete();
}

/// Loss costs time in proportion: the window shrinks, and no packet waits for a timeout while
/// others go through.
#[test]
fn a_stream_goes_on_under_loss() {
    let time_at = |loss_ppm| {
        let weather = Weather {
            loss_ppm,
            ..Weather::FAIR
        };
        let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, 9);
        world.plan = vec![vec![100; 20_000], Vec::new()];
        world.begin_all();
        assert!(world.finish(60 * SECOND), "stalled");
        world.assert_complete();
        let excess = world.excess();
        assert!(excess < 0.03, "{excess} at {loss_ppm}");
        let share =
            world.shared.counters.probes as f64 / world.shared.counters.repeated.max(1) as f64;
        assert!(
            share < 0.25,
            "{share} of the repeats waited for a timeout at {loss_ppm}"
        );
        (world.now.0 - 1) as f64
    };
    let fair = time_at(0);
    let (one, twenty) = (time_at(10_000) / fair, time_at(200_000) / fair);
    assert!(one < 8.0 && twenty < 250.0, "{one} and {twenty} times");
}
