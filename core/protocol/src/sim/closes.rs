//! Closes of lanes: answered, unanswered, and of peers that are silent.

use std::time::Duration;

use super::node::{NodeEffect, SimNode, key_of};
use super::unit::{NOW, node, packets, ready_of};
use crate::handshake::{EndReason, HandshakeConfig};
use crate::wire::control::{Keys, LaneKind};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_close_is_answered_and_both_forget() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    let ready = ready_of(&mut a, &mut b);
    b.receive(NOW, &ready.to_bytes());
    let bye = packets(&b.close(NOW, a.key))[0].1;
    assert!(b.lanes.is_empty() && b.closed.is_empty());
    let bye_ack = packets(&a.receive(NOW, &bye.to_bytes()))[0].1;
    assert_eq!(a.downs, [(b.key, EndReason::PeerClosed { expected: None })]);
    assert!(a.connector.is_idle());
    assert_eq!(
        packets(&a.receive(NOW, &bye.to_bytes()))[0].1,
        bye_ack,
        "a repeat is answered, too"
    );
    b.receive(NOW, &bye_ack.to_bytes());
    assert_eq!(b.closed, [a.key]);
    assert!(b.connector.is_idle());
}

#[test]
fn a_close_ends_with_the_close_timeout() {
    let (mut a, mut b) = (node(0, Keys::default()), node(1, Keys::default()));
    ready_of(&mut a, &mut b);
    a.close(NOW, b.key);
    let end = NOW + HandshakeConfig::default().intervals.close_timeout;
    let mut byes = 0;
    while let Some(next) = a
        .connector
        .next_timeout()
        .filter(|_| !a.connector.is_idle())
    {
        assert!(next <= end);
        byes += packets(&a.timeout(next)).len();
    }
    assert_eq!(a.closed, [b.key]);
    assert!((2..30).contains(&byes), "{byes} repeats");
}

/// A silent peer is given up, and a request ends, at times that mean nothing to a close: it has its
/// own end, and repeats its packet as seldom as ever.
#[test]
fn a_close_outlasts_the_limits_of_a_silent_peer_and_of_a_request() {
    let limit = Some(SECOND / 4);
    let patient = HandshakeConfig::default();
    let strict = HandshakeConfig {
        peer_timeout: limit,
        ..patient
    };
    for (config, wait_limit) in [(patient, limit), (strict, None)] {
        let end = NOW + config.intervals.close_timeout;
        let mut a = SimNode::new(0, 0, config);
        let b = key_of(1, 0);
        let mut out = Vec::new();
        (a.connector).connect(NOW, b, LaneKind::Rc, wait_limit, &mut out);
        let effects = a.perform(out);
        let [NodeEffect::Make(lane)] = effects[..] else {
            panic!("{effects:?}")
        };
        a.make(NOW, lane);
        a.close(NOW, b);
        let mut byes = 0;
        while !a.connector.is_idle() {
            let next = a.connector.next_timeout().unwrap();
            assert!(next <= end);
            byes += packets(&a.timeout(next)).len();
        }
        assert_eq!((&a.closed[..], &a.failures[..]), (&[b][..], &[][..]));
        assert!((2..30).contains(&byes), "{byes} repeats");
    }
}
