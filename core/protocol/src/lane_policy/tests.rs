//! Against a plain model, and under traffic that would make a simpler rule change lanes all the
//! time.

use fastrand::Rng;

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

const MS: Duration = Duration::from_millis(1);

fn config(max_lanes: usize) -> LanePolicyConfig {
    LanePolicyConfig {
        messages: 4,
        bytes: 1000,
        within: 10 * MS,
        max_lanes,
        idle: 50 * MS,
        promotion_pause: 20 * MS,
    }
}

fn at(ms: u64) -> Time {
    Time(ms * 1_000_000)
}

#[test]
fn enough_messages_or_bytes_in_a_short_time() {
    let mut policy = LanePolicy::new(config(10));
    assert!(
        (0..100).all(|n| !policy.message(0, 8, at(1 + n * 4))),
        "slow"
    );
    assert_eq!(
        [1, 2, 3, 4].map(|ms| policy.message(1, 8, at(500 + ms))),
        [false, false, false, true]
    );
    assert_eq!(
        [1, 2].map(|ms| policy.message(2, 500, at(500 + ms))),
        [false, true]
    );
    assert_eq!(
        policy.admit(2, Need::Traffic, at(510), |_| true),
        LaneAdmission::Make
    );
    assert!(!policy.message(2, 5000, at(511)), "it has a lane");
    assert_eq!((policy.lanes(), policy.has_rc_lane(2)), (1, true));
}

/// At the limit the lane that was used least recently goes, once it is idle and quiet; its peer
/// pauses.
#[test]
fn the_least_recently_used_gives_way() {
    let mut policy = LanePolicy::new(config(3));
    for peer in 0..3 {
        policy.admit(peer, Need::Bulk, at(u64::from(peer)), |_| true);
    }
    policy.message(0, 8, at(10));
    let traffic = |policy: &mut LanePolicy, peer, ms| {
        policy.admit(peer, Need::Traffic, at(ms), |victim| victim != 1)
    };
    assert_eq!(
        traffic(&mut policy, 7, 51),
        LaneAdmission::Full,
        "2 was used 49 ms ago"
    );
    assert!((0..9).all(|_| !policy.message(7, 8, at(60))), "a pause");
    assert!((0..4).any(|_| policy.message(7, 8, at(72))));
    assert_eq!(
        traffic(&mut policy, 7, 72),
        LaneAdmission::Recycle(2),
        "1 is not quiet"
    );
    assert_eq!(policy.lanes(), 3);
    assert!((0..9).all(|_| !policy.message(2, 8, at(80))), "a pause");
    assert_eq!(
        policy.admit(2, Need::Bulk, at(80), |victim| victim != 1),
        LaneAdmission::Recycle(0),
        "bulk has no pause, nor waits for lanes to be idle"
    );
    assert_eq!(
        policy.admit(9, Need::Bulk, at(80), |_| false),
        LaneAdmission::Full
    );
}

/// 64 peers with equal traffic and 8 lanes: the lanes stay where they are, mostly.
#[test]
fn equal_traffic_does_not_take_turns() {
    let mut policy = LanePolicy::new(config(8));
    let mut made = 0;
    let mut carried = 0;
    for ms in 0..100_000 {
        for peer in 0..64 {
            carried += u32::from(policy.has_rc_lane(peer));
            if policy.message(peer, 300, at(ms)) {
                let admission = policy.admit(peer, Need::Traffic, at(ms), |_| true);
                made += u32::from(admission != LaneAdmission::Full);
            }
        }
    }
    assert_eq!(made, 8);
    assert_eq!(policy.lanes(), 8);
    assert!(carried > 790_000);
}

/// Bursts that walk over all peers, each long enough to earn a lane: pauses grow, so lanes change
/// ever more rarely.
#[test]
fn walking_bursts_change_lanes_rarely() {
    let mut policy = LanePolicy::new(config(8));
    let mut made = [0, 0];
    for round in 0..1000u64 {
        for peer in 0..64u32 {
            for n in 0..5 {
                let now = at(round * 640 + u64::from(peer) * 10 + n);
                if policy.message(peer, 8, now) {
                    let admission = policy.admit(peer, Need::Traffic, now, |_| true);
                    made[usize::from(round >= 20)] += u32::from(admission != LaneAdmission::Full);
                }
            }
        }
    }
    assert!(made[1] < 64 * 1000 / 3, "{made:?} of 64,000 bursts");
}

/// The busiest of many peers have the lanes, and keep them.
#[test]
fn the_busiest_have_the_lanes() {
    let mut policy = LanePolicy::new(config(16));
    let mut rng = Rng::with_seed(3);
    let mut made = 0;
    let mut carried = 0;
    for n in 0..2_000_000u64 {
        // A peer's share falls with the square of its number.
        let draw = (rng.u64(..1 << 20) + 1) as f64 / f64::from(1u32 << 20);
        let peer = ((1.0 / draw) as u32 - 1).min(999);
        let now = Time(n * 100_000);
        carried += u64::from(policy.has_rc_lane(peer));
        if policy.message(peer, 200, now) {
            let admission = policy.admit(peer, Need::Traffic, now, |_| true);
            made += u32::from(admission != LaneAdmission::Full);
        }
    }
    assert!((0..8).all(|peer| policy.has_rc_lane(peer)));
    assert!(carried > 1_700_000, "{carried} of 2,000,000 over RC");
    assert!(made < 2000, "{made} lanes made in 200 s");
}

proptest! {
    /// Never more lanes than the limit. The lane that goes is the least recently used of those that
    /// are idle and quiet. A transfer that needs RC gets a lane whenever some lane is quiet.
    #[test]
    fn agrees_with_a_list(
        max_lanes in 1..6usize,
        steps in proptest::collection::vec((0..6u8, 0..12u32, 0..40u64, any::<u16>()), 0..300),
    ) {
        let config = config(max_lanes);
        let mut policy = LanePolicy::new(config);
        let mut lanes: BTreeMap<u32, Time> = BTreeMap::new();
        let mut now = Time(1);
        for (what, peer, wait, quiet) in steps {
            now = now + MS * wait as u32;
            let is_quiet = |peer: u32| (quiet >> peer) & 1 != 0;
            match what {
                0 | 1 => {
                    let promote = policy.message(peer, 300, now);
                    prop_assert!(!(promote && lanes.contains_key(&peer)));
                    lanes.entry(peer).and_modify(|used| *used = now);
                }
                2 => {
                    policy.down(peer, now);
                    lanes.remove(&peer);
                }
                _ => {
                    let need = if what == 3 { Need::Bulk } else { Need::Traffic };
                    let before = lanes.clone();
                    let mut by_use: Vec<(Time, u32)> = lanes.iter().map(|(&peer, &used)| (used, peer)).collect();
                    by_use.sort();
                    let victim = by_use.into_iter().find(|&(used, peer)| {
                        is_quiet(peer) && (need == Need::Bulk || now - used >= config.idle)
                    });
                    match policy.admit(peer, need, now, is_quiet) {
                        LaneAdmission::Make if before.contains_key(&peer) => {}
                        LaneAdmission::Make => {
                            prop_assert!(before.len() < max_lanes);
                            lanes.insert(peer, now);
                        }
                        LaneAdmission::Recycle(gone) => {
                            prop_assert_eq!(before.len(), max_lanes);
                            prop_assert_eq!(victim.map(|(_, peer)| peer), Some(gone));
                            lanes.remove(&gone);
                            lanes.insert(peer, now);
                        }
                        LaneAdmission::Full => {
                            prop_assert_eq!(before.len(), max_lanes);
                            prop_assert!(victim.is_none() && !before.contains_key(&peer));
                        }
                    }
                }
            }
            prop_assert_eq!(policy.lanes(), lanes.len());
            prop_assert!((0..12).all(|peer| policy.has_rc_lane(peer) == lanes.contains_key(&peer)));
            prop_assert!(policy.by_use.len() <= 12);
        }
    }
}

/// A peer that waits for room gets the lane of a quiet peer at once, and any other after a fair
/// share.
#[test]
fn room_is_made_after_a_fair_share() {
    let mut policy = LanePolicy::new(config(2));
    for peer in 0..2 {
        policy.admit(peer, Need::Bulk, at(u64::from(peer)), |_| true);
    }
    assert_eq!(policy.make_room(at(200), |_| false), None);
    assert_eq!(policy.make_room(at(299), |_| false), None);
    assert_eq!(policy.make_room(at(300), |_| false), Some(0));
    assert_eq!(policy.make_room(at(301), |_| false), None, "a share each");
    assert_eq!(policy.make_room(at(302), |_| true), Some(1), "it is quiet");
    assert_eq!(policy.lanes(), 0);
    policy.admit(3, Need::Bulk, at(500), |_| true);
    assert_eq!(
        policy.make_room(at(501), |_| false),
        None,
        "who waits now has waited since now"
    );
}
