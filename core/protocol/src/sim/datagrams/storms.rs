//! Many endpoints at once: nothing stalls, nothing storms.

use std::time::Duration;

use fastrand::Rng;

use super::world::DatagramWorld;
use crate::datagram_lane::DatagramLaneConfig;
use crate::sim::network::Weather;

const SECOND: Duration = Duration::from_secs(1);

const ONE_PERCENT: Weather = Weather {
    loss_ppm: 10_000,
    ..Weather::FAIR
};

/// Nodes with `partners` others each, drawn at random; returns the pairs that exchange messages.
fn random_pairs(nodes: u64, partners: usize, seed: u64) -> Vec<(u32, u32)> {
    let mut rng = Rng::with_seed(seed);
    let mut pairs = std::collections::BTreeSet::new();
    for at in 0..nodes {
        for _ in 0..partners {
            let to = rng.u64(..nodes);
            if to != at {
                pairs.insert((at.min(to) as u32, at.max(to) as u32));
            }
        }
    }
    pairs.into_iter().collect()
}

fn all_pairs(nodes: u32) -> Vec<(u32, u32)> {
    (0..nodes)
        .flat_map(|a| (0..a).map(move |b| (a, b)))
        .collect()
}

/// All pairs exchange `messages` of 8 bytes each way, all beginning at once. `line`: packets that
/// can wait at a node, which takes one per microsecond; none: no limit.
fn exchange(
    pairs: &[(u32, u32)],
    messages: usize,
    weather: Weather,
    line: Option<u64>,
) -> DatagramWorld {
    let weather = Weather {
        step: Duration::from_micros(1),
        ..weather
    };
    let mut world = DatagramWorld::new(pairs.len(), DatagramLaneConfig::default(), weather, 5);
    world.node_of = pairs.iter().flat_map(|&(a, b)| [a, b]).collect();
    world.line = line.unwrap_or(u64::MAX);
    world.plan.fill(vec![8; messages]);
    world.begin_all();
    assert!(world.finish(60 * SECOND), "stalled");
    world.assert_complete();
    world
}

fn assert_no_storm(world: &DatagramWorld) {
    let excess = world.excess();
    let counters = world.shared.counters;
    let fates = world.fates;
    println!(
        "{:.3} % repeated beyond the losses, {:?}, {fates:?}, {:?}",
        excess * 100.0,
        counters,
        Duration::from_nanos(world.now.0)
    );
    assert!(excess < 0.03, "{:.2} % extra", excess * 100.0);
}

#[test]
fn a_thousand_peers_talk_without_a_storm() {
    assert_no_storm(&exchange(&random_pairs(1000, 16, 1), 4, ONE_PERCENT, None));
}

#[test]
#[ignore = "soak: 10,000 peers with 64 partners each, a minute and gigabytes"]
fn ten_thousand_peers_talk_without_a_storm() {
    assert_no_storm(&exchange(
        &random_pairs(10_000, 64, 1),
        4,
        ONE_PERCENT,
        None,
    ));
}

/// All to all at once is more than the receivers' lines hold: a packet that finds no room is lost,
/// and senders learn to hold back.
#[test]
fn all_to_all_of_64_overruns_and_recovers() {
    let world = exchange(&all_pairs(64), 32, ONE_PERCENT, Some(128));
    assert!(world.fates.overrun > 1000, "the test means nothing");
    assert_no_storm(&world);
}

#[test]
#[ignore = "soak: all-to-all of 512, a minute"]
fn all_to_all_of_512_overruns_and_recovers() {
    let world = exchange(&all_pairs(512), 16, ONE_PERCENT, Some(1024));
    assert!(world.fates.overrun > 10_000, "the test means nothing");
    assert_no_storm(&world);
}
