//! The ends of lanes: their causes, and the effect of each on the session.

use ferrofabric_contracts::error::Errno;

use crate::handshake::EndReason;

/// The cause of a lane's end, and its effect on the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEnd {
    /// Error of the operations that end with the lane.
    pub errno: Errno,
    /// The same in words.
    pub why: &'static str,
    /// Status that the device reported, 0 if none.
    pub status: i32,
    /// The session's next state.
    pub then: AfterLane,
}

/// The next state of a session whose lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterLane {
    /// It goes on over another lane.
    Resume,
    /// So it does, for the lane was given up in good order.
    Change,
    /// It rests: the lane was given up in good order, for there is no more to say. It goes on over
    /// another lane when there is.
    Rest,
    /// It is over: the peer is gone, or broken.
    Fail,
    /// It is over, and another one begins: messages under way may be lost, messages that wait are
    /// not.
    Restart,
    /// The peer closed it in good order, and had taken so much.
    Closed {
        /// The next number that the peer expected, if it gave one.
        expected: Option<u32>,
    },
}

impl AfterLane {
    /// Whether the lane is given up in good order.
    pub(super) fn is_in_order(self) -> bool {
        matches!(self, AfterLane::Change | AfterLane::Rest)
    }
}

/// A lane that broke for no known reason.
pub const BROKEN: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "the lane to the peer broke: check the peer's process and the network",
    status: 0,
    then: AfterLane::Resume,
};

/// The peer lives and does not know the session.
pub(super) const LOST_BY_PEER: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    status: 0,
    why: "the peer gave up the session, and operations under way with it may be lost",
    then: AfterLane::Restart,
};

/// A session that moves to another lane.
pub(super) const CHANGE: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "the lane to the peer broke: check the peer's process and the network",
    status: 0,
    then: AfterLane::Change,
};

/// A session that rests. It ends with this only if the peer gives lane after lane up and takes
/// nothing.
pub(super) const REST: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "the peer closed one lane after the other and took no packet",
    status: 0,
    then: AfterLane::Rest,
};

/// The effect of a lane's end on its session.
#[must_use]
pub fn evidence(reason: EndReason) -> LaneEnd {
    let (errno, why, then) = match reason {
        EndReason::PeerRestarted => (
            Errno::ECONNRESET,
            "the peer's process was restarted and has another address: insert that address",
            AfterLane::Fail,
        ),
        EndReason::PeerReset => (
            Errno::ECONNRESET,
            "the peer dropped the lane",
            AfterLane::Resume,
        ),
        EndReason::PeerClosed { expected } => (
            Errno::ESHUTDOWN,
            "the peer closed its endpoint",
            AfterLane::Closed { expected },
        ),
        EndReason::PeerShuttingDown => {
            return evidence(EndReason::PeerClosed { expected: None });
        }
        EndReason::Version => (
            Errno::EPROTO,
            "the peer speaks another version of the protocol: install one release at both ends",
            AfterLane::Fail,
        ),
        EndReason::Keys => (
            Errno::EKEYREJECTED,
            "the peer's partition key or queue key is another one: set the same keys at both ends",
            AfterLane::Fail,
        ),
        EndReason::Timeout => (
            Errno::ETIMEDOUT,
            "the peer was silent for longer than peer_timeout: check its process, or raise the limit",
            AfterLane::Fail,
        ),
        EndReason::Broken => return BROKEN,
        EndReason::Recycled => return CHANGE,
        EndReason::Left => return REST,
        EndReason::Unreachable => (
            Errno::EHOSTUNREACH,
            "there is no path to the peer from this port: check the network, or use another port",
            AfterLane::Fail,
        ),
        EndReason::Local(errno) => (
            Errno(errno),
            "a queue pair to the peer could not be made: check the limits of the device",
            AfterLane::Fail,
        ),
        EndReason::ShuttingDown => (Errno::ESHUTDOWN, "the endpoint is closing", AfterLane::Fail),
    };
    LaneEnd {
        errno,
        why,
        status: 0,
        then,
    }
}

/// The peer does what the protocol does not allow.
#[must_use]
pub fn protocol_broken(why: &'static str) -> LaneEnd {
    LaneEnd {
        errno: Errno::EPROTO,
        why,
        status: 0,
        then: AfterLane::Fail,
    }
}
