//! Sessions as they enter lanes and leave them.

use std::sync::Arc;

use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneUp;
use ferrofabric_protocol::rendezvous::TransferLimits;
use ferrofabric_protocol::session::{Session, SessionStart};
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::Predecessor;

use super::super::RdmTransport;
use super::super::complete::entered;
use super::super::recv::ReceivingQueuePair;
use super::resume::RESUME_NUMBER;
use crate::connect::LaneCarrier;
use crate::lane::{Lane, LaneSendQueue, LaneTurn, LaneWqe, NewLane, PacketBuffer, RcLane, WqeKind};
use crate::origins::{first_request, session_origin};
use crate::qp::RcQp;
use crate::session::SessionState;

impl RdmTransport {
    /// A lane is up, and does not carry a session yet.
    pub(in super::super) fn begin_lane(&mut self, peer: u32, up: LaneUp, carrier: LaneCarrier) {
        if up.resumes && matches!(carrier, LaneCarrier::Ud(_)) {
            self.ud.deadlines.begin(up.lane.session());
        }
        if let LaneCarrier::Rc(qp) = &carrier {
            let receiving = ReceivingQueuePair::Rc(Arc::downgrade(qp));
            let depth = self.poster.tuning.lane_receives;
            self.receives.open_lane(qp.number(), receiving, depth);
        }
        let lane = NewLane::new(peer, &up, carrier);
        self.lanes.insert(Lane::New(Box::new(lane)));
    }

    /// Begins the session of a lane that does not carry it yet.
    pub(super) fn begin_session(&mut self, peer: u32, session: SessionId) {
        if let Some(start) = self.lanes.without_session(session).map(|lane| lane.start) {
            let state = self.new_session(&start, Predecessor::default());
            self.peers.at(peer).parked = Some(Box::new(state));
        }
    }

    /// The lane carries a session from now on: one that begins, after another, or the parked one.
    pub(super) fn enter(&mut self, peer: u32, session: SessionId, begins: Option<Predecessor>) {
        let Some(lane) = self.lanes.remove_new(session) else {
            return;
        };
        let parked = match begins {
            None => self.peers.at(peer).parked.take(),
            Some(_) => None,
        };
        let state = match parked {
            Some(state) => *state,
            None => self.new_session(&lane.start, begins.unwrap_or_default()),
        };
        let lane = match lane.carrier.clone() {
            LaneCarrier::Rc(qp) => Lane::Rc(Box::new(self.rc_lane(lane, qp, state))),
            LaneCarrier::Ud(to) => Lane::Ud(Box::new(self.ud_lane(lane, to, state))),
        };
        self.lanes.put_back(lane);
        // The look for silent lanes, once a second, allocates nothing.
        self.turns.silent.reserve(self.lanes.places());
        self.peers.at(peer).lane = Some(session);
        self.list(session);
        // There may be more bounce buffers now.
        self.list_stalled();
    }

    /// Makes the session that starts with a lane, and names the session at the other end.
    fn new_session(&mut self, start: &SessionStart, before: Predecessor) -> SessionState {
        let numbers = Session::begin_after(before, session_origin(), start);
        self.grants.begin(start.we_grant_units);
        self.publish_grant();
        let tuning = &self.poster.tuning;
        let reads = TransferLimits {
            chunk_bytes: tuning.rendezvous.read_chunk,
            chunks: u32::from(tuning.rendezvous.reads_per_lane),
            chunks_per_message: tuning.rendezvous.reads_per_message,
            ..TransferLimits::default()
        };
        let writes = TransferLimits {
            chunk_bytes: tuning.rendezvous.write_chunk,
            chunks: tuning.rendezvous.writes_per_lane,
            chunks_per_message: tuning.rendezvous.writes_per_lane,
            ..reads
        };
        let waiting_sends = tuning.waiting_sends;
        SessionState::new(numbers, start, reads, writes, waiting_sends)
    }

    /// The record of a lane from the time when an RC queue pair carries the session.
    fn rc_lane(&mut self, lane: NewLane, qp: Arc<RcQp>, session: SessionState) -> RcLane {
        let depth = self.poster.tuning.sends.depth;
        let mut queue = LaneSendQueue::new(depth, first_request());
        if lane.resumes {
            queue.begin_behind(RESUME_NUMBER);
        }
        if lane.under_way {
            let packet = lane
                .slot
                .map_or(PacketBuffer::Nowhere, PacketBuffer::Resume);
            queue.enter(LaneWqe {
                packet,
                ..entered(RESUME_NUMBER, WqeKind::Control)
            });
        }
        let mut lane = RcLane {
            qp,
            head: lane.head,
            session,
            packet_bytes: self.poster.packet_bytes(&lane.limits),
            queue,
            unflushed: false,
            refused: false,
            last_receive_due: Time(0),
            turn: LaneTurn::default(),
        };
        lane.reconsider();
        self.poster.bounces.lane_begins();
        lane
    }

    /// Takes the session off a lane that has ended, and parks it at its peer.
    pub(super) fn park(&mut self, peer: u32, session: SessionId) {
        if let Some(state) = self.take_off(peer, session) {
            self.peers.at(peer).parked = Some(Box::new(state));
        }
    }

    /// Takes the session off a lane that has ended.
    pub(super) fn take_off(&mut self, peer: u32, session: SessionId) -> Option<SessionState> {
        let at = self.peers.at(peer);
        if at.lane == Some(session) {
            at.lane = None;
        }
        self.lanes.session(session)?;
        match self.lanes.remove(session)? {
            Lane::Rc(lane) => {
                let RcLane {
                    qp,
                    session,
                    unflushed,
                    ..
                } = *lane;
                match unflushed {
                    false => self.retire(qp, None),
                    true => self.end_unflushed(qp),
                }
                self.poster.bounces.lane_ends();
                self.peers.end_lane(peer);
                Some(session)
            }
            Lane::Ud(lane) => {
                self.peers.end_lane(peer);
                Some(self.leave_ud_lane(*lane))
            }
            Lane::New(_) => None,
        }
    }
}
