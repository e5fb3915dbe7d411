//! How lanes end, and what each end means to the session.

use ferrofabric_contracts::error::Errno;
use ferrofabric_protocol::handshake::Reason;
use ferrofabric_verbs_sys::ibv_wc_status;

use crate::session::{AfterLane, LaneEnd};

/// A lane that broke for no known reason.
pub(super) const BROKEN: LaneEnd = LaneEnd {
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
pub(super) fn evidence(reason: Reason) -> LaneEnd {
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

/// What a request's failure says about the session.
pub(super) fn what_failed(status: ibv_wc_status) -> LaneEnd {
    let (errno, why, then) = match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => (
            Errno::EHOSTUNREACH,
            "the peer does not acknowledge any more: its process or its network is gone",
            AfterLane::Resume,
        ),
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => (
            Errno::EREMOTEIO,
            "the peer does not let its memory be reached (any more): its process may be gone",
            AfterLane::Resume,
        ),
        // What is wrong on this side is so with the next lane, too.
        ibv_wc_status::IBV_WC_LOC_LEN_ERR
        | ibv_wc_status::IBV_WC_LOC_QP_OP_ERR
        | ibv_wc_status::IBV_WC_LOC_PROT_ERR
        | ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => (BROKEN.errno, BROKEN.why, AfterLane::Fail),
        _ => (BROKEN.errno, BROKEN.why, AfterLane::Resume),
    };
    LaneEnd {
        errno,
        why,
        status: status.0 as i32,
        then,
    }
}

/// The peer does what the protocol does not allow.
pub(super) fn protocol_broken(why: &'static str) -> LaneEnd {
    LaneEnd {
        errno: Errno::EPROTO,
        why,
        status: 0,
        then: AfterLane::Fail,
    }
}
