//! Each part by itself: events, and the actions that come of them. Sequences of them are drawn at
//! random in `sim/lanes`.

use super::*;
use crate::PeerKey;
use crate::handshake::LaneUp;
use crate::session::{Replay, ResumeOutcome};
use crate::wire::control::LaneLimits;
use crate::wire::data::Resume;

const PEER: u32 = 0;

/// Facts that are set by hand.
#[derive(Default)]
struct Stub {
    waits: bool,
    demand: Demand,
    session: SessionFacts,
    used: (u32, u32),
    is_busy: bool,
}

impl Facts for Stub {
    fn waits(&mut self, _peer: u32) -> bool {
        self.waits
    }
    fn demand(&mut self, _peer: u32) -> Demand {
        self.demand
    }
    fn carried(&mut self, _lane: LaneKey) -> SessionFacts {
        self.session
    }
    fn parked(&mut self, _peer: u32) -> SessionFacts {
        self.session
    }
    fn used(&mut self, _lane: LaneKey) -> (u32, u32) {
        self.used
    }
    fn is_quiet(&mut self, _lane: LaneKey) -> bool {
        !self.is_busy
    }
    fn is_empty(&mut self, _lane: LaneKey) -> bool {
        !self.is_busy
    }
    fn may_send(&mut self, _lane: LaneKey) -> bool {
        true
    }
}

fn life(choice: LaneChoice, max_lanes: usize) -> PeerLanes {
    PeerLanes::new(LanesConfig {
        choice,
        datagrams: true,
        requests_fit_datagrams: true,
        policy: lane_policy::LanePolicyConfig {
            max_lanes,
            messages: 2,
            ..lane_policy::LanePolicyConfig::default()
        },
    })
}

fn lane(number: u64) -> LaneKey {
    LaneKey::from_bits((1 << 32) | number)
}

fn up(number: u64, kind: LaneKind, resumes: bool) -> LaneUp {
    LaneUp {
        lane: lane(number),
        kind,
        remote_qpn: 0,
        peer: PeerKey {
            place: [0; crate::PLACE_BYTES],
            incarnation: 0,
        },
        remote_session: SessionId(0),
        name: number,
        resumes,
        remote_shm_name: 0,
        remote_limits: LaneLimits::default(),
        local_quota_units: 0,
        may_send: true,
    }
}

/// The names of the actions that are outstanding.
fn actions(life: &mut PeerLanes, facts: &mut Stub, now: Time) -> Vec<String> {
    let next = || life.next_action(facts, now);
    let name = |action: LaneAction| {
        let text = match action {
            LaneAction::Order(order) => format!("{order:?}"),
            LaneAction::Settle(settlement) => format!("{settlement:?}"),
        };
        text.split_once(' ')
            .map_or(text.clone(), |(name, _)| name.to_owned())
    };
    std::iter::from_fn(next).map(name).collect()
}

const NOW: Time = Time(1_000_000_000);

/// A lane carries a session in which something was sent and taken.
fn carrying(choice: LaneChoice, kind: LaneKind) -> (PeerLanes, Stub) {
    let (mut life, mut facts) = (life(choice, 4), Stub::default());
    life.inserted(PEER);
    life.lane_up(PEER, &up(1, kind, false), &mut facts, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Enter"]);
    facts.session.is_settled = true;
    (life, facts)
}

/// The peer of a session that waits between lanes says that it holds the same.
fn resume(life: &mut PeerLanes, facts: &mut Stub, number: u64, kind: LaneKind) -> Vec<String> {
    life.lane_up(PEER, &up(number, kind, true), facts, NOW);
    let mut done = actions(life, facts, NOW);
    let expected = 0;
    let held = Resume::default();
    assert!(life.resume_arrived(
        lane(number).session(),
        ResumeState { held, expected },
        facts
    ));
    done.extend(actions(life, facts, NOW));
    if done.last().is_some_and(|last| last == "Meet") {
        let replay = Replay { first: 0, count: 0 };
        life.met(
            lane(number),
            Ok(ResumeOutcome::Continues(replay)),
            facts,
            NOW,
        );
        done.extend(actions(life, facts, NOW));
    }
    done
}

#[test]
fn a_broken_lane_is_drained_before_the_session_leaves_it() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    life.broke(lane(1).session(), BROKEN, &mut facts, NOW);
    assert_eq!(
        actions(&mut life, &mut facts, NOW),
        ["ReportBroken", "Fail"]
    );
    // The next lane has to wait.
    life.lane_up(PEER, &up(2, LaneKind::Rc, true), &mut facts, NOW);
    assert!(actions(&mut life, &mut facts, NOW).is_empty());
    life.drained(lane(1), &mut facts);
    let left = actions(&mut life, &mut facts, NOW);
    assert_eq!(left, ["Park", "MoveLess", "SendResume"]);
}

#[test]
fn a_session_resumes_only_once_both_sides_have_spoken() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    life.broke(lane(1).session(), BROKEN, &mut facts, NOW);
    life.drained(lane(1), &mut facts);
    let left = actions(&mut life, &mut facts, NOW);
    assert_eq!(left[2..], ["Park", "MoveLess", "Connect"]);
    let resumed = resume(&mut life, &mut facts, 2, LaneKind::Rc);
    assert_eq!(resumed, ["SendResume", "Meet", "Enter"]);
    assert!(!life.is_resuming(lane(2).session()));
}

/// The peer has the acknowledgement of packets that arrived before the lane failed.
#[test]
fn a_lane_that_fails_carries_what_has_arrived_on_it() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    life.broke(lane(1).session(), BROKEN, &mut facts, NOW);
    life.drained(lane(1), &mut facts);
    life.lane_up(PEER, &up(2, LaneKind::Rc, true), &mut facts, NOW);
    let said = actions(&mut life, &mut facts, NOW);
    assert_eq!(said.last().map(String::as_str), Some("SendResume"));
    life.orders().failed(lane(2).session(), BROKEN, NOW);
    let failed = actions(&mut life, &mut facts, NOW);
    assert_eq!(failed, ["ReportBroken", "TakeAll"]);
    assert!(life.resume_arrived(lane(2).session(), ResumeState::default(), &mut facts));
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Meet"]);
    let replay = Replay { first: 0, count: 0 };
    let outcome = Ok(ResumeOutcome::Continues(replay));
    life.met(lane(2), outcome, &mut facts, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Enter"]);
    life.taken(lane(2), &mut facts, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Fail"]);
}

#[test]
fn nine_lanes_that_break_in_a_row_end_the_session() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    for number in 1..=9 {
        life.broke(lane(number).session(), BROKEN, &mut facts, NOW);
        life.drained(lane(number), &mut facts);
        let left = actions(&mut life, &mut facts, NOW);
        assert_eq!(
            left.contains(&"EndCarried".to_owned()),
            number == 9,
            "{left:?}"
        );
        if number < 9 {
            resume(&mut life, &mut facts, number + 1, LaneKind::Rc);
        }
    }
}

#[test]
fn progress_makes_up_for_broken_lanes() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    for number in 1..=50 {
        facts.session.expected += u32::from(number % 8 == 0);
        life.broke(lane(number).session(), BROKEN, &mut facts, NOW);
        life.drained(lane(number), &mut facts);
        assert!(actions(&mut life, &mut facts, NOW).contains(&"Park".to_owned()));
        resume(&mut life, &mut facts, number + 1, LaneKind::Rc);
    }
}

#[test]
fn a_resume_over_datagrams_is_repeated_at_ever_longer_intervals() {
    let (mut life, mut facts) = carrying(LaneChoice::Ud, LaneKind::Ud);
    life.lane_down(lane(1), Some(PEER), EndReason::PeerReset, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["TakeAll"]);
    life.taken(lane(1), &mut facts, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Park", "Connect"]);
    life.lane_up(PEER, &up(2, LaneKind::Ud, true), &mut facts, NOW);
    for wait in [10, 20, 40, 80, 160, 320, 640, 1000, 1000] {
        let action = life.next_action(&mut facts, NOW);
        let wait = Some(Duration::from_millis(wait));
        assert!(
            matches!(action, Some(LaneAction::Order(LaneOrder::SendResume { again_after, .. })) if again_after == wait),
            "{action:?}"
        );
        assert!(actions(&mut life, &mut facts, NOW).is_empty());
        life.resume_is_due(lane(2).session());
    }
}

#[test]
fn an_idle_lane_of_a_removed_peer_closes_later_each_time_that_it_comes_back() {
    for returns in 0..4 {
        let (mut life, mut facts) = carrying(LaneChoice::Ud, LaneKind::Ud);
        life.removed(PEER, &mut facts, NOW);
        let mut number = 1;
        for _ in 0..returns {
            while actions(&mut life, &mut facts, NOW).is_empty() {
                life.close_idle(&mut facts);
            }
            facts.waits = true;
            life.orders().request_lane(PEER, &mut facts);
            facts.waits = false;
            assert_eq!(actions(&mut life, &mut facts, NOW), ["Connect"]);
            number += 1;
            let resumed = resume(&mut life, &mut facts, number, LaneKind::Ud);
            assert_eq!(resumed, ["SendResume", "Meet", "ReclaimCredit", "Enter"]);
        }
        // The first look finds what was not seen before.
        for _ in 0..1 << returns {
            life.close_idle(&mut facts);
            assert!(!life.has_actions(), "after {returns} returns");
        }
        life.close_idle(&mut facts);
        let closed = actions(&mut life, &mut facts, NOW);
        assert_eq!(
            closed,
            ["ReportLeft", "Park", "LendCredit", "ReleasePath", "Idle"]
        );
    }
}

#[test]
fn a_lane_with_anything_on_it_is_not_idle() {
    let disturb: [fn(&mut Stub, u32); 4] = [
        |facts, check| facts.session.sent = check,
        |facts, _| facts.session.is_settled = false,
        |facts, _| facts.waits = true,
        |facts, _| facts.is_busy = true,
    ];
    for disturb in disturb {
        let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
        life.removed(PEER, &mut facts, NOW);
        for check in 0..200 {
            disturb(&mut facts, check);
            life.close_idle(&mut facts);
            assert!(!life.has_actions());
        }
    }
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    (0..200).for_each(|_| life.close_idle(&mut facts));
    assert!(!life.has_actions(), "it is in the address vector");
}

#[test]
fn traffic_promotes_and_the_idle_lane_of_another_makes_room() {
    let (mut life, mut facts) = (life(LaneChoice::Auto, 1), Stub::default());
    life.lane_up(1, &up(7, LaneKind::Rc, false), &mut facts, NOW);
    life.lane_up(PEER, &up(1, LaneKind::Ud, false), &mut facts, NOW);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Enter", "Enter"]);
    let later = NOW + Duration::from_secs(2);
    assert!(!life.message(PEER, 8, later));
    assert!(life.message(PEER, 8, later));
    facts.is_busy = true;
    assert!(
        !life.orders().has_traffic(PEER, &mut facts, later),
        "none is quiet"
    );
    let later = later + Duration::from_secs(2);
    facts.is_busy = false;
    assert!(life.orders().has_traffic(PEER, &mut facts, later));
    assert_eq!(
        actions(&mut life, &mut facts, later),
        ["ReportRecycled", "Fail"]
    );
    assert!(life.orders().promote(lane(1).session(), &mut facts));
    assert_eq!(actions(&mut life, &mut facts, later), ["Park", "Promote"]);
    assert!(!life.orders().promote(lane(1).session(), &mut facts));
    // The recycled peer goes on over datagrams.
    life.drained(lane(7), &mut facts);
    facts.waits = true;
    assert_eq!(life.next_action(&mut facts, later).map(kind_of), Some(None));
    let connect = life.next_action(&mut facts, later).map(kind_of);
    assert_eq!(connect, Some(Some(LaneKind::Ud)));
}

fn kind_of(action: LaneAction) -> Option<LaneKind> {
    match action {
        LaneAction::Order(LaneOrder::Connect { kind, .. }) => Some(kind),
        _ => None,
    }
}

/// The handshake learns of it, although an older lane is there on which nothing was resumed.
#[test]
fn a_session_is_promoted_while_an_older_lane_ends() {
    let (mut life, mut facts) = (life(LaneChoice::Auto, 4), Stub::default());
    life.lane_up(PEER, &up(1, LaneKind::Ud, true), &mut facts, NOW);
    life.lane_down(lane(1), Some(PEER), EndReason::PeerReset, NOW);
    life.lane_up(PEER, &up(2, LaneKind::Ud, false), &mut facts, NOW);
    let begun = actions(&mut life, &mut facts, NOW);
    assert_eq!(begun.last().map(String::as_str), Some("Enter"));
    assert!(life.orders().promote(lane(2).session(), &mut facts));
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Park", "Promote"]);
}

#[test]
fn a_lane_that_is_down_is_not_promoted_from() {
    let (mut life, mut facts) = carrying(LaneChoice::Auto, LaneKind::Ud);
    let closed = EndReason::PeerClosed { expected: Some(3) };
    life.lane_down(lane(1), Some(PEER), closed, NOW);
    assert!(!life.orders().promote(lane(1).session(), &mut facts));
    assert!(life.is_closed(PEER));
    life.taken(lane(1), &mut facts, NOW);
    let ended = actions(&mut life, &mut facts, NOW);
    assert_eq!(ended, ["TakeAll", "SessionEnded", "EndCarried", "Idle"]);
}

#[test]
fn the_kind_of_a_lane_follows_choice_demand_and_room() {
    use LaneKind::{Rc, Ud};
    let small = Demand::default();
    let large = Demand {
        by_message: true,
        ..small
    };
    let must = Demand {
        by_session: true,
        ..small
    };
    let kinds = |choice, max_lanes, falls_back| {
        let mut life = life(choice, max_lanes);
        life.peer(PEER).falls_back = falls_back;
        [small, large, must].map(|demand| life.kind_for(PEER, demand))
    };
    assert_eq!(kinds(LaneChoice::Auto, 1, false), [Ud, Rc, Rc]);
    assert_eq!(kinds(LaneChoice::Rc, 1, false), [Rc, Rc, Rc]);
    assert_eq!(kinds(LaneChoice::Ud, 1, false), [Ud, Rc, Rc]);
    for choice in [LaneChoice::Auto, LaneChoice::Rc, LaneChoice::Ud] {
        assert_eq!(kinds(choice, 0, false), [Ud, Ud, Rc], "{choice:?}, no room");
        assert_eq!(
            kinds(choice, 1, true),
            [Ud, Ud, Rc],
            "{choice:?}, it falls back"
        );
    }
}

#[test]
fn a_silent_end_of_a_wait_gives_the_error_of_the_last_lane() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    let end = LaneEnd {
        status: 12,
        ..BROKEN
    };
    life.broke(lane(1).session(), end, &mut facts, NOW);
    life.drained(lane(1), &mut facts);
    drop(actions(&mut life, &mut facts, NOW));
    life.connect_failed(PEER, EndReason::Timeout, NOW);
    let ended = life.next_action(&mut facts, NOW);
    let Some(LaneAction::Settle(Settlement::EndParked { end, rested, .. })) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!((end.status, end.then, rested), (12, AfterLane::Fail, false));
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Idle"]);
}

#[test]
fn an_attempt_for_a_removed_peer_alone_is_cancelled() {
    let (mut life, mut facts) = (life(LaneChoice::Rc, 1), Stub::default());
    life.inserted(PEER);
    facts.waits = true;
    life.orders().request_lane(PEER, &mut facts);
    life.orders().request_lane(PEER, &mut facts);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Connect"]);
    facts.waits = false;
    life.removed(PEER, &mut facts, NOW);
    assert_eq!(
        actions(&mut life, &mut facts, NOW),
        ["Cancel", "ReleasePath", "Idle"]
    );
    assert!(!life.is_linked(PEER));
}

#[test]
fn an_attempt_for_a_removed_peer_goes_on_while_a_reply_waits() {
    let (mut life, mut facts) = (life(LaneChoice::Rc, 1), Stub::default());
    life.inserted(PEER);
    facts.waits = true;
    life.orders().request_lane(PEER, &mut facts);
    assert_eq!(actions(&mut life, &mut facts, NOW), ["Connect"]);
    life.removed(PEER, &mut facts, NOW);
    // A peer that is silent for too long ends it, though no session needs the lane.
    let action = life.next_action(&mut facts, NOW);
    let is_limited = matches!(
        action,
        Some(LaneAction::Order(LaneOrder::Connect { limited: true, .. }))
    );
    assert!(is_limited, "{action:?}");
    assert!(!life.has_actions());
    // Once it is inserted again, and is sent a message, that waits as long as it takes.
    life.inserted(PEER);
    life.orders().request_lane(PEER, &mut facts);
    let action = life.next_action(&mut facts, NOW);
    let is_unlimited = matches!(
        action,
        Some(LaneAction::Order(LaneOrder::Connect { limited: false, .. }))
    );
    assert!(is_unlimited, "{action:?}");
    life.orders().request_lane(PEER, &mut facts);
    assert!(!life.has_actions());
}

/// A call without an owner carries out nothing that may end an operation, and nothing behind that.
#[test]
fn a_settlement_waits_for_an_owner_with_the_orders_behind_it() {
    let (mut life, mut facts) = carrying(LaneChoice::Rc, LaneKind::Rc);
    let end = LaneEnd {
        then: AfterLane::Fail,
        ..BROKEN
    };
    life.broke(lane(1).session(), end, &mut facts, NOW);
    life.drained(lane(1), &mut facts);
    while let Some(order) = life.next_order(&mut facts, NOW) {
        assert!(!matches!(order, LaneOrder::Idle { .. }), "{order:?}");
    }
    assert!(life.has_actions());
    assert_eq!(
        actions(&mut life, &mut facts, NOW)
            .first()
            .map(String::as_str),
        Some("EndCarried")
    );
}
