//! Sessions that go on over another lane.
//!
//! After a side has drained the old lane, it sends a Resume on the new one: the session that it
//! holds, and the number that it expects next. When it has received the peer's Resume, it replays
//! the rest.

use super::carry::Leaving;
use super::end::LOST_BY_PEER;
use super::{
    Facts, LaneEnd, LaneOrder, LaneStage, MAX_RESUME_INTERVAL, Parked, PeerLanes, PeerLink,
    PendingStep, RESUME_INTERVAL, Resuming, SessionFacts, SessionRecord, Settlement,
    protocol_broken,
};
use crate::Time;
use crate::handshake::LaneKey;
use crate::session::{ResumeOutcome, ResumeState, SessionError};
use crate::wire::SessionId;
use crate::wire::control::LaneKind;
use crate::wire::data::Predecessor;

impl PeerLanes {
    /// A lane is up on which an earlier session may go on.
    pub(super) fn begin_resuming(&mut self, peer: u32, id: SessionId, facts: &mut impl Facts) {
        let entry = self.peer(peer);
        // One lane at a time: this one comes after those that are there.
        if !matches!(entry.link, PeerLink::Up(_) | PeerLink::Resuming(_)) {
            entry.link = PeerLink::Resuming(id);
        }
        self.resume(id, facts);
    }

    /// A lane to a peer on which the session is to be resumed.
    pub(super) fn newer_lane(&self, peer: u32) -> Option<SessionId> {
        let mut lanes = self.lanes.iter();
        let newer = lanes
            .find(|(_, lane)| lane.peer == peer && matches!(lane.stage, LaneStage::Resuming(_)));
        newer.map(|(&id, _)| id)
    }

    fn resuming(&mut self, id: SessionId) -> Option<(LaneKey, u32, &mut Resuming)> {
        let lane = self.lanes.get_mut(&id)?;
        match &mut lane.stage {
            LaneStage::Resuming(resuming) => Some((lane.key, lane.peer, resuming)),
            _ => None,
        }
    }

    /// The peer's end of a lane is up, which may not carry its session yet. [`Facts::may_send`] says
    /// so, too, from before this call on.
    pub fn peer_is_up(&mut self, id: SessionId, facts: &mut impl Facts) {
        self.resume(id, facts);
    }

    /// The peer's Resume has arrived on a lane, so [`Facts::may_send`] says that the peer's end is
    /// up, from before this call on. Returns whether the lane waits for the Resume; a repeated one
    /// has no effect.
    pub fn resume_arrived(
        &mut self,
        id: SessionId,
        received: ResumeState,
        facts: &mut impl Facts,
    ) -> bool {
        let Some((_, _, resuming)) = self.resuming(id) else {
            return false;
        };
        if resuming.received.is_some() {
            return false;
        }
        resuming.received = Some(received);
        self.resume(id, facts);
        true
    }

    /// Time to say a Resume again that may be lost.
    pub fn resume_is_due(&mut self, id: SessionId) {
        if self.resuming(id).is_some() {
            self.send_resume(id);
        }
    }

    fn send_resume(&mut self, id: SessionId) {
        let Some((_, peer, resuming)) = self.resuming(id) else {
            return;
        };
        let wait = RESUME_INTERVAL.saturating_mul(1 << resuming.sent_resumes.min(16));
        resuming.sent_resumes += 1;
        if let Some(at) = self.lanes.get(&id) {
            let repeats = at.kind == LaneKind::Ud;
            let lane = at.key;
            self.act(LaneOrder::SendResume {
                peer,
                lane,
                again_after: repeats.then(|| wait.min(MAX_RESUME_INTERVAL)),
            });
        }
    }

    /// Resumes the session, as far as possible: the old lane must be drained, the peer's end up,
    /// and both Resumes received.
    pub(super) fn resume(&mut self, id: SessionId, facts: &mut impl Facts) {
        let Some((lane, peer, &mut resuming)) = self.resuming(id) else {
            return;
        };
        if self.at(peer).link != PeerLink::Resuming(id) || !facts.may_send(lane) {
            return;
        }
        if resuming.sent_resumes == 0 {
            // A side that holds no session holds from here on the one that starts with this lane.
            // The peer begins it as soon as it receives our Resume, so the session is kept even if
            // the lane ends before the peer's Resume arrives.
            if self.at(peer).parked.is_none() {
                self.peer(peer).parked = Some(Parked {
                    session: SessionRecord::new(),
                    is_unused: true,
                    rests: false,
                });
                self.act(LaneOrder::Begin { peer, lane });
            }
            self.send_resume(id);
        }
        // The lane may break while the Resume is sent.
        self.steps.push_back(PendingStep::Meet(id));
    }

    /// If both sides have sent their Resume, has the owner compare the session with the peer's.
    pub(super) fn meet(&mut self, id: SessionId, now: Time) {
        let Some((lane, peer, &mut resuming)) = self.resuming(id) else {
            return;
        };
        let Some(received) = resuming.received else {
            return;
        };
        if self.at(peer).link != PeerLink::Resuming(id) || resuming.sent_resumes == 0 {
            return;
        }
        match self.at(peer).parked {
            None => self.enter(id, SessionRecord::new(), Some(Predecessor::default()), now),
            Some(_) => self.act(Settlement::Meet {
                peer,
                lane,
                received,
            }),
        }
    }

    /// The outcome of [`Settlement::Meet`] for the parked session.
    pub fn met(
        &mut self,
        lane: LaneKey,
        outcome: Result<ResumeOutcome, SessionError>,
        facts: &mut impl Facts,
        now: Time,
    ) {
        let id = lane.session();
        let Some((_, peer, _)) = self.resuming(id) else {
            return;
        };
        let Some(mut parked) = self.peer(peer).parked.take() else {
            return;
        };
        match outcome {
            Ok(ResumeOutcome::Continues(_) | ResumeOutcome::BeginsAgain) => {
                self.wake(peer, &mut parked);
                self.enter(id, parked.session, None, now);
            }
            Ok(ResumeOutcome::Ends(before)) => {
                self.end_parked(peer, parked, LOST_BY_PEER);
                self.enter(id, SessionRecord::new(), Some(before), now);
            }
            Err(_) => {
                self.act(LaneOrder::ReportBroken { lane });
                self.lanes.remove(&id);
                self.act(LaneOrder::Release { lane });
                let end = protocol_broken("the peer confirmed packets that were never sent");
                self.leave_unresumed(lane, peer, parked, (end, facts.parked(peer)));
            }
        }
    }

    /// A lane is no more that never carried the session.
    pub(super) fn resuming_down(&mut self, id: SessionId, end: LaneEnd, facts: &mut impl Facts) {
        let Some((lane, peer, _)) = self.resuming(id) else {
            return;
        };
        self.lanes.remove(&id);
        self.act(LaneOrder::Release { lane });
        let entry = self.peer(peer);
        if entry.link == PeerLink::Resuming(id) {
            if let Some(parked) = entry.parked.take() {
                return self.leave_unresumed(lane, peer, parked, (end, facts.parked(peer)));
            }
            entry.link = PeerLink::Idle;
        }
        self.steps.push_back(PendingStep::Next(peer));
    }

    fn leave_unresumed(
        &mut self,
        lane: LaneKey,
        peer: u32,
        parked: Parked,
        (end, facts): (LaneEnd, SessionFacts),
    ) {
        let leaving = Leaving {
            lane,
            peer,
            session: parked.session,
            parked: Some(parked.rests),
        };
        self.leave(leaving, end, facts);
    }
}
