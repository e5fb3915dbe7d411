//! The agreement of both ends on the session that continues over a new lane.
//!
//! Each side sends a Resume with the session that it holds and the number that this session expects
//! next. On lanes of datagrams a Resume may get lost, and any lane may end when one side alone has
//! received the other's. That side then begins a session that its peer may never begin, and sends
//! in it. Nothing of that is lost, however many such lanes follow one another:
//!
//! * A side without a session begins the one of the lane before it says anything, and names it.
//! * A session remembers the one that the peer named when it began, its predecessor. A peer that
//!   names the predecessor again has not begun ours.
//! * A Resume names the predecessor, too, and says whether its sender never began that. Where the
//!   predecessor is ours, the peer has not begun ours.
//!
//! Where the peer has not begun ours it took nothing in it, and all goes again in the session of
//! the new lane. A side that has lost its memory of earlier sessions claims nothing about them.

use super::{Origin, Session, SessionError, SessionStart};
use crate::credit::open_requests;
use crate::wire::SessionId;
use crate::wire::data::{Predecessor, Resume};

/// The content of a Resume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumeState {
    /// The session that its sender holds.
    pub held: Resume,
    /// The number that this session expects next.
    pub expected: u32,
}

/// The result for a session once both sides have sent a Resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// It goes on.
    Continues(Replay),
    /// It is the one that begins with the lane: all that was sent in it is sent again, readdressed.
    BeginsAgain,
    /// The peer does not have it: packets under way are lost, and the session of the lane begins,
    /// with this one before it.
    Ends(Predecessor),
}

impl Session {
    /// The session that begins with a lane, where another one ended.
    #[must_use]
    pub fn begin_after(before: Predecessor, origin: Origin, start: &SessionStart) -> Self {
        Session {
            before,
            ..Session::begin(origin, start)
        }
    }

    /// The Resume to send on a lane that does not carry the session yet. The peer may continue
    /// without the session from here on.
    pub fn offer(&mut self) -> ResumeState {
        self.offered = true;
        ResumeState {
            held: self.held(),
            expected: self.expected(),
        }
    }

    /// Which session this is.
    #[must_use]
    pub fn held(&self) -> Resume {
        Resume {
            name: self.name,
            before: self.before,
        }
    }

    /// Whether it was offered on a lane that it has not taken: the number that it expects next may
    /// belong to a session that the peer has left.
    #[must_use]
    pub fn is_offered(&self) -> bool {
        self.offered
    }

    /// Both sides have sent a Resume on a lane. `requests` is the number of rendezvous requests
    /// that the peer was sent and has not taken.
    ///
    /// # Errors
    /// [`SessionError::Confirmation`]; nothing is changed.
    pub fn meet(
        &mut self,
        start: &SessionStart,
        received: ResumeState,
        requests: usize,
    ) -> Result<ResumeOutcome, SessionError> {
        if received.held.name == self.name {
            let replay = self.change_lane(start.remote, received.expected)?;
            self.offered = false;
            return Ok(ResumeOutcome::Continues(replay));
        }
        let before = self.predecessor(received);
        if self.is_unknown_to(received) && self.begin_again(before, start, requests) {
            return Ok(ResumeOutcome::BeginsAgain);
        }
        Ok(ResumeOutcome::Ends(before))
    }

    /// Whether the peer that says this has never begun our session.
    fn is_unknown_to(&self, received: ResumeState) -> bool {
        let still_holds_what_it_held =
            received.held.name != 0 && received.held.name == self.before.name;
        let says_so = received.held.before.never_begun && received.held.before.name == self.name;
        still_holds_what_it_held || says_so
    }

    /// Our record of the peer's session, which is not ours. If it replaced ours it began after
    /// ours, so we have never begun it.
    fn predecessor(&self, received: ResumeState) -> Predecessor {
        let took_our_place = received.held.before.name == self.name;
        let is_the_same = received.held.name == self.before.name;
        Predecessor {
            name: received.held.name,
            never_begun: took_our_place || (is_the_same && self.before.never_begun),
        }
    }

    /// The session moves to a new lane, where the peer names it `remote`. The old one is fenced:
    /// both sides have moved it to error, drained it, and sent each other their
    /// [`Session::expected`]. Returns the numbers to send again, oldest first
    /// (`first.wrapping_add(i)`); the packets go out as they were, with their old numbers,
    /// [readdressed].
    ///
    /// # Errors
    /// [`SessionError::Confirmation`]; nothing is changed.
    ///
    /// [readdressed]: crate::wire::data::readdress
    pub(crate) fn change_lane(
        &mut self,
        remote: SessionId,
        peer_expects: u32,
    ) -> Result<Replay, SessionError> {
        if peer_expects.wrapping_sub(self.confirmed) > self.unconfirmed() {
            return Err(self.bad_confirmation(peer_expects));
        }
        self.remote = remote;
        self.confirmed = peer_expects;
        self.receive_credit.on_lane_change();
        Ok(Replay {
            first: peer_expects,
            count: self.unconfirmed(),
        })
    }

    /// The peer never began this session, and now begins one in its place. All packets are sent
    /// again with their old numbers, since both sides count from the same ones. Returns whether
    /// that is possible. It is not if a packet was confirmed or taken, or if the peer now grants
    /// less than was sent; then nothing is changed.
    fn begin_again(&mut self, before: Predecessor, start: &SessionStart, requests: usize) -> bool {
        let begin = u64::from(self.begin);
        let none_confirmed = self.next.wrapping_sub(begin) == u64::from(self.unconfirmed());
        let none_taken = self.expected == begin;
        if !none_confirmed
            || !none_taken
            || requests > open_requests(start.peer_grants_units)
            || !self.send_credit.change_quota(start.peer_grants_units)
        {
            return false;
        }
        self.name = start.name;
        self.before = before;
        self.remote = start.remote;
        self.offered = false;
        self.receive_credit = self.receive_credit.anew(start.we_grant_units);
        true
    }
}

/// The packets to send again after a lane change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replay {
    /// The oldest number.
    pub first: u32,
    /// How many.
    pub count: u32,
}

impl Replay {
    /// The numbers, oldest first.
    pub fn sequences(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |i| self.first.wrapping_add(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::{SendAdmission, UNIT_BYTES};
    use crate::session::Accept;

    fn start(name: u64, peer_grants_units: u16, we_grant_units: u16) -> SessionStart {
        SessionStart {
            name,
            remote: SessionId(name as u32),
            peer_grants_units,
            we_grant_units,
        }
    }

    #[test]
    fn impossible_lane_changes_are_refused() {
        let origin = Origin {
            sequence: 10,
            ..Origin::default()
        };
        let mut tx = Session::begin(origin, &start(1, 100, 100));
        (0..5).for_each(|_| assert!(tx.stamp().is_some()));
        tx.confirm(12).unwrap();
        let lies = |got| SessionError::Confirmation {
            confirmed: 12,
            next: 15,
            got,
        };
        assert_eq!(tx.change_lane(SessionId(2), 16), Err(lies(16)));
        assert_eq!(tx.change_lane(SessionId(2), 11), Err(lies(11)));
        assert_eq!(tx.confirm(16), Err(lies(16)));
        assert_eq!(
            tx.change_lane(SessionId(2), 13),
            Ok(Replay {
                first: 13,
                count: 2
            })
        );
        assert!(
            tx.receive_credit.is_return_due(),
            "the credit told last may be lost with the lane"
        );
    }

    /// Packets of a session that the peer never began are sent in the next session, for any grant
    /// of it, but no more than it allows. A session of which any packet came through is not begun
    /// again.
    #[test]
    fn a_session_begins_again() {
        let origin = Origin {
            sequence: u32::MAX - 1,
            credit_units: u32::MAX - 2,
        };
        let none = Predecessor::default();
        let begun = || Session::begin(origin, &start(1, 100, 100));
        let mut tx = begun();
        (0..4).for_each(|_| assert!(tx.stamp().is_some()));
        assert_eq!(tx.send_credit.admit(UNIT_BYTES * 9), SendAdmission::Eager);
        assert!(
            !tx.begin_again(none, &start(2, 9, 50), 0),
            "ten units were sent"
        );
        assert_eq!(tx.remote, SessionId(1));
        let many = open_requests(12) + 1;
        assert!(
            !tx.begin_again(none, &start(2, 12, 50), many),
            "more requests than it grants"
        );
        assert!(tx.begin_again(none, &start(2, 12, 50), 0));
        assert_eq!(
            (tx.name(), tx.remote, tx.unconfirmed()),
            (2, SessionId(2), 4)
        );
        assert_eq!(tx.send_credit.available_units(), 2);
        assert_eq!(tx.receive_credit.quota_units(), 50);
        let mut rx = Session::begin(origin, &start(2, 50, 12));
        for sequence in (Replay {
            first: origin.sequence,
            count: 4,
        })
        .sequences()
        {
            assert_eq!(rx.accept(sequence), Accept::Deliver);
        }
        assert_eq!(rx.receive_credit.take(UNIT_BYTES * 9), Ok(()));
        assert_eq!(tx.confirm(rx.expected()), Ok(4));
        rx.receive_credit.release(UNIT_BYTES * 9);
        assert_eq!(tx.send_credit.on_credit(rx.receive_credit.field()), Ok(()));
        assert_eq!(tx.send_credit.available_units(), 12);

        assert!(
            !tx.begin_again(none, &start(4, 100, 100), 0),
            "four came through"
        );
        let mut taken = begun();
        assert_eq!(taken.accept(origin.sequence), Accept::Deliver);
        assert!(
            !taken.begin_again(none, &start(4, 100, 100), 0),
            "one was taken"
        );
    }
}
