//! A process dies and another takes its place, at every step of a run: its peers end with its
//! successor, or with none, never with a mix.

use std::time::Duration;

use super::network::{SimNetwork, Weather};
use super::node::key_of;
use crate::handshake::{EndReason, HandshakeConfig};

const SECOND: Duration = Duration::from_secs(1);

/// The nodes that request a lane once node 1 has restarted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Nobody,
    Restarted,
    Survivor,
    Both,
}

/// Runs `connects`, restarts node 1 after `step` events, lets `then` happen, and checks the end.
/// `false` if the run was over before.
fn restart_at(
    step: usize,
    (connects, left_by): (&[(usize, usize)], Option<usize>),
    then: Then,
    weather: Weather,
    seed: u64,
) -> bool {
    let mut network = SimNetwork::new(3, HandshakeConfig::default(), weather, seed);
    connects
        .iter()
        .for_each(|&(at, to)| network.connect(at, to));
    if let Some(at) = left_by {
        assert!(network.run_until(60 * SECOND, SimNetwork::settled));
        let (lane, _) = (network.nodes[at].usable(&key_of(1 - at, 0))).expect("a lane");
        network.act(at, |node, now| node.leave(now, lane));
        network.connect(1 - at, at);
    }
    let end = network.now + SECOND;
    let reached = (0..step).all(|_| network.step(end));
    network.restart(1);
    if matches!(then, Then::Restarted | Then::Both) {
        network.connect(1, 0);
    }
    if matches!(then, Then::Survivor | Then::Both) {
        network.connect(0, 1);
    }
    let case =
        format!("step {step}, {connects:?}, left by {left_by:?}, then {then:?}, seed {seed}");
    assert!(
        network.run_until(60 * SECOND, SimNetwork::settled),
        "stalled: {case}"
    );
    network.run_for(10 * SECOND);
    // A lane to the dead shows when it is used, unless the successor has shown itself before.
    network.break_widows();
    assert!(
        network.run_until(10 * SECOND, SimNetwork::settled),
        "stalled: {case}"
    );
    network.run_for(SECOND);
    network.assert_agreement();

    let survivor = &network.nodes[0];
    assert!(
        survivor.usable(&key_of(1, 0)).is_none(),
        "a lane to the dead: {case}"
    );
    assert!(
        then == Then::Nobody || survivor.usable(&key_of(1, 1)).is_some(),
        "{case}"
    );
    assert!(
        survivor.usable(&key_of(2, 0)).is_some(),
        "an innocent lane: {case}"
    );
    let restarted = EndReason::PeerRestarted;
    for (peer, reason) in survivor.failures.iter().chain(&survivor.downs) {
        assert_eq!(*peer, key_of(1, 0), "{case}");
        // `Broken`: by ourselves, above; `PeerReset`: a half-open lane that the successor refused.
        let left = left_by.is_some() && matches!(reason, EndReason::Left | EndReason::PeerReset);
        assert!(
            left || *reason == restarted || *reason == EndReason::Broken,
            "{reason:?}: {case}"
        );
    }
    if then != Then::Nobody {
        let broken = survivor
            .downs
            .iter()
            .any(|(_, reason)| *reason == EndReason::Broken);
        assert!(
            !broken,
            "the successor had shown itself, the old lane was to fail by that: {case}"
        );
    }
    assert!(
        network.nodes[2].downs.is_empty() && network.nodes[2].failures.is_empty(),
        "{case}"
    );
    reached
}

#[test]
fn at_every_step() {
    let foul = Weather {
        loss_ppm: 100_000,
        repeat_ppm: 200_000,
        ..Weather::FAIR
    };
    let mut runs = 0;
    for connects in [
        &[(0, 1), (0, 2)][..],
        &[(1, 0), (2, 0)],
        &[(0, 1), (1, 0), (2, 0)],
    ] {
        for then in [Then::Nobody, Then::Restarted, Then::Survivor, Then::Both] {
            for (weather, seeds) in [(Weather::FAIR, 3), (foul, 12)] {
                for seed in 0..seeds {
                    let mut step = 0;
                    while restart_at(step, (connects, None), then, weather, seed) {
                        step += 1;
                    }
                    runs += step;
                }
            }
        }
    }
    assert!(runs > 2000, "{runs} runs: too few to mean anything");
}

/// The lane was left before, by the node that dies or by the other one, which requests it again.
///
/// Covers: AV-17
#[test]
fn at_every_step_after_a_lane_was_left() {
    let foul = Weather {
        loss_ppm: 100_000,
        repeat_ppm: 200_000,
        ..Weather::FAIR
    };
    let mut runs = 0;
    for left_by in [0, 1] {
        for then in [Then::Nobody, Then::Restarted, Then::Survivor, Then::Both] {
            for (weather, seeds) in [(Weather::FAIR, 3), (foul, 100)] {
                for seed in 0..seeds {
                    let start = (&[(0, 1), (0, 2)][..], Some(left_by));
                    let mut step = 0;
                    while restart_at(step, start, then, weather, seed) {
                        step += 1;
                    }
                    runs += step;
                }
            }
        }
    }
    assert!(runs > 500, "{runs} runs: too few to mean anything");
}
