//! Requests for lanes, and requests that fail.

use ferrofabric_contracts::config::LaneChoice;

use super::{
    AfterLane, Demand, Facts, LaneEnd, LaneOrder, OrderEvents, PeerClose, PeerLanes, PeerLink,
    Settlement, evidence,
};
use crate::Time;
use crate::handshake::{EndReason, LaneKey};
use crate::wire::control::LaneKind;

impl OrderEvents<'_> {
    /// Requests a lane to a peer, if anything waits for one.
    pub fn request_lane(&mut self, peer: u32, facts: &mut impl Facts) {
        let life = &mut *self.0;
        let entry = life.at(peer);
        let is_due = match entry.link {
            PeerLink::Idle => true,
            // The application has inserted the peer again.
            PeerLink::Connecting => entry.limited && !life.limits(peer),
            _ => false,
        };
        if !is_due || !(entry.goes_on() || facts.waits(peer)) {
            return;
        }
        life.peer(peer).link = PeerLink::Connecting;
        life.connect(peer, facts.demand(peer));
    }
}

impl PeerLanes {
    /// Requests a lane, of the kind that suits the peer now.
    pub(super) fn connect(&mut self, peer: u32, demand: Demand) {
        let kind = self.kind_for(peer, demand);
        let limited = self.limits(peer);
        self.peer(peer).limited = limited;
        self.act(LaneOrder::Connect {
            peer,
            kind,
            limited,
        });
    }

    /// Whether an attempt to connect has a limit. Without a session that needs the lane, silence of
    /// the peer means nothing, until the application removes the peer. Afterwards a reply to it
    /// holds a region for so long.
    fn limits(&self, peer: u32) -> bool {
        self.at(peer).goes_on() || self.at(peer).removed
    }

    /// The kind of lane that a peer is to have next.
    pub(super) fn kind_for(&self, peer: u32, demand: Demand) -> LaneKind {
        let config = &self.config;
        if !config.datagrams {
            return LaneKind::Rc;
        }
        let peer = self.at(peer);
        let room = !peer.falls_back && self.policy.has_room();
        // Word of a large message goes by datagrams, too, if they are not all too short.
        if demand.by_session || demand.by_message && (room || !config.requests_fit_datagrams) {
            return LaneKind::Rc;
        }
        let rc = match config.choice {
            LaneChoice::Ud => false,
            LaneChoice::Rc => room,
            LaneChoice::Auto => peer.lost_rc && !peer.falls_back,
        };
        match rc {
            true => LaneKind::Rc,
            false => LaneKind::Ud,
        }
    }

    /// A peer's endpoint has closed. Its Bye on a lane carries the number that the peer expected
    /// next in the session there. A session on a lane ends with the lane; a session that has left
    /// it ends here.
    pub(super) fn peer_closed(
        &mut self,
        peer: u32,
        (lane, expected): (LaneKey, Option<u32>),
        now: Time,
    ) {
        let entry = self.peer(peer);
        entry.closed = Some(PeerClose {
            lane: Some(lane),
            expected,
        });
        if matches!(entry.link, PeerLink::Up(_) | PeerLink::Resuming(_)) {
            return;
        }
        let expected = expected.filter(|_| entry.last_lane == Some(lane));
        if entry.link == PeerLink::Connecting {
            self.act(LaneOrder::Cancel { peer });
        }
        self.connect_failed(peer, EndReason::PeerClosed { expected }, now);
    }

    /// The request for a lane failed.
    pub fn connect_failed(&mut self, peer: u32, reason: EndReason, now: Time) {
        let mut end = evidence(reason);
        let entry = self.peer(peer);
        if let AfterLane::Closed { expected } = end.then {
            let lane = None;
            entry.closed.get_or_insert(PeerClose { lane, expected });
        }
        if entry.link == PeerLink::Connecting {
            entry.link = PeerLink::Idle;
        }
        if let (Some(parked), EndReason::Timeout) = (&entry.parked, reason) {
            let then = end.then;
            end = LaneEnd {
                then,
                ..parked.session.broken_by
            };
        }
        self.end_waiting(peer, end, now);
    }

    /// Gives up all messages that wait for a lane to a peer, and the session that rests without
    /// one.
    pub fn give_up_waiting(&mut self, peer: u32, end: LaneEnd, now: Time) {
        let entry = self.peer(peer);
        if entry.link == PeerLink::Connecting {
            entry.link = PeerLink::Idle;
            self.act(LaneOrder::Cancel { peer });
        }
        self.end_waiting(peer, end, now);
    }

    /// A peer has no lane and will get none: ends its session, and all messages that wait for it.
    fn end_waiting(&mut self, peer: u32, end: LaneEnd, now: Time) {
        match self.peer(peer).parked.take() {
            // The lane that carried the session last does not matter: the session is over.
            Some(parked) => self.end_parked(peer, parked, end),
            None => self.act(Settlement::FailWaiting { peer, end }),
        }
        self.became_idle(peer, now);
    }

    /// If a peer has no lane any more and nothing requests one, it frees its place among the peers
    /// with RC lanes, should it have one. If the peer was removed, the path to it is dropped.
    pub(super) fn became_idle(&mut self, peer: u32, now: Time) {
        let entry = self.at(peer);
        if entry.link != PeerLink::Idle {
            return;
        }
        if entry.removed {
            self.act(LaneOrder::ReleasePath { peer });
        }
        self.policy.down(peer, now);
        self.act(LaneOrder::Idle { peer });
    }
}
