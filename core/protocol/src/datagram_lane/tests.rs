//! One lane at a time: recovery step by step, and hostile or broken peers.
//! `protocol::sim::datagrams` has two ends and a network.

use super::*;
use crate::Time;
use crate::session::{Session, SessionError};
use crate::wire::SessionId;
use crate::wire::datagram::{Ack, SPAN};
use proptest::prelude::*;

const US: Duration = Duration::from_micros(1);

/// A lane whose session has stamped `count` packets from `start` on.
struct TestSender {
    shared: SharedLaneState,
    session: Session,
    lane: DatagramLane<u32>,
    now: Time,
}

impl TestSender {
    fn new(start: u32, count: u32) -> Self {
        let shared = SharedLaneState::default();
        let mut session = Session::at(SessionId(1), 100, start);
        (0..count).for_each(|_| assert!(session.stamp().is_some()));
        let session_then = Session::at(SessionId(1), 100, start);
        TestSender {
            lane: DatagramLane::new(&shared, &session_then, 1),
            shared,
            session,
            now: Time(1_000_000),
        }
    }

    /// The numbers that go out now.
    fn flush(&mut self) -> Vec<u32> {
        let mut numbers = Vec::new();
        while let Some(packet) = self
            .lane
            .next_packet(&mut self.shared, &self.session, self.now)
        {
            numbers.push(packet.sequence);
        }
        self.lane.assert_counts(&self.session);
        numbers
    }

    fn ack(&mut self, expected: u32, held: u64) -> Result<u32, SessionError> {
        let ack = Ack { expected, held };
        let confirmed = self
            .lane
            .on_ack(&mut self.shared, &mut self.session, ack, self.now);
        self.lane.assert_counts(&self.session);
        confirmed
    }

    fn wait(&mut self, span: Duration) {
        self.now = self.now + span;
    }

    /// Lets time pass until the lane's deadline.
    fn until_deadline(&mut self) -> bool {
        self.now = self.now.max(self.lane.deadline().expect("a deadline"));
        self.lane.on_deadline(&self.shared, &self.session, self.now)
    }
}

#[test]
fn a_full_window_requests_an_ack() {
    let mut tx = TestSender::new(0, 20);
    let mut ack_at_once = Vec::new();
    while let Some(packet) = tx.lane.next_packet(&mut tx.shared, &tx.session, tx.now) {
        ack_at_once.push(packet.ack_at_once);
    }
    assert_eq!(
        ack_at_once,
        [false, false, false, false, false, false, false, true]
    );
    assert!(!tx.lane.has_room(&tx.session));
    tx.wait(10 * US);
    assert_eq!(tx.ack(8, 0), Ok(8));
    assert_eq!(tx.flush(), (8..20).collect::<Vec<_>>(), "twice as many");
    assert!(tx.lane.has_room(&tx.session));
}

/// One packet of a burst is lost: those behind it show it, and it goes out again before any
/// timeout.
#[test]
fn a_lost_packet_is_shown_by_three_others() {
    for lost in 0..5u32 {
        let mut tx = TestSender::new(u32::MAX - 1, 8);
        let first = tx.session.oldest_unconfirmed();
        assert_eq!(tx.flush().len(), 8);
        tx.wait(10 * US);
        tx.ack(first.wrapping_add(lost), 0).unwrap();
        tx.wait(5 * US); // within the usual round trip of the earlier packets
        for count_arrival in 1..=7 - lost {
            tx.ack(first.wrapping_add(lost), (1 << count_arrival) - 1)
                .unwrap();
        }
        while tx.flush().is_empty() {
            let before = tx.now;
            tx.until_deadline();
            assert!(tx.now - before < 20 * US, "it waited for a timeout");
        }
        let counters = tx.shared.counters;
        assert_eq!((counters.repeated, counters.probes), (1, 0));
        assert!(tx.lane.window() < 8);
        tx.wait(20 * US);
        assert_eq!(tx.ack(first.wrapping_add(8), 0), Ok(8 - lost));
        assert_eq!((tx.lane.deadline(), tx.shared.counters.needless), (None, 0));
    }
}

/// A packet that was only late raises the lane's time limit, and restores the window.
#[test]
fn a_packet_that_was_only_late_is_forgiven() {
    let mut tx = TestSender::new(0, 8);
    tx.flush();
    tx.wait(10 * US);
    tx.ack(0, 0b111_1111).unwrap();
    let window = tx.lane.window();
    while tx.lane.window() == window {
        tx.until_deadline(); // taken for lost, not yet sent again
    }
    assert_eq!(tx.lane.window(), window / 2);
    tx.wait(US);
    assert_eq!(tx.ack(8, 0), Ok(8));
    assert_eq!(tx.shared.counters.needless, 1);
    assert!(tx.lane.window() >= window);
    assert!(tx.flush().is_empty());
}

#[test]
fn silence_sends_one_packet_at_a_time_and_more_rarely() {
    let mut tx = TestSender::new(0, 100);
    assert_eq!(tx.flush().len(), 8);
    let mut waits = Vec::new();
    let mut suspected = None;
    for probe in 0..12 {
        let before = tx.now;
        if tx.until_deadline() && suspected.is_none() {
            suspected = Some(probe);
        }
        waits.push(tx.now - before);
        assert_eq!(tx.flush(), [0]);
    }
    assert_eq!(suspected, Some(4), "after four in vain");
    assert!(
        waits[0] < 21 * 1000 * US && waits[5] > 4 * waits[2],
        "{waits:?}"
    );
    assert!(waits[11] <= tx.shared.config.max_interval * 5 / 4);
    assert_eq!(tx.lane.window(), 2);
    // A single answer to the probe restarts the lane: packets that the answer does not name are
    // lost.
    tx.wait(10 * US);
    tx.ack(1, 0).unwrap();
    assert_eq!(tx.flush(), [1, 2, 3]);
}

/// A peer that had said that it holds packets, and drops them: they are sent again all the same.
#[test]
fn what_the_peer_gives_up_is_sent_again() {
    let mut tx = TestSender::new(0, 8);
    tx.flush();
    tx.wait(10 * US);
    tx.ack(0, 0b111_1111).unwrap();
    tx.until_deadline();
    assert_eq!(tx.flush(), [0]);
    tx.wait(10 * US);
    tx.ack(1, 0).unwrap(); // and nothing held any more
    let mut again = Vec::new();
    while tx.session.unconfirmed() != 0 {
        tx.until_deadline();
        again.extend(tx.flush());
        tx.wait(US);
        let next = again.last().map_or(1, |last| last + 1);
        tx.ack(next, 0).unwrap();
    }
    assert_eq!(again, [1, 2, 3, 4, 5, 6, 7]);
    let probes = tx.shared.counters.probes;
    assert_eq!(probes, 1, "and all the rest with it");
    assert_eq!(tx.session.unconfirmed(), 0);
}

#[test]
fn what_was_not_posted_comes_again() {
    let mut tx = TestSender::new(0, 3);
    let packet = |tx: &mut TestSender| tx.lane.next_packet(&mut tx.shared, &tx.session, tx.now);
    let first = packet(&mut tx).unwrap();
    tx.lane.not_sent(&mut tx.shared, first);
    assert_eq!(tx.shared.counters.sent, 0);
    assert_eq!(packet(&mut tx), Some(first));
    assert_eq!(tx.flush(), [1, 2]);
    tx.until_deadline();
    let probe = packet(&mut tx).unwrap();
    assert_eq!((probe.sequence, probe.repeat), (0, true));
    tx.lane.not_sent(&mut tx.shared, probe);
    assert_eq!(tx.flush(), [0]);
}

#[test]
fn an_ack_of_packets_never_sent_changes_nothing() {
    let mut tx = TestSender::new(u32::MAX, 4);
    tx.flush();
    for (expected, held) in [(4, 0), (u32::MAX, 0b1000), (2, 0b1), (1 << 30, 1 << 62)] {
        assert!(
            matches!(
                tx.ack(expected, held),
                Err(SessionError::Confirmation { .. })
            ),
            "{expected} {held:b}"
        );
    }
    assert_eq!(tx.session.unconfirmed(), 4);
    assert_eq!(tx.ack(u32::MAX - 5, 0b1010), Ok(0), "old ones may come");
    assert_eq!(tx.ack(3, 0), Ok(4));
}

#[test]
fn acks_are_delayed_unless_requested() {
    let mut shared = SharedLaneState::default();
    let mut session = Session::at(SessionId(1), 100, 0);
    let mut lane = DatagramLane::new(&shared, &session, 1);
    let mut arrive = |lane: &mut DatagramLane<u32>, session: &mut Session, number, ack_at_once| {
        lane.arrive(
            &mut shared,
            session,
            (number, ack_at_once),
            number,
            true,
            Time(0),
        )
    };
    let late = Time(0) + DatagramLaneConfig::default().ack_delay;
    assert_eq!(lane.deadline(), None);
    arrive(&mut lane, &mut session, 0, false);
    assert!(!lane.is_ack_due(Time(0)) && lane.is_ack_due(late));
    assert_eq!(lane.deadline(), Some(late));
    lane.ack(&session); // rides on something
    assert!(!lane.is_ack_due(late) && lane.deadline().is_none());
    arrive(&mut lane, &mut session, 1, true);
    assert!(lane.is_ack_due(Time(0)), "asked");
    lane.ack(&session);
    (2..9).for_each(|number| {
        arrive(&mut lane, &mut session, number, false);
    });
    assert!(!lane.is_ack_due(Time(0)));
    arrive(&mut lane, &mut session, 9, false);
    assert!(lane.is_ack_due(Time(0)), "every eight");
    lane.ack(&session);
    arrive(&mut lane, &mut session, 11, false);
    assert!(lane.is_ack_due(Time(0)), "a gap");
    assert_eq!(
        lane.ack(&session),
        Ack {
            expected: 10,
            held: 1
        }
    );
    arrive(&mut lane, &mut session, 3, false);
    assert!(
        lane.is_ack_due(Time(0)),
        "a repeat: its sender did not know"
    );
}

proptest! {
    /// For any numbers, in any order, with or without room: each packet is delivered once, in
    /// order, and the number of held packets is bounded. At the end all held packets are given
    /// back.
    #[test]
    fn any_numbers_are_judged(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 30)],
        arrivals in proptest::collection::vec(
            (prop_oneof![8 => 0..100u32, 1 => any::<u32>()], any::<bool>(), 0..20u8), 0..400),
    ) {
        let mut shared = SharedLaneState::default();
        let mut session = Session::at(SessionId(1), 100, start);
        let mut lane = DatagramLane::new(&shared, &session, 1);
        let mut delivered = Vec::new();
        let mut held = std::collections::BTreeSet::new();
        for (step, (ahead, may_hold, other)) in arrivals.into_iter().enumerate() {
            let number = start.wrapping_add(ahead);
            let before = session.expected().wrapping_sub(start);
            let (slot, now) = ((step, ahead), Time(step as u64));
            match lane.arrive(&mut shared, &mut session, (number, false), slot, may_hold, now) {
                PacketArrival::Deliver(packet) => delivered.push(packet.1),
                PacketArrival::Hold => {
                    prop_assert!(may_hold && ahead > before && ahead < before + SPAN);
                    prop_assert!(held.insert(slot));
                }
                PacketArrival::Drop(packet) => prop_assert_eq!(packet, slot),
            }
            if other == 0 && session.expected() != start.wrapping_add(100) {
                // Another lane brings the next one.
                delivered.push(session.expected().wrapping_sub(start));
                session.accept(session.expected());
            }
            while let Some(next) = lane.next_held(&mut session) {
                match next {
                    HeldPacket::Deliver(packet) => {
                        prop_assert!(held.remove(&packet));
                        delivered.push(packet.1);
                    }
                    HeldPacket::Drop(packet) => prop_assert!(held.remove(&packet)),
                }
            }
            let ack = lane.ack(&session);
            prop_assert_eq!(ack.expected, session.expected());
            prop_assert_eq!(ack.held.count_ones() as usize, held.len());
            prop_assert_eq!(ack.held >> (SPAN - 1), 0);
        }
        prop_assert!(delivered.iter().copied().eq(0..delivered.len() as u32));
        let released: std::collections::BTreeSet<_> = lane.release(&session).collect();
        prop_assert_eq!(released, held);
        prop_assert_eq!(lane.ack(&session).held, 0);
    }

    /// For any acknowledgements: the lane confirms no packet that was not sent, the counts hold,
    /// and an honest peer that then answers gets the rest.
    #[test]
    fn any_acknowledgements_are_judged(
        start in prop_oneof![Just(0u32), Just(u32::MAX - 10)],
        acks in proptest::collection::vec((0..60u32, any::<u64>(), 0..3u8, 0..3000u64), 0..60),
    ) {
        let mut tx = TestSender::new(start, 40);
        for (ahead, held, kind, wait_us) in acks {
            tx.flush();
            let held = match kind {
                0 => 0,
                1 => held >> 60 << (held & 7),
                _ => held >> 1,
            };
            let before = (tx.session.oldest_unconfirmed(), tx.session.unconfirmed());
            let end = Ack { expected: ahead, held }.end();
            match tx.ack(start.wrapping_add(ahead), held) {
                Ok(newly) => {
                    prop_assert!(end <= 40);
                    prop_assert_eq!(tx.session.unconfirmed(), before.1 - newly);
                }
                Err(_) => {
                    prop_assert!(end > 40);
                    prop_assert_eq!((tx.session.oldest_unconfirmed(), tx.session.unconfirmed()), before);
                }
            }
            tx.wait(Duration::from_micros(wait_us));
            if tx.lane.deadline().is_some_and(|at| at <= tx.now) {
                tx.until_deadline();
            }
        }
        // The peer expects what is not confirmed, takes what comes in order, and drops the rest.
        let mut expected = tx.session.oldest_unconfirmed();
        for _ in 0..2000 {
            if tx.session.unconfirmed() == 0 {
                break;
            }
            for number in tx.flush() {
                expected = expected.wrapping_add(u32::from(number == expected));
            }
            tx.wait(10 * US);
            tx.ack(expected, 0).unwrap();
            if tx.lane.deadline().is_some() {
                tx.until_deadline();
            }
        }
        prop_assert_eq!(tx.session.unconfirmed(), 0);
    }
}
