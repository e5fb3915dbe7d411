//! Sessions as they enter lanes and leave them.

use std::sync::Arc;

use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneUp;
use ferrofabric_protocol::rendezvous::TransferLimits;
use ferrofabric_protocol::session::Session;
use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::wire::data::Predecessor;

use super::super::RdmTransport;
use super::super::complete::entered;
use super::super::lanes::start;
use super::super::recv::ReceivingQueuePair;
use super::new_lanes::NewLane;
use super::resume::RESUME_NUMBER;
use crate::connect::LaneCarrier;
use crate::origins::{first_request, session_origin};
use crate::qp::RcQp;
use crate::session::{
    LaneSendQueue, LaneTurn, LaneWqe, PacketBuffer, RcLane, SessionState, WqeKind,
};

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
        self.new_lanes.insert(NewLane {
            up,
            carrier,
            peer,
            said: false,
            under_way: false,
            slot: None,
        });
    }

    /// Begins the session of a lane that does not carry it yet.
    pub(super) fn begin_session(&mut self, peer: u32, session: SessionId) {
        if let Some(up) = self.new_lanes.of(session).map(|lane| lane.up) {
            let state = self.new_session(&up, Predecessor::default());
            self.peers.at(peer).parked = Some(Box::new(state));
        }
    }

    /// The lane carries a session from now on: one that begins, after another, or the parked one.
    pub(super) fn enter(&mut self, peer: u32, session: SessionId, begins: Option<Predecessor>) {
        let Some(lane) = self.new_lanes.remove(session) else {
            return;
        };
        let parked = match begins {
            None => self.peers.at(peer).parked.take(),
            Some(_) => None,
        };
        let state = match parked {
            Some(state) => *state,
            None => self.new_session(&lane.up, begins.unwrap_or_default()),
        };
        let NewLane {
            mut up,
            carrier,
            under_way,
            slot,
            ..
        } = lane;
        let resume = under_way.then(|| LaneWqe {
            packet: slot.map_or(PacketBuffer::Nowhere, PacketBuffer::Resume),
            ..entered(RESUME_NUMBER, WqeKind::Control)
        });
        // Both ends have sent a packet on a lane on which a session was to be resumed.
        up.may_send |= up.resumes;
        match carrier {
            LaneCarrier::Rc(qp) => self.enter_lane(peer, &up, (qp, resume), state),
            LaneCarrier::Ud(destination) => self.enter_ud_lane(peer, &up, destination, state),
        }
        self.peers.at(peer).lane = Some(session);
        self.list(session);
        // There may be more bounce buffers now.
        self.list_stalled();
    }

    /// Makes the session that starts with a lane, and names the session at the other end.
    fn new_session(&mut self, up: &LaneUp, before: Predecessor) -> SessionState {
        let numbers = Session::begin_after(before, session_origin(), &start(up));
        self.grants.begin(up.local_quota_units);
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
        SessionState::new(numbers, &start(up), reads, writes, waiting_sends)
    }

    fn enter_lane(
        &mut self,
        peer: u32,
        up: &LaneUp,
        (qp, resume): (Arc<RcQp>, Option<LaneWqe>),
        session: SessionState,
    ) {
        let depth = self.poster.tuning.sends.depth;
        let mut lane = RcLane {
            qp,
            key: up.lane,
            peer,
            session,
            open: false,
            may_send: up.may_send,
            packet_bytes: self.poster.packet_bytes(&up.remote_limits),
            heard: up.resumes,
            queue: LaneSendQueue::new(depth, first_request()),
            is_ending: false,
            unflushed: false,
            refused: false,
            last_receive_due: Time(0),
            turn: LaneTurn::default(),
        };
        if up.resumes {
            lane.queue.begin_behind(RESUME_NUMBER);
        }
        if let Some(resume) = resume {
            lane.queue.enter(resume);
        }
        lane.reconsider();
        self.poster.bounces.lane_begins();
        self.lanes.insert(lane);
        // The look for silent lanes, once a second, allocates nothing.
        self.turns.silent.reserve(self.lanes.places());
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
        match self.lanes.remove(session) {
            Some(lane) => {
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
            None => self.leave_ud_lane(session),
        }
    }
}
