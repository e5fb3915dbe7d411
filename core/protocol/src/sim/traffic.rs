//! Sessions, credits and rendezvous between two endpoints, over model RC lanes: in order, nothing
//! lost until a lane breaks. Each next event (a packet arrives, a read completes, the application
//! posts, the lane breaks) is drawn at random; every packet is real bytes.

mod end;

use std::time::Duration;

use fastrand::Rng;

use super::network::{SimNetwork, Weather};
use crate::handshake::HandshakeConfig;
use crate::table::Key;
use crate::wire::control::LaneLimits;
use crate::wire::data::Header;
use end::{QueuedRequest, SendCompletion, TrafficEnd};
use proptest::prelude::*;

/// Delivers what end `at` has posted first.
fn deliver(ends: &mut [TrafficEnd; 2], at: usize) {
    match ends[at].wire.pop_front() {
        Some(QueuedRequest::Packet(sequence, bytes)) => {
            ends[1 - at].arrive(&bytes);
            (ends[at].completions).extend(sequence.map(SendCompletion::Packet));
        }
        Some(QueuedRequest::Write { receive, chunk }) => {
            let key = Key::from_bits(receive);
            ends[1 - at].written.get_mut(key).unwrap().take(&chunk);
            (ends[at].completions).push_back(SendCompletion::Chunk(chunk.transfer));
        }
        None => {}
    }
}

/// The lane breaks: the entries of the queues are lost, and the session goes on over a new one.
fn change_lane(ends: &mut [TrafficEnd; 2]) {
    ends.iter_mut().for_each(TrafficEnd::drained);
    let expected = [0, 1].map(|at: usize| ends[at].session.expected());
    let names = [0, 1].map(|at: usize| ends[at].lane.session());
    for at in 0..2 {
        ends[at].resumes(names[1 - at], expected[1 - at]);
    }
}

/// A lane between two endpoints, by a real handshake over a bad network. `rendezvous`: whether the
/// sender writes, and the requests to send that it may have open.
fn lane(quota_units: u16, rendezvous: (bool, usize), seed: u64) -> [TrafficEnd; 2] {
    let limits = LaneLimits {
        quota_units,
        ..LaneLimits::default()
    };
    let weather = Weather {
        loss_ppm: 200_000,
        ..Weather::FAIR
    };
    let mut network = SimNetwork::new(
        2,
        HandshakeConfig {
            limits,
            ..HandshakeConfig::default()
        },
        weather,
        seed,
    );
    network.connect(0, 1);
    network.connect(1, 0);
    assert!(network.run_until(Duration::from_secs(60), SimNetwork::settled));
    let end = |at: usize, to: usize| {
        let (_, lane) = network.nodes[at].usable(&network.key(to)).unwrap();
        TrafficEnd::new(&lane.up.unwrap(), limits, rendezvous)
    };
    [end(0, 1), end(1, 0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Both ends send messages of all sizes while receives come early, late or with buffers too
    /// small, and the lane breaks at any moment. Order holds, no quota is exceeded, nothing waits
    /// for credit, and at the end every message has arrived once, in full or cut to fit.
    #[test]
    fn all_arrives_once_in_order_and_within_the_quota(
        seed in any::<u64>(),
        quota_units in 8u16..200,
        sizes in proptest::collection::vec(
            (prop_oneof![0..64u64, 0..600u64, 0..20_000u64], prop_oneof![4 => Just(u64::MAX), 1 => 0..1000u64]), 1..80),
        eagerness in 0..8u64,
        sender_writes in any::<bool>(),
        requests in prop_oneof![Just(1000usize), 0..6usize],
        breaks in prop_oneof![Just(0u64), 1..30u64],
    ) {
        let mut ends = lane(quota_units, (sender_writes, requests), seed);
        let mut rng = Rng::with_seed(seed);
        let mut to_send = [sizes.clone(), sizes.clone()];
        let mut to_post = [sizes.clone(), sizes.clone()];
        to_send.iter_mut().chain(&mut to_post).for_each(|list| list.reverse());
        let mut breaks_left = breaks;
        loop {
            let at = rng.usize(..2);
            match rng.u64(..9 + eagerness) {
                0 | 1 => if let Some((bytes, _)) = to_send[at].pop() { ends[at].send(bytes) },
                2 | 3 => deliver(&mut ends, at),
                4 | 5 => if !ends[at].reading.is_empty() {
                    let which = rng.usize(..ends[at].reading.len());
                    ends[at].read_completes(which);
                },
                6 | 7 => if let Some(completion) = ends[at].completions.pop_front() {
                    ends[at].completes(&completion);
                },
                _ => if let Some((_, buffer)) = to_post[at].pop() { ends[at].post_receive(buffer) },
            }
            if breaks_left > 0 && rng.u64(..40) == 0 {
                breaks_left -= 1;
                change_lane(&mut ends);
            }
            if to_send.iter().chain(&to_post).all(Vec::is_empty) && ends.iter().all(TrafficEnd::idle) {
                break;
            }
        }
        for end in &mut ends {
            prop_assert!(end.max_held_units <= u32::from(quota_units));
            prop_assert_eq!(end.session.receive_credit.held_units(), 0);
            prop_assert!(end.sends.is_empty() && end.reads.is_empty() && end.unexpected.is_empty());
            prop_assert!(end.envelopes.is_empty() && end.pulls.is_empty());
            prop_assert!(end.writes.is_empty() && end.written.is_empty() && end.kept.is_empty());
            prop_assert_eq!(end.completed_sends, sizes.len());
            end.completed_receives.sort();
            let expected = sizes.iter().enumerate().map(|(n, &(bytes, buffer))| (n as u64, bytes.min(buffer), bytes));
            prop_assert!(end.completed_receives.iter().copied().eq(expected));
            // Everything is consumed: most of the quota is known to be free again.
            let available = end.session.send_credit.available_units();
            prop_assert!(available * 4 > u32::from(quota_units) * 3 - 4, "{} of {}", available, quota_units);
        }
    }
}

/// A receiver that takes nothing: the sender's credit runs dry, the envelopes go on, and the
/// message that the receiver wants last gets through.
#[test]
fn a_full_receiver_is_not_a_deadlock() {
    for sender_writes in [false, true] {
        let mut ends = lane(64, (sender_writes, 1000), 1);
        (0..500).for_each(|_| ends[0].send(8));
        assert_eq!(ends[0].eager, 32, "64 units of quota, 2 units a message");
        assert_eq!(ends[0].sends.len(), 468);
        while !ends[0].wire.is_empty() {
            deliver(&mut ends, 0);
        }
        assert_eq!(ends[1].max_held_units, 64);
        assert_eq!(ends[1].unexpected.len(), 500, "every envelope was taken");
        for _ in 0..500 {
            ends[1].post_receive(8);
            while !ends.iter().all(TrafficEnd::idle) {
                if !ends[1].reading.is_empty() {
                    ends[1].read_completes(0);
                }
                for at in 0..2 {
                    deliver(&mut ends, at);
                    if let Some(completion) = ends[at].completions.pop_front() {
                        ends[at].completes(&completion);
                    }
                }
            }
        }
        let [tx, rx] = &mut ends;
        assert_eq!(
            (rx.completed_receives.len(), tx.completed_sends),
            (500, 500)
        );
        assert_eq!(
            rx.credits_sent, 4,
            "one each quarter of the quota, and only for eager messages"
        );
        tx.send(8);
        assert_eq!(tx.eager, 33, "credit is back");
    }
}

/// A receiver that takes nothing, and a sender whose credit and requests are used up: the envelopes
/// of all messages come, whatever their number.
#[test]
fn a_full_receiver_has_the_envelopes_of_all_messages() {
    let mut ends = lane(64, (false, 10), 1);
    (0..500).for_each(|_| ends[0].send(8));
    assert_eq!((ends[0].eager, ends[0].sends.len()), (32, 10));
    assert_eq!(ends[0].enveloped, 458);
    while !ends[0].wire.is_empty() {
        deliver(&mut ends, 0);
    }
    assert_eq!(
        (ends[1].max_held_units, ends[1].unexpected.len()),
        (64, 500)
    );
}

/// Headers can be written for any session state. The peer's session expects a stamped header.
#[test]
fn a_header_names_the_peers_session() {
    let [mut a, b] = lane(64, (false, 1000), 2);
    let header = a.session.stamp().unwrap();
    assert_eq!(
        header,
        Header {
            session: b.lane.session(),
            sequence: 0,
            credit: 0
        }
    );
}
