//! Lanes as they come up, break, and are left by their sessions.

use super::end::{LOST_BY_PEER, evidence};
use super::{
    AfterLane, BROKEN, Facts, IdleWatch, LaneEnd, LaneEntry, LaneOrder, LaneStage, OrderEvents,
    Parked, PeerLanes, PeerLink, PendingStep, Resuming, SessionFacts, SessionRecord, Settlement,
};
use crate::Time;
use crate::handshake::{EndReason, LaneKey, LaneUp};
use crate::wire::SessionId;
use crate::wire::control::LaneKind;
use crate::wire::data::Predecessor;

/// Lanes that a session may lose in a row with nothing arriving on them: then something is wrong
/// that no other lane mends.
const MAX_BREAKS: u32 = 8;

/// A session that leaves a lane.
pub(super) struct Leaving {
    pub(super) lane: LaneKey,
    pub(super) peer: u32,
    pub(super) session: SessionRecord,
    /// It is parked at the peer already, and whether it rests there; `None`: it is on the lane.
    pub(super) parked: Option<bool>,
}

impl PeerLanes {
    /// A lane is up: it is the owner's now.
    pub fn lane_up(&mut self, peer: u32, up: &LaneUp, facts: &mut impl Facts, now: Time) {
        let id = up.lane.session();
        let lane = LaneEntry {
            key: up.lane,
            peer,
            kind: up.kind,
            stage: LaneStage::Resuming(Resuming::default()),
            down: None,
            used: (0, 0),
            watch: IdleWatch::default(),
        };
        self.lanes.insert(id, lane);
        if up.resumes {
            return self.begin_resuming(peer, id, facts);
        }
        if let Some(parked) = self.peer(peer).parked.take() {
            self.end_parked(peer, parked, LOST_BY_PEER);
        }
        self.enter(id, SessionRecord::new(), Some(Predecessor::default()), now);
    }

    /// From here on a lane carries a session.
    pub(super) fn enter(
        &mut self,
        id: SessionId,
        session: SessionRecord,
        begins: Option<Predecessor>,
        now: Time,
    ) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        lane.stage = LaneStage::Carries(session);
        let LaneEntry {
            key, peer, kind, ..
        } = *lane;
        match kind {
            LaneKind::Rc => {
                self.policy.took(peer, now);
                let entry = self.peer(peer);
                (entry.falls_back, entry.lost_rc) = (false, false);
            }
            LaneKind::Ud => self.policy.down(peer, now),
        }
        self.peer(peer).link = PeerLink::Up(id);
        self.act(LaneOrder::Enter {
            peer,
            lane: key,
            begins,
        });
    }

    /// The handshake says that a lane is no more. `peer`: its peer, if that is known still.
    pub fn lane_down(&mut self, lane: LaneKey, peer: Option<u32>, reason: EndReason, now: Time) {
        let end = evidence(reason);
        let id = lane.session();
        match self.lanes.get(&id).copied() {
            Some(at) if at.kind == LaneKind::Rc && !matches!(at.stage, LaneStage::Resuming(_)) => {
                self.give_up(id, end, now);
            }
            // Packets that have arrived on it may not be taken yet, and are taken first.
            _ => self.end_when_taken(id, end),
        }
        let Some(peer) = peer else {
            return;
        };
        self.peer(peer).falls_back |= reason == EndReason::Recycled;
        if let AfterLane::Closed { expected } = end.then {
            self.peer_closed(peer, (lane, expected), now);
        }
    }

    fn end_when_taken(&mut self, id: SessionId, end: LaneEnd) {
        if let Some(lane) = self.lanes.get_mut(&id) {
            if lane.down.is_none() {
                lane.down = Some(end);
                let lane = lane.key;
                self.act(LaneOrder::TakeAll { lane });
            }
        }
    }

    /// All was taken that had come when [`LaneOrder::TakeAll`] was returned: the lane may carry a
    /// session by now.
    pub fn taken(&mut self, lane: LaneKey, facts: &mut impl Facts, now: Time) {
        let id = lane.session();
        let Some(at) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(end) = at.down.take() else {
            return;
        };
        match (at.stage, at.kind) {
            (LaneStage::Resuming(_), _) => self.resuming_down(id, end, facts),
            (_, LaneKind::Rc) => self.give_up(id, end, now),
            (_, LaneKind::Ud) => self.datagrams_down(id, end, facts),
        }
    }

    /// As [`OrderEvents::failed`], but all packets that arrived on the lane were taken, unless it
    /// carries a session.
    pub fn broke(&mut self, id: SessionId, end: LaneEnd, facts: &mut impl Facts, now: Time) {
        match self.lanes.get(&id).copied() {
            Some(lane) if matches!(lane.stage, LaneStage::Resuming(_)) => {
                self.act(LaneOrder::ReportBroken { lane: lane.key });
                self.resuming_down(id, end, facts);
            }
            _ => self.orders().failed(id, end, now),
        }
    }

    /// Moves an RC lane to error; once what was posted is flushed the session leaves it.
    pub(super) fn give_up(&mut self, id: SessionId, end: LaneEnd, now: Time) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let LaneStage::Carries(session) = lane.stage else {
            return;
        };
        lane.stage = LaneStage::Ending(session, end);
        let (lane, peer) = (lane.key, lane.peer);
        self.policy.down(peer, now);
        let in_order = end.then.is_in_order();
        self.act(LaneOrder::Fail { lane, in_order });
    }

    /// All that was posted on an RC lane is flushed, and all that came was taken.
    pub fn drained(&mut self, lane: LaneKey, facts: &mut impl Facts) {
        let (session, end, peer) = match self.lanes.get(&lane.session()) {
            Some(&LaneEntry { stage, peer, .. }) => match stage {
                LaneStage::Ending(session, end) => (session, end, peer),
                LaneStage::Carries(session) => (session, BROKEN, peer),
                LaneStage::Resuming(_) => return,
            },
            None => return,
        };
        self.lanes.remove(&lane.session());
        let leaving = Leaving {
            lane,
            peer,
            session: SessionRecord {
                broken_by: end,
                ..session
            },
            parked: None,
        };
        self.leave(leaving, end, facts.carried(lane));
    }

    /// A lane of the UD kind is no more: the session leaves it.
    pub(super) fn datagrams_down(&mut self, id: SessionId, end: LaneEnd, facts: &mut impl Facts) {
        let Some(LaneEntry {
            key, peer, stage, ..
        }) = self.lanes.remove(&id)
        else {
            return;
        };
        let (LaneStage::Carries(session) | LaneStage::Ending(session, _)) = stage else {
            return;
        };
        // The peer may only have moved to an RC lane.
        let then = match end.then {
            AfterLane::Resume => AfterLane::Change,
            then => then,
        };
        let leaving = Leaving {
            lane: key,
            peer,
            session: SessionRecord {
                broken_by: end,
                ..session
            },
            parked: None,
        };
        self.leave(leaving, LaneEnd { then, ..end }, facts.carried(key));
    }

    /// A session leaves its lane: it waits for the next one, or rests, or ends.
    pub(super) fn leave(&mut self, leaving: Leaving, end: LaneEnd, facts: SessionFacts) {
        let Leaving {
            lane,
            peer,
            mut session,
            parked,
        } = leaving;
        let entry = self.peer(peer);
        let id = lane.session();
        // Else another session has begun on another lane, which may be gone by now: neither end
        // continues this one.
        let is_latest = [PeerLink::Up(id), PeerLink::Resuming(id)].contains(&entry.link);
        if is_latest {
            entry.link = PeerLink::Idle;
        }
        let goes_on = matches!(end.then, AfterLane::Resume) || end.then.is_in_order();
        let end = match entry.closed {
            _ if goes_on && !is_latest => LOST_BY_PEER,
            // The peer's close came while the lane was given up for another reason.
            Some(close) if goes_on => evidence(close.reason(lane)),
            _ => end,
        };
        entry.lost_rc = end.then == AfterLane::Resume;
        // A lane that was closed in good order may have had packets for us on their way. So may a
        // lane without any packet that this side has seen. (An unknown source that has only begun a
        // lane is not connected to again.)
        let (goes_on, lost) = match end.then {
            AfterLane::Change => (true, false),
            AfterLane::Resume if facts.is_unused => (true, false),
            // The peer has received everything when it closes the lane, so a peer that requests the
            // same again and again breaks the protocol.
            AfterLane::Rest if facts.is_settled => (true, false),
            AfterLane::Resume | AfterLane::Rest => (session.lane_lost(facts), true),
            _ => (false, false),
        };
        let was_resting = parked == Some(true);
        if !goes_on {
            self.act(LaneOrder::SessionEnded { peer, lane });
            match parked {
                None => self.act(Settlement::EndCarried { peer, lane, end }),
                Some(rests) => {
                    let parked = Parked {
                        session,
                        is_unused: facts.is_unused,
                        rests,
                    };
                    self.end_parked(peer, parked, end);
                }
            }
        } else {
            let rests = was_resting || (end.then == AfterLane::Rest && facts.is_settled);
            let entry = self.peer(peer);
            entry.parked = Some(Parked {
                session,
                is_unused: facts.is_unused,
                rests,
            });
            entry.last_lane = Some(lane);
            if parked.is_none() {
                self.act(LaneOrder::Park { peer, lane });
            }
            if lost {
                self.act(LaneOrder::MoveLess { peer });
            }
            if rests && !was_resting {
                self.act(LaneOrder::LendCredit { peer });
            }
        }
        self.steps.push_back(PendingStep::Next(peer));
    }

    /// Ends a session that is parked, and is not its peer's any more.
    pub(super) fn end_parked(&mut self, peer: u32, mut parked: Parked, end: LaneEnd) {
        let rested = parked.rests;
        self.wake(peer, &mut parked);
        self.act(Settlement::EndParked { peer, end, rested });
    }

    /// A session goes on, or ends: it rests no longer.
    pub(super) fn wake(&mut self, peer: u32, parked: &mut Parked) {
        if std::mem::take(&mut parked.rests) {
            let entry = self.peer(peer);
            entry.returns = entry.returns.saturating_add(u32::from(entry.removed));
            self.act(LaneOrder::ReclaimCredit { peer });
        }
    }

    /// A peer has no lane any more: a newer one may have come up meanwhile.
    pub(super) fn next_lane(&mut self, peer: u32, facts: &mut impl Facts, now: Time) {
        match self.newer_lane(peer) {
            Some(newer) if !matches!(self.at(peer).link, PeerLink::Up(_)) => {
                self.peer(peer).link = PeerLink::Resuming(newer);
                self.resume(newer, facts);
            }
            Some(_) => {}
            None => {
                self.orders().request_lane(peer, facts);
                self.became_idle(peer, now);
            }
        }
    }
}

impl OrderEvents<'_> {
    /// We have evidence that a lane is dead. Packets that arrived on it may not be taken yet. The
    /// peer counts them as received, so they are taken before the session leaves the lane.
    pub fn failed(&mut self, id: SessionId, end: LaneEnd, now: Time) {
        let life = &mut *self.0;
        let Some(lane) = life.lanes.get_mut(&id) else {
            return;
        };
        let (key, kind, stage) = (lane.key, lane.kind, lane.stage);
        let broken = LaneOrder::ReportBroken { lane: key };
        match (stage, kind) {
            (LaneStage::Resuming(_), _) => {
                life.act(broken);
                life.end_when_taken(id, end);
            }
            (LaneStage::Carries(_), LaneKind::Rc) => {
                life.act(broken);
                life.give_up(id, end, now);
            }
            (LaneStage::Carries(session), LaneKind::Ud) => {
                lane.stage = LaneStage::Ending(session, end);
                life.act(broken);
                life.act(LaneOrder::Stop { lane: key });
                life.end_when_taken(id, end);
            }
            (LaneStage::Ending(..), _) => {}
        }
    }

    /// As [`OrderEvents::failed`], but this error ends the session, for any end of its lane.
    pub fn failed_for_good(&mut self, id: SessionId, end: LaneEnd, now: Time) {
        self.failed(id, end, now);
        if let Some(lane) = self.0.lanes.get_mut(&id) {
            if let LaneStage::Ending(session, _) = lane.stage {
                lane.stage = LaneStage::Ending(session, end);
            }
        }
    }
}

impl SessionRecord {
    /// Counts a broken lane. Says whether another one is worth a try.
    fn lane_lost(&mut self, facts: SessionFacts) -> bool {
        let progress = (facts.confirmed, facts.expected, facts.moved);
        if progress != self.progress {
            (self.progress, self.breaks) = (progress, 0);
        }
        self.breaks += 1;
        self.breaks <= MAX_BREAKS
    }
}
