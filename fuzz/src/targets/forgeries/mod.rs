//! Control packets of a third party that knows the addresses of two endpoints, which have a session
//! with each other (`docs/adr/0057`). It sees the answers that go to its own address, and nothing
//! else.

mod forger;
mod world;

use std::time::Duration;

use super::seed;
use crate::input::Input;
use crate::{FuzzTarget, saw};
use ferrofabric_protocol::wire::control;
use forger::Forger;
use world::{Scene, World};

/// A third party.
pub(super) const FORGERIES: FuzzTarget = FuzzTarget {
    name: "forged_packets",
    take,
    seeds,
    words: &[],
};

/// Packets of an input at most.
const MOST_PACKETS: usize = 12;

fn take(bytes: &[u8]) -> u64 {
    let mut input = Input::new(bytes);
    let scene = input.of(Scene::ALL);
    let mut world = World::of(scene);
    let mut forger = Forger::new(&world);
    let mut seen = Vec::new();
    for _ in 0..MOST_PACKETS {
        if input.is_over() {
            break;
        }
        world.pass(Duration::from_millis(4) * u32::from(input.byte()));
        let (victim, packet) = forger.packet(&mut input);
        let answers = world.deliver_forged(victim, &packet);
        for answer in &answers {
            world.assert_says_nothing_new(answer, &packet);
            seen.push(answer[control::KIND_AT]);
        }
        forger.learn(&answers);
        world.hear_strange_lanes(victim);
        world.assert_nothing_ended();
    }
    world.assert_session_goes_on();
    saw((scene, seen))
}

/// One packet of each kind that exists in each state, in the peer's name and in the third party's
/// own, with and without each flag.
fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for scene in 0..Scene::ALL.len() {
        for &kind in control::KINDS {
            for (name, from) in [("peer", 0), ("own", 2)] {
                let packet = forger::choices(kind, from);
                let bytes = [&[scene as u8], &packet[..], &packet[..]].concat();
                all.push(seed(&format!("scene_{scene}_kind_{kind}_{name}"), bytes));
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The third party is a peer like others where it speaks for itself.
    #[test]
    fn the_third_party_gets_answers_to_each_of_its_own_hellos() {
        let mut world = World::of(Scene::Up);
        let mut forger = Forger::new(&world);
        let hello = forger::choices(control::KINDS[0], 2);
        let mut input = Input::new(&hello[1..]);
        let (victim, packet) = forger.packet(&mut input);
        let answers = world.deliver_forged(victim, &packet);
        let kinds: Vec<_> = answers
            .iter()
            .map(|answer| answer[control::KIND_AT])
            .collect();
        assert_eq!(kinds, [control::KINDS[1]]);
    }
}
