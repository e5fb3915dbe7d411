//! A third party that knows both addresses sends packets in the name of a peer. It sees no packet
//! of the two.

use super::node::{NodeEffect, SimNode, key_of};
use super::unit::{NOW, OVER, closing_bye, hello_of, joined, node, packets, ready_of, rejected};
use crate::PeerKey;
use crate::handshake::{EndReason, HandshakeConfig};
use crate::wire::control::{
    ControlBody, ControlPacket, Keys, LaneName, LaneParameters, RejectReason,
};

/// A packet by a third party in the name of `from`.
fn forged(from: PeerKey, to: PeerKey, body: ControlBody) -> ControlPacket {
    ControlPacket {
        from,
        to_incarnation: to.incarnation,
        lane: LaneName {
            from_initiator: true,
            epoch: 1 << 40,
            initiator_nonce: 1,
            responder_nonce: 0,
        },
        newest_epoch: 1 << 40,
        keys: Keys::default(),
        body,
    }
}

fn hello() -> ControlBody {
    ControlBody::Hello {
        stamp_ns: 0,
        parameters: LaneParameters {
            qpn: 77,
            ..LaneParameters::default()
        },
        proof: 0,
    }
}

fn last_bye() -> ControlBody {
    ControlBody::Bye {
        expected: Some(0),
        ends: true,
        proof: 0,
    }
}

/// The Challenge that is the one answer.
fn challenged(effects: &[NodeEffect], to: PeerKey) -> ControlPacket {
    match packets(effects)[..] {
        [(at, challenge)] if matches!(challenge.body, ControlBody::Challenge { .. }) => {
            assert_eq!(at, to);
            challenge
        }
        ref other => panic!("{other:?}"),
    }
}

/// The lanes of a node, and the ends of lanes.
fn state_of(node: &SimNode) -> String {
    let (lanes, sessions) = (&node.lanes, (&node.downs, &node.failures));
    format!("{lanes:?} {sessions:?} {:?}", node.closed)
}

#[test]
fn a_forged_hello_leaves_the_lane_up() {
    let (mut a, b) = joined();
    let before = state_of(&a);
    let first = challenged(
        &a.receive(NOW, &forged(b.key, a.key, hello()).to_bytes()),
        b.key,
    );
    let again = challenged(
        &a.receive(NOW, &forged(b.key, a.key, hello()).to_bytes()),
        b.key,
    );
    assert_eq!(
        first, again,
        "no forged packet makes an earlier Challenge void"
    );
    assert_eq!(state_of(&a), before);
}

#[test]
fn a_challenge_that_the_peer_did_not_cause_changes_nothing() {
    let (mut a, mut b) = joined();
    let before = state_of(&b);
    let challenge = challenged(
        &a.receive(NOW, &forged(b.key, a.key, hello()).to_bytes()),
        b.key,
    );
    assert_eq!(b.receive(NOW, &challenge.to_bytes()), []);
    assert_eq!(state_of(&b), before);
}

/// The peer has forgotten lane and session, so it can prove nothing but where it is.
#[test]
fn a_peer_that_has_forgotten_all_proves_its_address() {
    let (mut a, mut b) = joined();
    let (lane, _) = b.usable(&a.key).unwrap();
    b.broken(NOW, lane); // its Reject is lost
    b.connector.session_ended(&a.key, lane);
    let unproven = hello_of(&mut b, a.key);
    assert!(matches!(unproven.body, ControlBody::Hello { proof: 0, .. }));
    let challenge = challenged(&a.receive(NOW, &unproven.to_bytes()), b.key);
    let proven = packets(&b.receive(NOW, &challenge.to_bytes()))[0].1;
    assert_eq!(proven.lane, unproven.lane);
    let effects = a.receive(NOW, &proven.to_bytes());
    assert!(matches!(effects[..], [NodeEffect::Make(_)]), "{effects:?}");
    assert_eq!(a.downs, [(b.key, EndReason::PeerReset)]);
    // A Challenge is good for one packet.
    let mut next = proven;
    next.lane.epoch += 1;
    next.lane.initiator_nonce += 1;
    challenged(&a.receive(NOW, &next.to_bytes()), b.key);
}

#[test]
fn a_peer_with_a_session_needs_no_challenge() {
    let (mut a, mut b) = joined();
    let (lane, _) = b.usable(&a.key).unwrap();
    b.broken(NOW, lane); // its Reject is lost
    let hello = hello_of(&mut b, a.key);
    let effects = a.receive(NOW, &hello.to_bytes());
    assert!(matches!(effects[..], [NodeEffect::Make(_)]), "{effects:?}");
}

#[test]
fn a_forged_bye_ends_neither_lane_nor_session_nor_attempt() {
    for (has_lane, attempts) in [(true, false), (false, false), (false, true)] {
        let (mut a, mut b) = joined();
        let (lane, _) = a.usable(&b.key).unwrap();
        if !has_lane {
            a.broken(NOW, lane);
        }
        if attempts {
            hello_of(&mut a, b.key);
        }
        let before = state_of(&a);
        let forged = forged(b.key, a.key, last_bye());
        let challenge = challenged(&a.receive(NOW, &forged.to_bytes()), b.key);
        assert_eq!(b.receive(NOW, &challenge.to_bytes()), []);
        assert_eq!(state_of(&a), before);
        let bye = closing_bye(&mut b, &a);
        let answer = packets(&a.receive(NOW, &bye.to_bytes()))[0].1;
        assert_eq!(answer.body, ControlBody::ByeAck, "the peer's own is good");
        assert!(a.connector.is_idle() && !a.connector.has_peer(&b.key));
    }
}

/// The third party gets its attempt answered, and so knows one of two nonces of it.
#[test]
fn the_end_of_a_forged_attempt_is_not_that_of_our_request() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    hello_of(&mut b, a.key); // its Hello is lost
    let forged_hello = forged(a.key, b.key, hello());
    let [NodeEffect::Connect(lane)] = b.receive(NOW, &forged_hello.to_bytes())[..] else {
        panic!("{b:?}");
    };
    b.connect_lane(NOW, lane);
    challenged(
        &b.receive(NOW, &forged(a.key, b.key, last_bye()).to_bytes()),
        a.key,
    );
    assert!(b.failures.is_empty());
    // The peer itself, which closes, proves where it is.
    a.connect(NOW, b.key);
    let lanes: Vec<_> = a.lanes.keys().copied().collect();
    a.make(NOW, lanes[0]);
    let bye = closing_bye(&mut a, &b);
    let challenge = challenged(&b.receive(NOW, &bye.to_bytes()), a.key);
    let again = packets(&a.receive(NOW, &challenge.to_bytes()))[0].1;
    b.receive(NOW, &again.to_bytes());
    assert_eq!(b.failures, [(a.key, OVER)]);
}

/// A third party at the peer's port may be at the other end of an RC lane.
#[test]
fn data_alone_does_not_prove_another_incarnation() {
    let (mut a, b) = joined();
    let successor = key_of(1, 9);
    let [NodeEffect::Make(lane)] =
        a.receive(NOW, &forged(successor, a.key, hello()).to_bytes())[..]
    else {
        panic!("{a:?}");
    };
    a.make(NOW, lane);
    a.connect_lane(NOW, lane);
    a.heard(NOW, lane);
    assert!(a.usable(&b.key).is_some() && a.downs.is_empty());
}

#[test]
fn the_half_open_of_third_parties_do_not_displace_a_session() {
    let config = HandshakeConfig {
        max_half_open: 1,
        ..HandshakeConfig::default()
    };
    let (mut a, mut b) = (SimNode::new(0, 0, config), node(1, Keys::default()));
    let ready = ready_of(&mut b, &mut a);
    a.receive(NOW, &ready.to_bytes());
    a.receive(NOW, &forged(key_of(5, 0), a.key, hello()).to_bytes());
    let (lane, _) = b.usable(&a.key).unwrap();
    let notice = rejected(&b.broken(NOW, lane), RejectReason::NoSuchLane);
    a.receive(NOW, &notice.to_bytes());
    let hello = hello_of(&mut b, a.key);
    let effects = a.receive(NOW, &hello.to_bytes());
    assert!(matches!(effects[..], [NodeEffect::Make(_)]), "{effects:?}");
}

/// No refusal discloses incarnation or keys to a party that does not know them.
#[test]
fn a_refusal_says_nothing_new() {
    let keys = Keys {
        p_key: 0x8123,
        q_key: Some(0x1234_5678),
    };
    let mut a = node(0, keys);
    let stranger = key_of(7, 0);
    let good = ControlPacket {
        keys,
        ..forged(stranger, a.key, hello())
    };
    let mut stale = good;
    stale.to_incarnation ^= 1;
    let mut locked_out = good;
    locked_out.keys = Keys::default();
    let mut old = good.to_bytes();
    old[4] = 1;
    let asked = [
        (stale.to_bytes(), RejectReason::StaleIncarnation),
        (locked_out.to_bytes(), RejectReason::Keys),
        (old, RejectReason::Version),
    ];
    for (bytes, reason) in asked {
        let reject = rejected(&a.receive(NOW, &bytes), reason);
        let meant = match reason {
            RejectReason::StaleIncarnation => stale.to_incarnation,
            _ => a.key.incarnation,
        };
        assert_eq!(reject.from.incarnation, meant);
        assert_eq!((reject.keys, reject.newest_epoch), (Keys::default(), 0));
        let back = LaneName {
            from_initiator: false,
            ..good.lane
        };
        assert_eq!(reject.lane, back);
    }
}
