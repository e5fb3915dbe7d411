//! Lanes that are asked for, and do not come about.

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::handshake::{LaneKey, Reason};

use super::RdmTransport;
use super::lane_ends::evidence;
use crate::connect::ToService;
use crate::session::{AfterLane, Goodbye, LaneEnd, Link};

impl RdmTransport {
    /// Asks for a lane, if anybody waits for one.
    pub(super) fn reconnect_if_wanted(&mut self, at: u32) {
        let peer = self.peers.at(at);
        let waits = peer.goes_on();
        if peer.link != Link::Idle || (peer.pending.is_empty() && !waits) {
            return;
        }
        peer.link = Link::Connecting;
        self.connect(at);
    }

    /// Asks for a lane, of whatever kind is right by now.
    pub(super) fn connect(&mut self, at: u32) {
        let patience = self.resuming.patience();
        let kind = self.kind_for(at);
        let peer = self.peers.at(at);
        let request = ToService::Connect {
            peer: peer.key,
            kind,
            // Of a peer that we had no quarrel with silence means nothing.
            patience: patience.filter(|_| peer.goes_on()),
        };
        self.service.request(request);
    }

    /// A peer's endpoint has closed, which its goodbye on a lane says, and what it had taken of the
    /// session there. A session on a lane ends with the lane; a session that has left it ends here.
    pub(super) fn peer_closed<O: Owner>(
        &mut self,
        at: u32,
        (lane, expected): (LaneKey, Option<u32>),
        owner: &mut O,
    ) {
        let peer = self.peers.at(at);
        peer.closed = Some(Goodbye {
            lane: Some(lane),
            expected,
        });
        if matches!(peer.link, Link::Up(_) | Link::Resuming(_)) {
            return;
        }
        let expected = expected.filter(|_| peer.last_lane == Some(lane));
        if peer.link == Link::Connecting {
            let request = ToService::Cancel(peer.key);
            self.service.request(request);
        }
        self.connect_failed(at, Reason::PeerClosed { expected }, owner);
    }

    /// A connection did not come about.
    #[cold]
    pub(super) fn connect_failed<O: Owner>(&mut self, at: u32, reason: Reason, owner: &mut O) {
        let mut end = evidence(reason);
        let peer = self.peers.at(at);
        if let AfterLane::Closed { expected } = end.then {
            let lane = None;
            peer.closed.get_or_insert(Goodbye { lane, expected });
        }
        if peer.link == Link::Connecting {
            peer.link = Link::Idle;
        }
        if let (Some(session), Reason::Timeout) = (&peer.parked, reason) {
            (end.errno, end.why, end.status) = session.broken_by;
        }
        self.connection_ended(at, end, owner);
    }

    /// A peer has no lane and will get none: ends its session, and what waits for it.
    pub(super) fn connection_ended<O: Owner>(&mut self, at: u32, end: LaneEnd, owner: &mut O) {
        match self.peers.at(at).parked.take() {
            // Whatever lane carried it last, it is over.
            Some(session) => self.end_session(at, *session, end, owner),
            None => {
                self.fail_pending(at, |_| true, end.errno, end.why, owner);
                self.fail_receives(at, None, end.errno, end.why, owner);
            }
        }
        self.lies_idle(at);
    }
}
