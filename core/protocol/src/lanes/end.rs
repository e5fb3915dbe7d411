//! How lanes end, and what each end means to the session.

use ferrofabric_contracts::error::Errno;

use crate::handshake::Reason;

/// How a lane's end came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneEnd {
    /// What its operations end with, if they do.
    pub errno: Errno,
    /// The same in words.
    pub why: &'static str,
    /// What the device said, 0 if nothing.
    pub status: i32,
    /// What becomes of the session.
    pub then: AfterLane,
}

/// What becomes of the session when its lane has ended.
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
    /// It is over, and another one begins: what was under way may be lost, what waits to be sent is
    /// not.
    Restart,
    /// The peer closed it in good order, and had taken so much.
    Closed {
        /// The next number that the peer expected, if it said so.
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
    why: "the connection to the peer broke",
    status: 0,
    then: AfterLane::Resume,
};

/// The peer lives and does not know the session.
pub(super) const LOST_BY_PEER: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    status: 0,
    why: "the peer gave the connection up, and what was under way with it",
    then: AfterLane::Restart,
};

/// A session that moves to another lane.
pub(super) const CHANGE: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "the connection to the peer broke",
    status: 0,
    then: AfterLane::Change,
};

/// A session that rests. It ends with this only if the peer gives lane after lane up and takes
/// nothing.
pub(super) const REST: LaneEnd = LaneEnd {
    errno: Errno::ECONNRESET,
    why: "the peer gives each connection up and takes nothing",
    status: 0,
    then: AfterLane::Rest,
};

/// What a lane's end means to its session.
#[must_use]
pub fn evidence(reason: Reason) -> LaneEnd {
    let (errno, why, then) = match reason {
        Reason::PeerRestarted { .. } => (
            Errno::ECONNRESET,
            "the peer's process was restarted: its address is another one now",
            AfterLane::Fail,
        ),
        Reason::PeerReset => (
            Errno::ECONNRESET,
            "the peer dropped the connection",
            AfterLane::Resume,
        ),
        Reason::PeerClosed { expected } => (
            Errno::ESHUTDOWN,
            "the peer closed its endpoint",
            AfterLane::Closed { expected },
        ),
        Reason::PeerShuttingDown => {
            return evidence(Reason::PeerClosed { expected: None });
        }
        Reason::Version => (
            Errno::EPROTO,
            "the peer speaks another version of the protocol",
            AfterLane::Fail,
        ),
        Reason::Keys => (
            Errno::EKEYREJECTED,
            "the peer's partition key or queue key is another one",
            AfterLane::Fail,
        ),
        Reason::Timeout => (
            Errno::ETIMEDOUT,
            "the peer was silent for longer than peer_timeout",
            AfterLane::Fail,
        ),
        Reason::Broken => return BROKEN,
        Reason::Recycled => return CHANGE,
        Reason::Left => return REST,
        Reason::Unreachable => (
            Errno::EHOSTUNREACH,
            "there is no path to the peer from this port",
            AfterLane::Fail,
        ),
        Reason::Local(errno) => (
            Errno(errno),
            "a queue pair to the peer could not be made",
            AfterLane::Fail,
        ),
        Reason::ShuttingDown => (Errno::ESHUTDOWN, "the endpoint is closing", AfterLane::Fail),
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
