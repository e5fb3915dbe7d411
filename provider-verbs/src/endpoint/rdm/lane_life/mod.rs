//! The life of lanes, carried out: [`PeerLanes`] decides which lane carries a session and how it
//! ends. This module carries out its actions on queue pairs, sessions and the service thread.

mod facts;
mod new_lanes;
mod peers;
mod resume;
mod resume_slots;
mod retire;
mod session;

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lanes::{BROKEN, LaneAction, LaneEnd, PeerLanes};
use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use super::endings::Ending;
use crate::connect::{LaneCarrier, ToService};

pub(super) use new_lanes::NewLanes;
pub(super) use resume_slots::ResumeSlots;

use facts::SessionsView;

impl RdmTransport {
    /// Passes an event to the life of lanes. Its actions remain to be carried out.
    #[cold]
    pub(super) fn event<R>(
        &mut self,
        event: impl FnOnce(&mut PeerLanes, &mut SessionsView<'_>, Time) -> R,
    ) -> R {
        let now = self.ud.now();
        let (life, mut view) = self.view();
        event(life, &mut view, now)
    }

    /// As [`RdmTransport::event`], and carries out the actions.
    #[cold]
    pub(super) fn apply<O: Owner, R>(
        &mut self,
        owner: &mut O,
        event: impl FnOnce(&mut PeerLanes, &mut SessionsView<'_>, Time) -> R,
    ) -> R {
        let result = self.event(event);
        self.carry_out(owner);
        result
    }

    /// As [`RdmTransport::apply`], for an event that ends no operation.
    #[cold]
    pub(super) fn apply_without_owner<R>(
        &mut self,
        event: impl FnOnce(&mut PeerLanes, &mut SessionsView<'_>, Time) -> R,
    ) -> R {
        let result = self.event(event);
        while let Some(action) = self.next_action() {
            let undone = self.order(action);
            self.is_acting = false;
            if let Err(action) = undone {
                debug_assert!(false, "{action:?} has no owner");
                self.life.put_back(action);
                break;
            }
        }
        result
    }

    /// The next action, unless one is being carried out: the actions that it causes come behind it.
    fn next_action(&mut self) -> Option<LaneAction> {
        if self.is_acting || !self.life.has_actions() {
            return None;
        }
        let action = self.event(|life, view, now| life.next_action(view, now));
        self.is_acting = action.is_some();
        action
    }

    /// Carries out all actions.
    #[cold]
    fn carry_out<O: Owner>(&mut self, owner: &mut O) {
        while let Some(action) = self.next_action() {
            if let Err(action) = self.order(action) {
                self.act_for(action, owner);
            }
            self.is_acting = false;
        }
    }

    /// Carries out an action that ends no operation; returns any other action.
    fn order(&mut self, action: LaneAction) -> Result<(), LaneAction> {
        match action {
            LaneAction::Connect {
                peer,
                kind,
                limited,
            } => {
                let request = ToService::Connect {
                    peer: self.peers.at(peer).key,
                    kind,
                    timeout: self.new_lanes.timeout(limited),
                };
                self.service.request(request);
            }
            LaneAction::Cancel { peer } => {
                let key = self.peers.at(peer).key;
                self.service.request(ToService::Cancel(key));
            }
            LaneAction::Promote {
                peer,
                lane,
                limited,
            } => {
                let request = ToService::Promote {
                    peer: self.peers.at(peer).key,
                    lane,
                    timeout: self.new_lanes.timeout(limited),
                };
                self.service.request(request);
            }
            LaneAction::ReleasePath { peer } => {
                let key = self.peers.at(peer).key;
                self.service.request(ToService::PathRetired(key));
            }
            LaneAction::SessionEnded { peer, lane } => {
                let peer = self.peers.at(peer).key;
                self.service.request(ToService::SessionEnded { peer, lane });
            }
            LaneAction::ReportBroken { lane } => self.service.request(ToService::LaneBroken(lane)),
            LaneAction::ReportArrival { lane } => self.service.request(ToService::LaneHeard(lane)),
            LaneAction::ReportRecycled { lane } => {
                self.poster.counters.lanes.recycled += 1;
                self.service.request(ToService::Recycled(lane));
            }
            LaneAction::ReportLeft { lane } => {
                self.poster.counters.lanes.left += 1;
                self.service.request(ToService::Left(lane));
            }
            LaneAction::Idle { peer } => self.peers.list(peer),
            _ => return self.order_lane(action),
        }
        Ok(())
    }

    fn order_lane(&mut self, action: LaneAction) -> Result<(), LaneAction> {
        match action {
            LaneAction::Fail { lane, in_order } => self.fail_lane(lane.session(), in_order),
            LaneAction::Stop { lane } => {
                if let Some(lane) = self.ud.lanes.of(lane.session()) {
                    lane.is_ending = true;
                }
            }
            LaneAction::TakeAll { lane } => self.ending.push(Ending::Lane(lane)),
            LaneAction::Release { lane } => self.release(lane),
            LaneAction::Begin { peer, lane } => self.begin_session(peer, lane.session()),
            LaneAction::SendResume {
                peer,
                lane,
                again_after,
            } => self.post_resume(peer, lane.session(), again_after),
            LaneAction::Enter { peer, lane, begins } => self.enter(peer, lane.session(), begins),
            LaneAction::Park { peer, lane } => self.park(peer, lane.session()),
            LaneAction::MoveLess { peer } => {
                if let Some(state) = &mut self.peers.at(peer).parked {
                    state.reduce_transfers();
                }
            }
            LaneAction::LendCredit { peer } => self.lend_credit(peer),
            LaneAction::ReclaimCredit { peer } => self.reclaim_credit(peer),
            action => return Err(action),
        }
        Ok(())
    }

    /// Carries out an action that may end operations.
    fn act_for<O: Owner>(&mut self, action: LaneAction, owner: &mut O) {
        match action {
            LaneAction::PeerAlive { peer } => self.is_heard(peer, owner),
            LaneAction::Meet {
                peer,
                lane,
                received,
            } => self.meet(peer, lane, received, owner),
            LaneAction::EndCarried { peer, lane, end } => {
                if let Some(state) = self.take_off(peer, lane.session()) {
                    self.end_session(peer, state, (end, false), owner);
                }
            }
            LaneAction::EndParked { peer, end, rested } => {
                if let Some(state) = self.peers.at(peer).parked.take() {
                    self.end_session(peer, *state, (end, rested), owner);
                }
            }
            LaneAction::FailWaiting { peer, end } => {
                self.fail_pending(peer, |_| true, end.errno, end.why, owner);
                self.fail_receives(peer, None, end.errno, end.why, owner);
                owner.peer_gone(self.peers.at(peer).addr);
            }
            action => tracing::error!("{action:?} was not carried out"),
        }
    }

    /// Releases the queue pair of a lane that never carried a session, once all packets that came
    /// on it were taken.
    fn release(&mut self, lane: LaneKey) {
        let Some(lane) = self.new_lanes.remove(lane.session()) else {
            return;
        };
        self.peers.end_lane(lane.peer);
        self.poster.outstanding -= usize::from(lane.under_way);
        if let LaneCarrier::Rc(qp) = lane.carrier {
            self.receives.ends(qp.number());
            if let Err(error) = qp.to_error() {
                tracing::debug!("{error}");
            }
            self.retire(qp, lane.slot);
        }
        self.list_stalled();
    }

    /// Closes a lane that carries a session, because there is evidence that the lane is dead.
    #[cold]
    pub(super) fn break_lane(&mut self, session: SessionId, end: LaneEnd) {
        self.apply_without_owner(|life, view, now| life.broke(session, end, view, now));
    }

    /// Closes a lane, with a session or without, because there is evidence that the lane is dead.
    #[cold]
    pub(super) fn break_any_lane<O: Owner>(
        &mut self,
        session: SessionId,
        end: LaneEnd,
        owner: &mut O,
    ) {
        self.apply(owner, |life, view, now| life.broke(session, end, view, now));
    }

    /// As [`break_any_lane`](Self::break_any_lane), where packets that have arrived on the lane may
    /// be in the completion queue.
    #[cold]
    pub(super) fn fail_any_lane<O: Owner>(&mut self, session: SessionId, owner: &mut O) {
        self.apply(owner, |life, view, now| {
            life.failed(session, BROKEN, view, now)
        });
    }

    /// Requests a lane to a peer, if any operation waits for one.
    #[cold]
    pub(super) fn request_lane(&mut self, peer: u32) {
        self.apply_without_owner(|life, view, _| life.request_lane(peer, view));
    }

    /// Carries out the endings that are due: all earlier completions were taken.
    #[cold]
    pub(super) fn end_taken<O: Owner>(&mut self, owner: &mut O) -> usize {
        let mut done = 0;
        for (_, ending) in self.ending.take_due() {
            let ended = match ending {
                Ending::Lane(lane) => {
                    self.apply(owner, |life, view, now| life.taken(lane, view, now));
                    true
                }
                Ending::QueuePair(retired) => self.end_queue_pair(retired),
                Ending::DataQueuePair(until) => {
                    self.revive_data_queue_pair(until);
                    true
                }
                Ending::DataReceives => {
                    self.open_data_receives();
                    true
                }
                Ending::Search => {
                    self.search_lost_receives();
                    true
                }
            };
            done += usize::from(ended);
        }
        done
    }
}
