//! Single packets in single states.

use std::time::Duration;

use super::node::{NodeEffect, SimNode, key_of};
use crate::handshake::{EndReason, HandshakeConfig};
use crate::wire::control::{ControlBody, ControlPacket, Keys, LaneKind, RejectReason};
use crate::{PeerKey, Time};

pub(super) const NOW: Time = Time(1000);

const SECOND: Duration = Duration::from_secs(1);

pub(super) fn node(index: usize, keys: Keys) -> SimNode {
    SimNode::new(
        index,
        0,
        HandshakeConfig {
            seed: (index as u64).into(),
            keys,
            ..HandshakeConfig::default()
        },
    )
}

/// The datagrams among effects, read.
pub(super) fn packets(effects: &[NodeEffect]) -> Vec<(PeerKey, ControlPacket)> {
    let read = |effect: &NodeEffect| match effect {
        NodeEffect::Send { to, bytes } => Some((*to, ControlPacket::parse(bytes).unwrap())),
        NodeEffect::Make(_) | NodeEffect::Connect(_) => None,
    };
    effects.iter().filter_map(read).collect()
}

pub(super) fn hello_of(node: &mut SimNode, to: PeerKey) -> ControlPacket {
    hello_by(node, to, LaneKind::Rc)
}

fn hello_by(node: &mut SimNode, to: PeerKey, kind: LaneKind) -> ControlPacket {
    let effects = node.connect_by(NOW, to, kind);
    let [NodeEffect::Make(lane)] = effects[..] else {
        panic!("{effects:?}")
    };
    let sent = packets(&node.make(NOW, lane));
    assert_eq!(sent[0].0, to);
    sent[0].1
}

pub(super) fn rejected(effects: &[NodeEffect], with: RejectReason) -> ControlPacket {
    match packets(effects)[..] {
        [
            (
                _,
                reject @ ControlPacket {
                    body: ControlBody::Reject { reason, .. },
                    ..
                },
            ),
        ] if reason == with => reject,
        ref other => panic!("{other:?}"),
    }
}

#[test]
fn other_keys_are_refused_and_the_initiator_fails() {
    let mut a = node(
        0,
        Keys {
            p_key: 0xffff,
            q_key: Some(1),
        },
    );
    let mut b = node(
        1,
        Keys {
            p_key: 0xffff,
            q_key: Some(2),
        },
    );
    let hello = hello_of(&mut a, b.key);
    let reject = rejected(&b.receive(NOW, &hello.to_bytes()), RejectReason::Keys);
    assert!(b.lanes.is_empty());
    a.receive(NOW, &reject.to_bytes());
    assert_eq!(a.failures, [(b.key, EndReason::Keys)]);
    assert!(a.lanes.is_empty() && a.connector.is_idle());

    // A limited member of the same partition is welcome.
    let mut c = node(
        2,
        Keys {
            p_key: 0x7fff,
            q_key: Some(2),
        },
    );
    let hello = hello_of(&mut c, b.key);
    assert!(matches!(
        b.receive(NOW, &hello.to_bytes())[..],
        [NodeEffect::Make(_)]
    ));
}

#[test]
fn another_version_is_refused_and_the_initiator_fails() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let hello = hello_of(&mut a, b.key);
    let mut bytes = hello.to_bytes();
    bytes[4] = 9;
    let reject = rejected(&b.receive(NOW, &bytes), RejectReason::Version);
    a.receive(NOW, &reject.to_bytes());
    assert_eq!(a.failures, [(b.key, EndReason::Version)]);
    // A refusal is never refused in turn, or two versions would do nothing else.
    let mut foreign = reject.to_bytes();
    foreign[4] = 9;
    assert_eq!(a.receive(NOW, &foreign), []);
}

/// The other side refuses in its own version; the nonce shows that it is the one asked.
#[test]
fn a_refusal_of_another_version_ends_the_attempt_that_it_names() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let mut hello = hello_of(&mut a, b.key).to_bytes();
    hello[4] = 9;
    let reject = rejected(&b.receive(NOW, &hello), RejectReason::Version);
    let in_its_version = |mut packet: ControlPacket, nonce: u64| {
        packet.lane.initiator_nonce ^= nonce;
        let mut bytes = packet.to_bytes();
        bytes[4] = 9;
        bytes
    };
    a.receive(NOW, &in_its_version(reject, 1));
    assert!(a.failures.is_empty());
    a.receive(NOW, &in_its_version(reject, 0));
    assert_eq!(a.failures, [(b.key, EndReason::Version)]);
}

#[test]
fn another_incarnation_of_us_is_refused() {
    let (mut a, mut b) = (
        node(0, Keys::default()),
        SimNode::new(1, 1, HandshakeConfig::default()),
    );
    let hello = hello_of(&mut a, key_of(1, 0));
    let reject = rejected(
        &b.receive(NOW, &hello.to_bytes()),
        RejectReason::StaleIncarnation,
    );
    a.receive(NOW, &reject.to_bytes());
    assert_eq!(a.failures, [(key_of(1, 0), EndReason::PeerRestarted)]);
}

#[test]
fn a_forged_refusal_needs_the_nonce() {
    let (mut a, b) = (node(0, Keys::default()), node(1, Keys::default()));
    let mut forged = hello_of(&mut a, b.key);
    (forged.from, forged.to_incarnation) = (b.key, a.key.incarnation);
    forged.lane.from_initiator = false;
    forged.lane.initiator_nonce ^= 1;
    let refusal = |reason| ControlBody::Reject { reason };
    (forged.newest_epoch, forged.keys) = (0, Keys::default());
    for &reason in RejectReason::ALL {
        forged.body = refusal(reason);
        assert_eq!(a.receive(NOW, &forged.to_bytes()), [], "{reason:?}");
    }
    assert!(a.failures.is_empty());
    forged.lane.initiator_nonce ^= 1;
    forged.body = refusal(RejectReason::ShuttingDown);
    a.receive(NOW, &forged.to_bytes());
    assert_eq!(
        a.failures,
        [(b.key, EndReason::PeerShuttingDown)],
        "the test's forgery is good but for the nonce"
    );
}

#[test]
fn a_closing_endpoint_takes_no_hello() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    b.shutdown(NOW);
    let hello = hello_of(&mut a, b.key);
    let reject = rejected(
        &b.receive(NOW, &hello.to_bytes()),
        RejectReason::ShuttingDown,
    );
    a.receive(NOW, &reject.to_bytes());
    assert_eq!(a.failures, [(b.key, EndReason::PeerShuttingDown)]);
    b.connect(NOW, a.key);
    assert_eq!(b.failures, [(a.key, EndReason::ShuttingDown)]);
}

#[test]
fn an_old_hello_does_not_end_a_newer_lane() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let old = hello_of(&mut a, b.key);
    a.unreachable(NOW, b.key);
    assert_eq!(a.failures, [(b.key, EndReason::Unreachable)]);
    let new = hello_of(&mut a, b.key);
    assert!(new.lane.epoch > old.lane.epoch);
    let effects = b.receive(NOW, &new.to_bytes());
    let [NodeEffect::Make(lane)] = effects[..] else {
        panic!("{effects:?}")
    };
    b.make(NOW, lane);
    assert_eq!(b.receive(NOW, &old.to_bytes()), []);
    assert!(b.lanes.contains_key(&lane));
}

#[test]
fn garbage_is_counted_and_costs_nothing() {
    let mut a = node(0, Keys::default());
    let mut other = node(1, Keys::default());
    let hello = hello_of(&mut other, a.key).to_bytes();
    for bytes in [&[][..], &[0; 176], &hello[..175], &hello[..100]] {
        assert_eq!(a.receive(NOW, bytes), []);
    }
    let mut echo = ControlPacket::parse(&hello).unwrap();
    echo.from = a.key; // our own voice
    assert_eq!(a.receive(NOW, &echo.to_bytes()), []);
    assert_eq!(a.connector.counters().malformed, 5);
    assert!(a.connector.is_idle() && a.connector.next_timeout().is_none());
}

/// The handshake of `a` and `b` up to the Ready, which is returned and not delivered.
pub(super) fn ready_of(a: &mut SimNode, b: &mut SimNode) -> ControlPacket {
    ready_by(a, b, LaneKind::Rc)
}

fn ready_by(a: &mut SimNode, b: &mut SimNode, kind: LaneKind) -> ControlPacket {
    let hello = hello_by(a, b.key, kind);
    let [NodeEffect::Make(lane)] = b.receive(NOW, &hello.to_bytes())[..] else {
        panic!()
    };
    let [NodeEffect::Connect(lane)] = b.make(NOW, lane)[..] else {
        panic!()
    };
    let hello_ack = packets(&b.connect_lane(NOW, lane))[0].1;
    let [NodeEffect::Connect(lane)] = a.receive(NOW, &hello_ack.to_bytes())[..] else {
        panic!()
    };
    let ready = packets(&a.connect_lane(NOW, lane))[0].1;
    assert!(a.usable(&b.key).is_some());
    ready
}

#[test]
fn a_responder_sends_after_a_packet_on_the_lane_or_the_ready() {
    for by_ready in [true, false] {
        let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
        let ready = ready_of(&mut a, &mut b);
        let (&lane, state) = b.lanes.iter().next().unwrap();
        assert!(
            state.up.is_some() && !state.may_send,
            "it can receive, and must not send yet"
        );
        if by_ready {
            b.receive(NOW, &ready.to_bytes());
        } else {
            b.heard(NOW, lane);
        }
        assert!(b.lanes[&lane].may_send);
        let before = b.connector.counters().stale;
        b.receive(NOW, &ready.to_bytes());
        b.heard(NOW, lane);
        assert_eq!(b.connector.counters().stale, before + 1);
        assert_eq!(b.connector.counters().lanes_up, 1);
        assert!(
            b.timeout(Time(u64::MAX)).is_empty(),
            "nothing more is repeated"
        );
    }
}

#[test]
fn a_request_to_drive_is_about_a_lane_that_is_up() {
    for kind in [LaneKind::Rc, LaneKind::Ud] {
        let (mut a, mut b) = joined_by(kind);
        let requested = packets(&a.request_drive(b.key));
        let [(to, request)] = requested[..] else {
            panic!("{requested:?}")
        };
        assert_eq!((to, request.body), (b.key, ControlBody::Drive));
        assert_eq!(b.receive(NOW, &request.to_bytes()), []);
        assert_eq!(b.drives, 1);
        // A third party does not know the lane's name.
        let mut forged = request;
        forged.lane.responder_nonce ^= 1;
        assert_eq!(b.receive(NOW, &forged.to_bytes()), []);
        assert_eq!((b.drives, b.connector.counters().stale), (1, 1));
    }
}

#[test]
fn a_lane_whose_other_end_was_dropped_is_reset_by_its_ready() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let ready = ready_of(&mut a, &mut b);
    b.unreachable(NOW, a.key);
    assert!(b.lanes.is_empty());
    let reject = rejected(&b.receive(NOW, &ready.to_bytes()), RejectReason::NoSuchLane);
    a.receive(NOW, &reject.to_bytes());
    assert_eq!(a.downs, [(b.key, EndReason::PeerReset)]);
    assert!(a.connector.is_idle());
}

#[test]
fn a_broken_lane_is_reported_and_a_late_bye_about_it_harms_no_newer_one() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let ready = ready_of(&mut a, &mut b);
    b.receive(NOW, &ready.to_bytes());
    let mut late = ready;
    late.body = ControlBody::Bye {
        expected: None,
        ends: false,
        proof: 0,
    };
    late.lane.responder_nonce = 0; // as one says that has no answer yet

    let lane = a.usable(&b.key).unwrap().0;
    let notice = rejected(&a.broken(NOW, lane), RejectReason::NoSuchLane);
    assert_eq!(a.downs, [(b.key, EndReason::Broken)]);
    b.receive(NOW, &notice.to_bytes());
    assert_eq!(b.downs, [(a.key, EndReason::PeerReset)]);

    let ready = ready_of(&mut a, &mut b);
    b.receive(NOW, &ready.to_bytes());
    let answer = packets(&b.receive(NOW, &late.to_bytes()))[0].1;
    assert_eq!(answer.body, ControlBody::ByeAck);
    assert!(b.usable(&a.key).is_some());
    late.lane = ready.lane;
    b.receive(NOW, &late.to_bytes());
    assert!(
        b.usable(&a.key).is_none(),
        "the Bye is good but for the lane"
    );
}

/// A lane that is left is reported, and a report about an earlier lane harms no later one.
///
/// Covers: AV-17
#[test]
fn a_lane_that_is_left_is_down_at_both_ends_and_no_later_one_is() {
    let (mut a, mut b) = joined();
    let lane = a.usable(&b.key).unwrap().0;
    let notice = rejected(&a.leave(NOW, lane), RejectReason::Left);
    assert_eq!(a.downs, [(b.key, EndReason::Left)]);
    assert!(a.connector.is_idle());
    b.receive(NOW, &notice.to_bytes());
    assert_eq!(b.downs, [(a.key, EndReason::Left)]);
    assert!(b.failures.is_empty() && b.connector.is_idle());

    let ready = ready_of(&mut b, &mut a);
    a.receive(NOW, &ready.to_bytes());
    let again = a.usable(&b.key).unwrap().1.up.unwrap();
    assert!(again.resumes, "the session rests, and is not over");
    b.receive(NOW, &notice.to_bytes());
    assert!(
        b.usable(&a.key).is_some(),
        "the Reject is good but for its lane"
    );
}

/// Two ends of a lane.
pub(super) fn joined() -> (SimNode, SimNode) {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let ready = ready_of(&mut a, &mut b);
    b.receive(NOW, &ready.to_bytes());
    (a, b)
}

/// The Bye of an endpoint that closes, to its one peer.
pub(super) fn closing_bye(node: &mut SimNode, peer: &SimNode) -> ControlPacket {
    let sent = packets(&node.shutdown(NOW));
    let [(to, bye)] = sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!(to, peer.key);
    assert!(
        matches!(bye.body, ControlBody::Bye { ends: true, .. }),
        "{bye:?}"
    );
    bye
}

pub(super) const OVER: EndReason = EndReason::PeerClosed { expected: None };

#[test]
fn closing_ends_attempts_without_a_packet_from_the_peer() {
    let (mut a, mut b) = joined();
    let lane = a.usable(&b.key).unwrap().0;
    a.change(NOW, lane); // its Hello is lost
    let bye = closing_bye(&mut b, &a);
    let answer = packets(&a.receive(NOW, &bye.to_bytes()))[0].1;
    assert_eq!(a.failures, [(b.key, OVER)]);
    assert!(a.connector.is_idle());
    b.receive(NOW, &answer.to_bytes());
    assert!(b.connector.is_idle());
}

/// The expected number in a Bye also counts where the session has left its lane.
#[test]
fn a_bye_carries_the_expected_number_of_a_session_off_its_lane() {
    for attempts in [false, true] {
        let (mut a, mut b) = joined();
        let lane = a.usable(&b.key).unwrap().0;
        if attempts {
            a.change(NOW, lane); // its Hello is lost
        } else {
            a.broken(NOW, lane); // its Reject is lost
        }
        let taken = [(a.key, 7)].into();
        let sent = packets(&b.shutdown_having(NOW, &taken));
        a.receive(NOW, &sent[0].1.to_bytes());
        let reason = EndReason::PeerClosed { expected: Some(7) };
        assert_eq!(a.failures, [(b.key, reason)]);
    }
}

/// The same where the endpoint that closes has no lane, or answers an attempt for the next one.
#[test]
fn a_bye_carries_the_expected_number_whichever_lane_is_at_hand() {
    for answers in [false, true] {
        let (mut a, mut b) = joined();
        let [of_a, of_b] = [(&a, &b), (&b, &a)].map(|(own, peer)| own.usable(&peer.key).unwrap().0);
        if answers {
            for (_, hello) in packets(&a.change(NOW, of_a)) {
                b.receive(NOW, &hello.to_bytes());
            }
        } else {
            // Both Rejects are lost.
            a.broken(NOW, of_a);
            b.broken(NOW, of_b);
        }
        let taken = [(a.key, 7)].into();
        let sent = packets(&b.shutdown_having(NOW, &taken));
        a.receive(NOW, &sent[0].1.to_bytes());
        let reason = EndReason::PeerClosed { expected: Some(7) };
        assert_eq!(a.failures, [(b.key, reason)], "answers: {answers}");
    }
}

#[test]
fn closing_sends_a_bye_to_peers_with_a_session_and_no_lane() {
    let (mut a, mut b) = joined();
    let lane = b.usable(&a.key).unwrap().0;
    b.broken(NOW, lane); // its Reject is lost
    let bye = closing_bye(&mut b, &a);
    let answer = packets(&a.receive(NOW, &bye.to_bytes()))[0].1;
    assert_eq!(a.downs, [(b.key, OVER)]);
    b.receive(NOW, &answer.to_bytes());
    assert!(b.connector.is_idle());
}

#[test]
fn a_session_without_a_lane_is_over_with_its_peer() {
    let (mut a, mut b) = joined();
    let lane = a.usable(&b.key).unwrap().0;
    a.broken(NOW, lane); // its Reject is lost
    let bye = closing_bye(&mut b, &a);
    a.receive(NOW, &bye.to_bytes());
    assert_eq!(a.failures, [(b.key, OVER)]);
    // One Bye is enough, and nothing is left to close.
    a.receive(NOW, &bye.to_bytes());
    assert_eq!(a.failures.len(), 1);
    a.shutdown(NOW);
    assert!(a.connector.is_idle());
}

/// An end of a lane whose peer's silence has a limit only where it is reached by datagrams.
fn joined_by(kind: LaneKind) -> (SimNode, SimNode) {
    let config = HandshakeConfig {
        datagram_timeout: Some(60 * SECOND),
        ..HandshakeConfig::default()
    };
    let (mut a, mut b) = (SimNode::new(0, 0, config), node(1, Keys::default()));
    ready_by(&mut a, &mut b, kind);
    (a, b)
}

/// Lets time pass for a node to which nothing comes. Returns the keep-alives that it sends.
fn keep_alives(node: &mut SimNode, until: Time) -> Vec<ControlPacket> {
    let mut sent = Vec::new();
    while let Some(at) = node.connector.next_timeout().filter(|&at| at <= until) {
        let packets = packets(&node.timeout(at)).into_iter();
        sent.extend(packets.map(|(_, packet)| packet));
    }
    sent.retain(|packet| matches!(packet.body, ControlBody::KeepAlive { .. }));
    sent
}

#[test]
fn only_a_peer_by_datagrams_dies_of_silence() {
    let (mut a, b) = joined_by(LaneKind::Ud);
    assert!(keep_alives(&mut a, NOW + 59 * SECOND).len() > 4);
    assert_eq!(a.downs, []);
    keep_alives(&mut a, NOW + 61 * SECOND);
    assert_eq!(a.downs, [(b.key, EndReason::Timeout)]);

    let (mut a, _b) = joined_by(LaneKind::Rc);
    assert_eq!(keep_alives(&mut a, NOW + 600 * SECOND), []);
    assert_eq!(a.downs, []);
}

#[test]
fn a_peer_by_datagrams_that_answers_at_last_lives() {
    let (mut a, mut b) = joined_by(LaneKind::Ud);
    let asked = keep_alives(&mut a, NOW + 59 * SECOND);
    let later = NOW + 59 * SECOND;
    let answer = packets(&b.receive(later, &asked[0].to_bytes()))[0].1;
    a.receive(later, &answer.to_bytes());
    keep_alives(&mut a, later + 59 * SECOND);
    assert_eq!(a.downs, []);
}

#[test]
fn a_stopped_process_sends_keep_alives_before_it_gives_a_peer_up() {
    let (mut a, mut b) = joined_by(LaneKind::Ud);
    let later = NOW + 3600 * SECOND;
    let asked = packets(&a.timeout(later))[0].1;
    assert_eq!(a.downs, []);
    let answer = packets(&b.receive(later, &asked.to_bytes()))[0].1;
    a.receive(later, &answer.to_bytes());
    keep_alives(&mut a, later + 50 * SECOND);
    assert_eq!(a.downs, []);
}

/// While the port is down no peer is given up; from then on each has all of its time.
#[test]
fn the_clocks_of_peers_stand_still_while_the_port_is_down() {
    let limit = 10 * SECOND;
    let (mut a, b) = (node(0, Keys::default()), node(1, Keys::default()));
    let mut out = Vec::new();
    a.requested.insert(b.key);
    (a.connector).connect(NOW, b.key, LaneKind::Rc, Some(limit), &mut out);
    let [NodeEffect::Make(lane)] = a.perform(out)[..] else {
        panic!("no lane is made")
    };
    a.make(NOW, lane);
    a.connector.port_down();
    let mut now = NOW;
    let mut tries = 0;
    while now < NOW + 10 * limit {
        now = a.connector.next_timeout().unwrap();
        tries += packets(&a.timeout(now)).len();
    }
    assert!(tries > 10, "{tries} tries");
    let mut out = Vec::new();
    (a.connector).unreachable(now, &b.key, &mut out);
    a.perform(out);
    assert_eq!(a.failures, []);
    a.connector.port_active(now);
    assert_eq!(packets(&a.timeout(now)).len(), 1, "an attempt at once");
    let begun = now;
    while a.failures.is_empty() {
        now = a.connector.next_timeout().unwrap();
        a.timeout(now);
    }
    assert_eq!(a.failures, [(b.key, EndReason::Timeout)]);
    assert_eq!(now, begun + limit);
}

/// The engine requested a lane, and the one that the peer has begun breaks before the peer's end is
/// up: the request goes on, and so does the session.
#[test]
fn a_half_open_lane_that_breaks_leaves_the_request() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let hello = hello_of(&mut a, b.key);
    let [NodeEffect::Make(lane)] = b.receive(NOW, &hello.to_bytes())[..] else {
        panic!("no lane is made")
    };
    assert_eq!(b.connect(NOW, a.key), []);
    b.make(NOW, lane);
    let connected = b.connect_lane(NOW, lane);
    assert!(!packets(&connected).is_empty(), "{connected:?}");
    b.broken(NOW, lane);
    assert_eq!(b.downs, [(a.key, EndReason::Broken)]);
    assert_eq!(b.failures, []);
    let again = b.connector.next_timeout().unwrap();
    let effects = b.timeout(again);
    assert!(matches!(effects[..], [NodeEffect::Make(_)]), "{effects:?}");
}
