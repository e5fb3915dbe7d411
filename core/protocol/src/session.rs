//! The data side of one session with a peer: sequence numbers and credits.
//!
//! A session outlives its lanes. It numbers what must arrive exactly once; a lane confirms it (an
//! RC completion, or an Ack), and after a lane change both sides say what they expect next, and the
//! rest is sent again. The machine keeps counters only: the owner keeps the messages that are not
//! yet confirmed, in a ring indexed by sequence number. [`SessionStart`] says what a lane brings
//! with it, and `resume` how both sides find out which session goes on over it.

mod resume;

use thiserror::Error;

pub use resume::{Replay, ResumeOutcome, ResumeState};

use super::credit::{ReceiveCredit, SendCredit};
use super::wire::SessionId;
use super::wire::data::{Header, Predecessor};

/// Maximum number of unconfirmed packets in a session: far below half the number space, so that an
/// old number is never mistaken for a new one.
pub const WINDOW: u32 = 1 << 24;

/// The meaning of a sequence number for its packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// It is the next one; it counts as taken now.
    Deliver,
    /// It was taken before: drop it.
    Duplicate,
    /// One before it is missing: drop it too (a lane without order), or the lane is broken (one
    /// that keeps order).
    Gap,
}

/// The session cannot go on, or the request does not fit its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// A confirmation of packets that were never sent, or one that takes back an earlier
    /// confirmation.
    #[error(
        "the peer confirmed packets up to {got}, outside the sent range of {confirmed} to {next}"
    )]
    Confirmation {
        /// The number confirmed before.
        confirmed: u32,
        /// The number of the next packet to send.
        next: u32,
        /// The number that the peer claims to expect next.
        got: u32,
    },
}

/// Parameters of the session that may begin with a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStart {
    /// The lane's name, the same at both ends, and of no other lane: the session takes it.
    pub name: u64,
    /// The name of the session in the headers of packets to the peer.
    pub remote: SessionId,
    /// Quota that the peer grants us ([`super::wire::control::LaneLimits::quota_units`]).
    pub peer_grants_units: u16,
    /// Quota that we grant the peer.
    pub we_grant_units: u16,
}

/// One session.
#[derive(Clone, Debug)]
pub struct Session {
    /// That of its first lane.
    name: u64,
    before: Predecessor,
    /// A Resume has offered it on a lane that it has not taken: the peer may go on without it.
    offered: bool,
    /// The session's name at the peer: goes into every data header.
    pub remote: SessionId,
    /// Credit to send eager messages.
    pub send_credit: SendCredit,
    /// Credit that the peer uses.
    pub receive_credit: ReceiveCredit,
    /// Numbers of the next packet each way, counted without wrap; the wire carries the low half. So
    /// a session with 2³² packets differs from one without any.
    next: u64,
    expected: u64,
    confirmed: u32,
    /// The number that both began with.
    begin: u32,
}

/// Where the counters of a session begin: at 0, but for tests, which begin near where counters go
/// round. Both ends have to begin at the same numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Number of the first packet each way.
    pub sequence: u32,
    /// Credit units that were sent, and released, each way.
    pub credit_units: u32,
}

impl Session {
    /// The session that begins with a lane. Both sides count from the same origin.
    #[must_use]
    pub fn begin(origin: Origin, start: &SessionStart) -> Self {
        let begin = origin.sequence;
        Session {
            name: start.name,
            before: Predecessor::default(),
            offered: false,
            remote: start.remote,
            send_credit: SendCredit::begin_at(origin.credit_units, start.peer_grants_units),
            receive_credit: ReceiveCredit::begin_at(origin.credit_units, start.we_grant_units),
            next: begin.into(),
            confirmed: begin,
            expected: begin.into(),
            begin,
        }
    }

    /// Its name, the same at both ends.
    #[must_use]
    pub fn name(&self) -> u64 {
        self.name
    }

    /// Whether no numbered packet has gone either way.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        let begin = u64::from(self.begin);
        self.next == begin && self.expected == begin
    }

    /// The header of the next numbered packet. It takes the number and carries the credit; `None`
    /// while [`WINDOW`] packets are unconfirmed. Call it when the packet is sure to be posted.
    #[inline]
    pub fn stamp(&mut self) -> Option<Header> {
        if !self.may_stamp() {
            return None;
        }
        let sequence = self.next as u32;
        self.next = self.next.wrapping_add(1);
        Some(Header {
            session: self.remote,
            sequence,
            credit: self.receive_credit.field(),
        })
    }

    /// Whether [`Session::stamp`] has a number to give.
    #[must_use]
    pub fn may_stamp(&self) -> bool {
        self.unconfirmed() < WINDOW
    }

    /// The header of a Credit packet.
    pub fn stamp_credit(&mut self) -> Header {
        Header {
            session: self.remote,
            sequence: self.next as u32,
            credit: self.receive_credit.field(),
        }
    }

    /// The header of an Ack packet.
    pub fn stamp_ack(&mut self) -> Header {
        Header {
            session: self.remote,
            sequence: self.expected as u32,
            credit: self.receive_credit.field(),
        }
    }

    /// Whether a packet of this number is the next one.
    #[inline]
    #[must_use]
    pub fn is_next(&self, sequence: u32) -> bool {
        sequence == self.expected as u32
    }

    /// Judges the number of a packet that arrived.
    #[inline]
    pub fn accept(&mut self, sequence: u32) -> Accept {
        let expected = self.expected as u32;
        if sequence == expected {
            self.expected = self.expected.wrapping_add(1);
            return Accept::Deliver;
        }
        if sequence.wrapping_sub(expected) > u32::MAX / 2 {
            Accept::Duplicate
        } else {
            Accept::Gap
        }
    }

    /// All packets below `expected` have arrived: an Ack says so, or the completion of `expected −
    /// 1` on an RC lane. Returns how many that newly confirms; a confirmation overtaken by a later
    /// one confirms none.
    ///
    /// # Errors
    /// [`SessionError::Confirmation`] for packets that were never sent.
    #[inline]
    pub fn confirm(&mut self, expected: u32) -> Result<u32, SessionError> {
        let newly = expected.wrapping_sub(self.confirmed);
        if newly > self.unconfirmed() {
            if newly > u32::MAX / 2 {
                return Ok(0);
            }
            return Err(self.bad_confirmation(expected));
        }
        self.confirmed = expected;
        Ok(newly)
    }

    /// Numbered packets that no lane has confirmed.
    #[inline]
    #[must_use]
    pub fn unconfirmed(&self) -> u32 {
        (self.next as u32).wrapping_sub(self.confirmed)
    }

    /// Numbered packets sent so far, modulo 2³².
    #[must_use]
    pub fn sent(&self) -> u32 {
        self.next as u32
    }

    /// The number of the oldest packet that no lane has confirmed; that of the next packet if all
    /// are.
    #[must_use]
    pub fn oldest_unconfirmed(&self) -> u32 {
        self.confirmed
    }

    /// The number that the next numbered packet of the peer must have.
    #[must_use]
    pub fn expected(&self) -> u32 {
        self.expected as u32
    }

    #[cold]
    fn bad_confirmation(&self, got: u32) -> SessionError {
        SessionError::Confirmation {
            confirmed: self.confirmed,
            next: self.next as u32,
            got,
        }
    }
}

#[cfg(test)]
impl Session {
    /// A session through which `sequence` packets have gone each way.
    pub(crate) fn at(remote: SessionId, quota_units: u16, sequence: u32) -> Self {
        let origin = Origin {
            sequence,
            ..Origin::default()
        };
        let start = SessionStart {
            name: 1,
            remote,
            peer_grants_units: quota_units,
            we_grant_units: quota_units,
        };
        Session::begin(origin, &start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    fn session_at(sequence: u32) -> Session {
        Session::at(SessionId(1), 100, sequence)
    }

    #[derive(Clone, Debug)]
    enum SessionStep {
        Send,
        Arrive,
        Complete,
        Break,
    }

    fn step() -> impl Strategy<Value = SessionStep> {
        prop_oneof![
            4 => Just(SessionStep::Send),
            4 => Just(SessionStep::Arrive),
            3 => Just(SessionStep::Complete),
            1 => Just(SessionStep::Break),
        ]
    }

    proptest! {
        /// An in-order lane that breaks at any point, losing what is under way: each message is
        /// delivered once, in order.
        #[test]
        fn exactly_once_over_broken_lanes(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 3), any::<u32>()],
            steps in proptest::collection::vec(step(), 0..300),
        ) {
            let (mut tx, mut rx) = (session_at(start), session_at(start));
            let mut kept: VecDeque<(u32, usize)> = VecDeque::new();
            let mut lane: VecDeque<(u32, usize)> = VecDeque::new();
            let mut completions: VecDeque<u32> = VecDeque::new();
            let (mut sent, mut delivered) = (0, Vec::new());
            for step in steps.into_iter().chain([SessionStep::Break]) {
                match step {
                    SessionStep::Send => {
                        let header = tx.stamp().unwrap();
                        kept.push_back((header.sequence, sent));
                        lane.push_back((header.sequence, sent));
                        sent += 1;
                    }
                    SessionStep::Arrive => if let Some((sequence, message)) = lane.pop_front() {
                        assert_eq!(rx.accept(sequence), Accept::Deliver);
                        delivered.push(message);
                        completions.push_back(sequence);
                    },
                    SessionStep::Complete => if let Some(sequence) = completions.pop_front() {
                        let newly = tx.confirm(sequence.wrapping_add(1)).unwrap();
                        kept.drain(..newly as usize);
                    },
                    SessionStep::Break => {
                        lane.clear();
                        completions.clear();
                        let before = tx.unconfirmed();
                        let replay = tx.change_lane(SessionId(2), rx.expected()).unwrap();
                        kept.drain(..(before - replay.count) as usize);
                        prop_assert_eq!(kept.len() as u32, replay.count);
                        let number = |ahead: usize| replay.first.wrapping_add(ahead as u32);
                        prop_assert!(kept.iter().enumerate().all(|(ahead, (sequence, _))| *sequence == number(ahead)));
                        lane.extend(kept.iter());
                    }
                }
                prop_assert_eq!(kept.len() as u32, tx.unconfirmed());
            }
            for (sequence, message) in lane {
                assert_eq!(rx.accept(sequence), Accept::Deliver);
                delivered.push(message);
            }
            prop_assert!(delivered.into_iter().eq(0..sent));
        }

        /// On a lane that loses, repeats and reorders, what is delivered is delivered once and in
        /// order.
        #[test]
        fn repeats_and_gaps_are_distinguished(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
            arrivals in proptest::collection::vec(0..40u32, 0..200),
        ) {
            let mut rx = session_at(start);
            let mut next = 0;
            for arrival in arrivals {
                let expected = match arrival {
                    n if n == next => Accept::Deliver,
                    n if n < next => Accept::Duplicate,
                    _ => Accept::Gap,
                };
                prop_assert_eq!(rx.accept(start.wrapping_add(arrival)), expected);
                next += u32::from(expected == Accept::Deliver);
            }
            prop_assert_eq!(rx.expected(), start.wrapping_add(next));
        }

        /// Hostile confirmations never confirm what was not sent, and never go back.
        #[test]
        fn hostile_confirmations_are_caught(sent in 0..50u32, claims in proptest::collection::vec(any::<u32>(), 0..50)) {
            let mut tx = session_at(0);
            (0..sent).for_each(|_| { tx.stamp().unwrap(); });
            for claim in claims {
                let confirmed = tx.oldest_unconfirmed();
                match tx.confirm(claim % 100) {
                    Ok(newly) => prop_assert_eq!(tx.oldest_unconfirmed(), confirmed + newly),
                    Err(_) => prop_assert!(claim % 100 > sent),
                }
                prop_assert!((confirmed..=sent).contains(&tx.oldest_unconfirmed()));
            }
        }
    }

    /// Numbers that are those of the beginning again, 2³² packets later each way, are not the
    /// beginning.
    #[test]
    fn a_session_that_has_gone_round_is_used() {
        for begin in [0, 7, u32::MAX] {
            let mut session = session_at(begin);
            assert!(session.is_unused());
            session.next += 1 << 32;
            session.expected += 1 << 32;
            session.confirmed = session.sent();
            assert_eq!((session.sent(), session.expected()), (begin, begin));
            assert!(!session.is_unused(), "from {begin}");
            assert_eq!(session.accept(begin), Accept::Deliver);
            assert_eq!(session.stamp().map(|header| header.sequence), Some(begin));
        }
        let mut sender = session_at(0);
        assert!(sender.stamp().is_some() && !sender.is_unused());
        let mut receiver = session_at(0);
        assert_eq!(receiver.accept(0), Accept::Deliver);
        assert!(!receiver.is_unused());
    }

    #[test]
    fn a_full_window_takes_no_more() {
        let mut tx = session_at(0);
        tx.next = WINDOW.into();
        assert_eq!(tx.stamp(), None);
        assert_eq!(tx.confirm(1), Ok(1));
        assert_eq!(tx.stamp().map(|header| header.sequence), Some(WINDOW));
    }
}
