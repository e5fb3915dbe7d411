//! The life of lanes, carried out: [`PeerLanes`] decides which lane carries a session and how it
//! ends. This module carries out its actions on queue pairs, sessions and the service thread.

mod facts;
mod peers;
mod resume;
mod retire;
mod session;

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lanes::{
    LaneAction, LaneEnd, LaneOrder, OrderEvents, PeerLanes, Settlement,
};
use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use super::endings::Ending;
use crate::connect::{LaneCarrier, ToService};

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
    ///
    /// Requests that were held back are posted before, which may be such an event, too. So carrying
    /// out an action never carries out another: the events that it causes only queue theirs. If that
    /// post fails, the lane is broken before this event: callers that end a session for another
    /// reason hold nothing back.
    #[cold]
    pub(super) fn apply<O: Owner, R>(
        &mut self,
        owner: &mut O,
        event: impl FnOnce(&mut PeerLanes, &mut SessionsView<'_>, Time) -> R,
    ) -> R {
        self.post_held_back();
        let result = self.event(event);
        while self.life.has_actions() {
            match self.event(|life, view, now| life.next_action(view, now)) {
                Some(LaneAction::Order(order)) => self.order(order),
                Some(LaneAction::Settle(settlement)) => self.settle(settlement, owner),
                None => break,
            }
        }
        result
    }

    /// As [`RdmTransport::apply`], for an event that ends no operation.
    #[cold]
    pub(super) fn apply_without_owner<R>(
        &mut self,
        event: impl FnOnce(&mut OrderEvents<'_>, &mut SessionsView<'_>, Time) -> R,
    ) -> R {
        self.post_held_back();
        let result = self.event(|life, view, now| event(&mut life.orders(), view, now));
        while self.life.has_actions() {
            match self.event(|life, view, now| life.next_order(view, now)) {
                Some(order) => self.order(order),
                None => break,
            }
        }
        debug_assert!(!self.life.has_actions(), "an action has no owner");
        result
    }

    /// Carries out an action that ends no operation.
    fn order(&mut self, order: LaneOrder) {
        match order {
            LaneOrder::Connect {
                peer,
                kind,
                limited,
            } => {
                let request = ToService::Connect {
                    peer: self.peers.at(peer).key,
                    kind,
                    timeout: self.reconnect_timeout.filter(|_| limited),
                };
                self.service.request(request);
            }
            LaneOrder::Cancel { peer } => {
                let key = self.peers.at(peer).key;
                self.service.request(ToService::Cancel(key));
            }
            LaneOrder::Promote {
                peer,
                lane,
                limited,
            } => {
                let request = ToService::Promote {
                    peer: self.peers.at(peer).key,
                    lane,
                    timeout: self.reconnect_timeout.filter(|_| limited),
                };
                self.service.request(request);
            }
            LaneOrder::ReleasePath { peer } => {
                let key = self.peers.at(peer).key;
                self.service.request(ToService::PathRetired(key));
            }
            LaneOrder::SessionEnded { peer, lane } => {
                let peer = self.peers.at(peer).key;
                self.service.request(ToService::SessionEnded { peer, lane });
            }
            LaneOrder::ReportBroken { lane } => self.service.request(ToService::LaneBroken(lane)),
            LaneOrder::ReportRecycled { lane } => {
                self.poster.counters.lanes.recycled += 1;
                self.service.request(ToService::Recycled(lane));
            }
            LaneOrder::ReportLeft { lane } => {
                self.poster.counters.lanes.left += 1;
                self.service.request(ToService::Left(lane));
            }
            LaneOrder::Idle { peer } => self.peers.list(peer),
            LaneOrder::Fail { lane, in_order } => self.fail_lane(lane.session(), in_order),
            LaneOrder::Stop { lane } => {
                if let Some(lane) = self.lanes.ud(lane.session()) {
                    lane.head.gate.end();
                }
            }
            LaneOrder::TakeAll { lane } => self.ending.push(Ending::Lane(lane)),
            LaneOrder::Release { lane } => self.release(lane),
            LaneOrder::Begin { peer, lane } => self.begin_session(peer, lane.session()),
            LaneOrder::SendResume {
                peer,
                lane,
                again_after,
            } => self.post_resume(peer, lane.session(), again_after),
            LaneOrder::Enter { peer, lane, begins } => self.enter(peer, lane.session(), begins),
            LaneOrder::Park { peer, lane } => self.park(peer, lane.session()),
            LaneOrder::MoveLess { peer } => {
                if let Some(state) = &mut self.peers.at(peer).parked {
                    state.reduce_transfers();
                }
            }
            LaneOrder::LendCredit { peer } => self.lend_credit(peer),
            LaneOrder::ReclaimCredit { peer } => self.reclaim_credit(peer),
        }
    }

    /// Carries out an action that may end operations.
    fn settle<O: Owner>(&mut self, settlement: Settlement, owner: &mut O) {
        match settlement {
            Settlement::Meet {
                peer,
                lane,
                received,
            } => self.meet(peer, lane, received, owner),
            Settlement::EndCarried { peer, lane, end } => {
                if let Some(state) = self.take_off(peer, lane.session()) {
                    self.end_session(peer, state, (end, false), owner);
                }
            }
            Settlement::EndParked { peer, end, rested } => {
                if let Some(state) = self.peers.at(peer).parked.take() {
                    self.end_session(peer, *state, (end, rested), owner);
                }
            }
            Settlement::FailWaiting { peer, end } => {
                self.fail_pending(peer, |_| true, end.errno, end.why, owner);
                self.fail_receives(peer, None, end.errno, end.why, owner);
                owner.peer_gone(self.peers.at(peer).addr);
            }
        }
    }

    /// Releases the queue pair of a lane that never carried a session, once all packets that came
    /// on it were taken.
    fn release(&mut self, lane: LaneKey) {
        let Some(lane) = self.lanes.remove_new(lane.session()) else {
            return;
        };
        self.peers.end_lane(lane.head.peer);
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

    /// Closes a lane, because there is evidence that it is dead. Packets that have arrived on it may
    /// be in the completion queue.
    #[cold]
    pub(super) fn break_lane(&mut self, session: SessionId, end: LaneEnd) {
        self.apply_without_owner(|life, _, now| life.failed(session, end, now));
    }

    /// As [`break_lane`](Self::break_lane), where all packets that have arrived on the lane were
    /// taken, unless it carries a session.
    #[cold]
    pub(super) fn break_emptied_lane<O: Owner>(
        &mut self,
        session: SessionId,
        end: LaneEnd,
        owner: &mut O,
    ) {
        self.apply(owner, |life, view, now| life.broke(session, end, view, now));
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
