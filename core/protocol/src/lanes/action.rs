//! Actions that the caller of [`super::PeerLanes`] carries out, and questions that it answers
//! ([`Facts`]).

use std::time::Duration;

use super::LaneEnd;
use crate::handshake::LaneKey;
use crate::session::ResumeState;
use crate::wire::control::LaneKind;
use crate::wire::data::Predecessor;

/// A request of [`super::PeerLanes`] to its caller, which carries requests out in their order.
#[derive(Clone, Copy, Debug)]
pub enum LaneAction {
    /// It ends no operation.
    Order(LaneOrder),
    /// It may end operations.
    Settle(Settlement),
}

impl From<LaneOrder> for LaneAction {
    fn from(order: LaneOrder) -> Self {
        LaneAction::Order(order)
    }
}

impl From<Settlement> for LaneAction {
    fn from(settlement: Settlement) -> Self {
        LaneAction::Settle(settlement)
    }
}

/// An action that ends no operation: it needs nothing but the lanes, the sessions and the
/// handshake.
#[derive(Clone, Copy, Debug)]
pub enum LaneOrder {
    /// Ask the handshake for a lane.
    Connect {
        /// To whom.
        peer: u32,
        /// Of which kind.
        kind: LaneKind,
        /// A session waits: silence of the peer has a limit.
        limited: bool,
    },
    /// Notify the handshake: the lane that was requested is no longer needed.
    Cancel {
        /// The peer.
        peer: u32,
    },
    /// Notify the handshake: the session has left a lane, and needs one of the RC kind.
    Promote {
        /// The peer.
        peer: u32,
        /// The lane that it has left.
        lane: LaneKey,
        /// As in [`LaneOrder::Connect`].
        limited: bool,
    },
    /// Tell the handshake: the path to a removed peer is not needed for it any more.
    ReleasePath {
        /// The peer.
        peer: u32,
    },
    /// Tell the handshake: the session that a lane carried is over.
    SessionEnded {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
    },
    /// Tell the handshake: a lane is dead.
    ReportBroken {
        /// The lane.
        lane: LaneKey,
    },
    /// Notify the handshake: a lane is given up because queue pairs ran out.
    ReportRecycled {
        /// The lane.
        lane: LaneKey,
    },
    /// Notify the peer that an idle lane closes. The queue pair of an RC lane goes after that
    /// packet, and [`super::PeerLanes::lane_down`] follows.
    ReportLeft {
        /// The lane.
        lane: LaneKey,
    },
    /// Move a lane's queue pair to error; when all that was posted is flushed and all that came was
    /// taken, call [`super::PeerLanes::drained`].
    Fail {
        /// The lane.
        lane: LaneKey,
        /// It is given up in good order.
        in_order: bool,
    },
    /// Send nothing more on a lane of the UD kind, and take nothing.
    Stop {
        /// The lane.
        lane: LaneKey,
    },
    /// Take all that has come by now, then call [`super::PeerLanes::taken`].
    TakeAll {
        /// The lane.
        lane: LaneKey,
    },
    /// A lane is no more that never carried the session: release its queue pair once all that came
    /// on it was taken.
    Release {
        /// The lane.
        lane: LaneKey,
    },
    /// Begin the session of a lane, parked at the peer.
    Begin {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
    },
    /// Send a Resume on a lane: the session that is parked at the peer, and the number that it
    /// expects next. If none is parked, send it for the session that the lane would begin.
    SendResume {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
        /// Call [`super::PeerLanes::resume_is_due`] after this time: the Resume may get lost.
        again_after: Option<Duration>,
    },
    /// The lane carries a session from here on: the parked one, or one that begins.
    Enter {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
        /// The session before the one that begins; `None`: the parked one goes on.
        begins: Option<Predecessor>,
    },
    /// Take the session off a lane, which is no more, and park it at its peer.
    Park {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
    },
    /// Move less at a time: a lane broke under the session that is parked.
    MoveLess {
        /// The peer.
        peer: u32,
    },
    /// The parked session rests: lend what it was granted and does not use.
    LendCredit {
        /// The peer.
        peer: u32,
    },
    /// It goes on, or ends: take that back.
    ReclaimCredit {
        /// The peer.
        peer: u32,
    },
    /// A peer has no lane, and none was requested: it may be in use no longer.
    Idle {
        /// The peer.
        peer: u32,
    },
}

/// An action that may end operations: only a caller that can report their ends carries it out.
#[derive(Clone, Copy, Debug)]
pub enum Settlement {
    /// Compare the parked session with the peer's Resume
    /// ([`Session::meet`](crate::session::Session::meet)), and call [`super::PeerLanes::met`].
    Meet {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
        /// The peer's Resume.
        received: ResumeState,
    },
    /// Take the session off a lane, which is no more, and end it with all that hangs on it.
    EndCarried {
        /// The peer.
        peer: u32,
        /// The lane.
        lane: LaneKey,
        /// The cause of the end.
        end: LaneEnd,
    },
    /// End the parked session, and all that hangs on it.
    EndParked {
        /// The peer.
        peer: u32,
        /// The cause of the end.
        end: LaneEnd,
        /// It rested: nothing was under way, and nothing is lost.
        rested: bool,
    },
    /// Fail what waits for a lane.
    FailWaiting {
        /// The peer.
        peer: u32,
        /// The cause of the end.
        end: LaneEnd,
    },
}

/// Requirements on a peer's next lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// The parked session can not go on over datagrams.
    pub by_session: bool,
    /// The first message that waits is a large one.
    pub by_message: bool,
}

/// How a session stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionFacts {
    /// No packet has gone either way.
    pub is_unused: bool,
    /// All packets of either side were taken, and no operation waits for more.
    pub is_settled: bool,
    /// Number of the next packet to send.
    pub sent: u32,
    /// Number of the next packet to take.
    pub expected: u32,
    /// Number of the oldest packet that is not confirmed.
    pub confirmed: u32,
    /// Bytes of large messages moved.
    pub moved: u64,
}

/// Questions to the lanes' owner.
pub trait Facts {
    /// Whether messages wait to be sent to a peer.
    fn waits(&mut self, peer: u32) -> bool;
    /// Requirements on a peer's next lane.
    fn demand(&mut self, peer: u32) -> Demand;
    /// The session on a lane.
    fn carried(&mut self, lane: LaneKey) -> SessionFacts;
    /// The session that is parked at a peer.
    fn parked(&mut self, peer: u32) -> SessionFacts;
    /// Requests posted on an RC lane, and completions taken from it, both counted without reset.
    fn used(&mut self, lane: LaneKey) -> (u32, u32);
    /// Whether nothing is under way on an RC lane that could not go on over datagrams.
    fn is_quiet(&mut self, lane: LaneKey) -> bool;
    /// Whether a lane is usable, and nothing that was posted on it is under way.
    fn is_empty(&mut self, lane: LaneKey) -> bool;
    /// Whether the peer's end of a lane is up.
    fn may_send(&mut self, lane: LaneKey) -> bool;
}
