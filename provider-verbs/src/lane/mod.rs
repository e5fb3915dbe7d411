//! Lanes: what carries the sessions with peers, and the one table of them.
//!
//! A lane has one record, from the time when it is up until its session has left it:
//!
//! ```text
//!             up                 Enter                     the session has left
//!   service ──────► NewLane ───────────────► RcLane, UdLane ──────────────────► no record
//!   thread             │                                                            ▲
//!                      └──────────── it ends without a session ─────────────────────┘
//! ```
//!
//! The record holds each fact about the lane once, but for its names. `PeerLanes` of the protocol crate decides when a
//! record changes, and reads these facts when it needs them.

mod gate;
mod new;
mod probe_turns;
mod rc;
mod records;
mod resume_slots;
mod send_queue;
mod table;
mod turns;
mod ud;
mod wr_id;

use ferrofabric_protocol::handshake::LaneKey;

use crate::session::SessionState;
use gate::SendGate;

pub(crate) use new::NewLane;
pub(crate) use probe_turns::SilentLane;
pub(crate) use rc::RcLane;
pub(crate) use records::PacketRecords;
pub(crate) use resume_slots::ResumeSlots;
pub(crate) use send_queue::{LaneSendQueue, LaneWqe, OneSidedWqe, PacketBuffer, WqeKind};
pub(crate) use table::LaneTable;
pub(crate) use turns::{LaneTurn, TurnQueue};
pub(crate) use ud::{UdLane, UdRoute};
pub(crate) use wr_id::{WrId, datagram_wr_id, is_datagram, receive_wr_id, send_wr_id};

/// The record of a lane.
pub(crate) enum Lane {
    /// It does not carry a session yet.
    New(Box<NewLane>),
    /// An RC queue pair carries the session.
    Rc(Box<RcLane>),
    /// Datagrams carry the session.
    Ud(Box<UdLane>),
}

/// What the record of every lane has.
pub(crate) struct LaneHead {
    pub(crate) key: LaneKey,
    pub(crate) peer: u32,
    /// Whether it may send.
    pub(crate) gate: SendGate,
}

impl LaneHead {
    /// A lane is up; `may_send`: the peer's end is up, too.
    pub(crate) fn new(key: LaneKey, peer: u32, may_send: bool) -> Self {
        Self {
            key,
            peer,
            gate: SendGate::new(may_send),
        }
    }
}

impl Lane {
    pub(crate) fn head(&self) -> &LaneHead {
        match self {
            Lane::New(lane) => &lane.head,
            Lane::Rc(lane) => &lane.head,
            Lane::Ud(lane) => &lane.head,
        }
    }

    /// The peer's end is up. Returns false if that was so before.
    pub(crate) fn peer_came_up(&mut self) -> bool {
        match self {
            Lane::New(lane) => lane.head.gate.peer_came_up(),
            Lane::Rc(lane) => {
                let is_new = lane.head.gate.peer_came_up();
                lane.reconsider();
                is_new
            }
            Lane::Ud(lane) => {
                let is_new = lane.head.gate.peer_came_up();
                // The window of its datagrams says what has to be sent again.
                lane.head.gate.reconsider(false);
                is_new
            }
        }
    }

    /// The session that it carries.
    pub(crate) fn session(&self) -> Option<&SessionState> {
        match self {
            Lane::New(_) => None,
            Lane::Rc(lane) => Some(&lane.session),
            Lane::Ud(lane) => Some(&lane.session),
        }
    }

    /// As [`Lane::session`], to be changed.
    pub(crate) fn session_mut(&mut self) -> Option<&mut SessionState> {
        match self {
            Lane::New(_) => None,
            Lane::Rc(lane) => Some(&mut lane.session),
            Lane::Ud(lane) => Some(&mut lane.session),
        }
    }

    /// Its place among the lanes that have work. A lane without a session has none.
    pub(crate) fn turn(&mut self) -> Option<&mut LaneTurn> {
        match self {
            Lane::New(_) => None,
            Lane::Rc(lane) => Some(&mut lane.turn),
            Lane::Ud(lane) => Some(&mut lane.turn),
        }
    }

    /// Injected messages that are not at the peer, and answers that are not posted.
    pub(crate) fn undelivered(&self) -> usize {
        match self {
            Lane::New(_) => 0,
            Lane::Rc(lane) => lane.undelivered(),
            Lane::Ud(lane) => lane.session.undelivered(),
        }
    }

    /// As [`SessionState::has_part`], in the lane's queue, too.
    pub(crate) fn has_part(&self, parts: &[u64]) -> bool {
        match self {
            Lane::New(_) => false,
            Lane::Rc(lane) => lane.has_part(parts),
            Lane::Ud(lane) => lane.session.has_part(parts),
        }
    }
}
