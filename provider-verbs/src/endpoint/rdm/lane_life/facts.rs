//! The facts about sessions, and about the requests that wait for them, that the life of lanes
//! reads.

use ferrofabric_contracts::flags::RECEIVER_LEVELS;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lanes::{Demand, Facts, PeerLanes, SessionFacts};

use super::super::RdmTransport;
use crate::lane::{Lane, LaneTable};
use crate::session::{PeerTable, Pending};

/// The facts that are readable while the life of lanes handles an event.
pub(in super::super) struct SessionsView<'t> {
    lanes: &'t mut LaneTable,
    peers: &'t mut PeerTable,
    eager_bytes: usize,
    /// The longest packet that a datagram holds.
    packet_bytes: usize,
}

impl RdmTransport {
    pub(super) fn view(&mut self) -> (&mut PeerLanes, SessionsView<'_>) {
        let view = SessionsView {
            packet_bytes: self.ud.packet_bytes(),
            eager_bytes: self.poster.tuning.eager_bytes,
            lanes: &mut self.lanes,
            peers: &mut self.peers,
        };
        (&mut self.life, view)
    }
}

impl Facts for SessionsView<'_> {
    fn waits(&mut self, peer: u32) -> bool {
        !self.peers.at(peer).pending.is_empty()
    }

    fn demand(&mut self, peer: u32) -> Demand {
        let peer = self.peers.at(peer);
        let outgrown = |pending: &Pending| {
            pending.len() > self.eager_bytes || pending.op.flags.intersects(RECEIVER_LEVELS)
        };
        Demand {
            by_session: (peer.parked.as_ref()).is_some_and(|s| s.outgrows(self.packet_bytes)),
            by_message: peer.pending.front().is_some_and(outgrown),
        }
    }

    fn carried(&mut self, lane: LaneKey) -> SessionFacts {
        let state = self.lanes.session(lane.session());
        state.map(|state| state.facts()).unwrap_or_default()
    }

    fn parked(&mut self, peer: u32) -> SessionFacts {
        let state = self.peers.at(peer).parked.as_ref();
        state.map(|state| state.facts()).unwrap_or_default()
    }

    fn used(&mut self, lane: LaneKey) -> (u32, u32) {
        let lane = self.lanes.rc(lane.session());
        lane.map_or((0, 0), |lane| {
            (lane.queue.next_number(), lane.session.numbers.expected())
        })
    }

    fn is_quiet(&mut self, lane: LaneKey) -> bool {
        (self.lanes.rc(lane.session())).is_some_and(|lane| lane.is_quiet())
    }

    fn is_empty(&mut self, lane: LaneKey) -> bool {
        match self.lanes.of(lane.session()) {
            Some(Lane::Rc(lane)) => lane.head.gate.is_open() && lane.queue.is_empty(),
            Some(Lane::Ud(lane)) => lane.head.gate.is_usable(),
            Some(Lane::New(_)) | None => false,
        }
    }

    fn may_send(&mut self, lane: LaneKey) -> bool {
        let lane = self.lanes.of(lane.session());
        lane.is_some_and(|lane| lane.head().gate.peer_is_up())
    }
}
