//! Lanes change and processes die under a session, at every step of a run.

use std::time::Duration;

use super::end::ROOM;
use super::world::DatagramWorld;
use crate::datagram_lane::DatagramLaneConfig;
use crate::sim::network::Weather;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

const FOUL: Weather = Weather {
    loss_ppm: 150_000,
    repeat_ppm: 100_000,
    jitter: Duration::from_micros(30),
    late_ppm: 20_000,
    ..Weather::FAIR
};

/// Messages each way: small ones and such that take several packets.
fn plan() -> Vec<u32> {
    vec![8, 2 * ROOM + 5, 0, 300, ROOM, 8, 8, 3 * ROOM + 1, 1, 8]
}

fn world(weather: Weather, seed: u64) -> DatagramWorld {
    let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, seed);
    world.plan = vec![plan(), plan()];
    world.begin_all();
    world
}

/// `false` if the run was over before.
fn steps(world: &mut DatagramWorld, count: usize) -> bool {
    let end = world.now + 600 * SECOND;
    (0..count).all(|_| world.step(end))
}

fn end_well(world: &mut DatagramWorld, case: &str) {
    assert!(world.calm_down(600 * SECOND), "goes on for ever: {case}");
    assert!(world.is_joined(0), "no session: {case}");
    world.assert_complete();
    for end in &world.ends {
        assert_eq!(end.received, plan().len() as u64, "{case}");
    }
}

#[test]
fn promotion_at_every_step_and_recycling_at_every_step_after() {
    let mut runs = 0;
    for (weather, seeds) in [(Weather::FAIR, 2), (FOUL, 6)] {
        for seed in 0..seeds {
            for promoted in 0.. {
                let mut went_on = false;
                for recycled in (0..60).chain([usize::MAX]) {
                    let mut world = world(weather, seed);
                    went_on = steps(&mut world, promoted);
                    world.promote(promoted % 2);
                    if recycled != usize::MAX {
                        steps(&mut world, recycled);
                        world.recycle((seed as usize + recycled) % 2);
                    }
                    let case =
                        format!("promoted at {promoted}, recycled after {recycled}, seed {seed}");
                    end_well(&mut world, &case);
                    let on_rc = world.ends.iter().all(|end| end.lane.is_paused());
                    assert!(on_rc || recycled != usize::MAX, "not promoted: {case}");
                    runs += 1;
                }
                if !went_on {
                    break;
                }
            }
        }
    }
    assert!(runs > 10_000, "{runs} runs: too few to mean anything");
}

/// The process at either end dies and another takes its place, with a session of the same name. It
/// greets the survivor, or the survivor finds out because its packets are not answered. No packet
/// of the old session gets into the new one.
#[test]
fn restart_at_every_step() {
    let mut stray = 0;
    let mut runs = 0;
    for (weather, seeds) in [(Weather::FAIR, 4), (FOUL, 16)] {
        for seed in 0..seeds {
            for greets in [true, false] {
                for promoted in [None, Some(3), Some(30)] {
                    for killed in 0.. {
                        let mut world = world(weather, seed);
                        if let Some(promoted) = promoted.filter(|&promoted| promoted <= killed) {
                            steps(&mut world, promoted);
                            world.promote(0);
                        }
                        let went_on = steps(&mut world, killed - promoted.unwrap_or(0).min(killed));
                        let dead = killed % 2;
                        world.restart(dead, greets);
                        // RC reports a dead peer by itself.
                        world.recycle(dead ^ 1);
                        if !greets {
                            world.add(dead ^ 1, 8);
                        }
                        let case =
                            format!("killed {dead} at {killed}, greets {greets}, seed {seed}");
                        end_well(&mut world, &case);
                        stray += world.fates.stray;
                        runs += 1;
                        if !went_on {
                            break;
                        }
                    }
                }
            }
        }
    }
    assert!(
        runs > 5000 && stray > 1000,
        "{runs} runs, {stray} old packets: too few to mean anything"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Lanes come and go at random while both ends send: nothing is lost, repeated or reordered.
    #[test]
    fn lanes_come_and_go(
        seed in any::<u64>(),
        loss_ppm in 0..200_000u64,
        late_ppm in 0..20_000u64,
        jitter_us in 0..100u64,
        may_hold in prop_oneof![Just(usize::MAX), 0..4usize],
        start in prop_oneof![Just(0u32), Just(u32::MAX - 40)],
        changes in proptest::collection::vec((0..8u8, 0..2usize, 0..120usize), 0..40),
        sizes in proptest::collection::vec(0..3 * ROOM, 1..120),
    ) {
        let jitter = Duration::from_micros(jitter_us);
        let weather = Weather { loss_ppm, late_ppm, jitter, ..Weather::FAIR };
        let mut world = DatagramWorld::new(1, DatagramLaneConfig::default(), weather, seed);
        (world.may_hold, world.start) = (may_hold, start);
        world.plan = vec![sizes.clone(), sizes.clone()];
        world.begin_all();
        for (what, end, wait) in changes {
            steps(&mut world, wait);
            match what {
                0..=3 => world.promote(end),
                4..=6 => world.recycle(end),
                _ => world.add(end, 8),
            }
        }
        prop_assert!(world.calm_down(600 * SECOND), "something goes on for ever");
        world.assert_complete();
        prop_assert!(world.ends.iter().all(|end| end.received >= sizes.len() as u64));
    }
}
