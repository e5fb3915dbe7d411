//! Consequences of a failed request for its lane and the session.

use ferrofabric_contracts::error::Errno;
use ferrofabric_protocol::lanes::{AfterLane, BROKEN, LaneEnd};
use ferrofabric_verbs_sys::ibv_wc_status;

/// The consequence of a request's failure for the session.
pub(super) fn lane_end_of(status: ibv_wc_status) -> LaneEnd {
    let (errno, why, then) = match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => (
            Errno::EHOSTUNREACH,
            "the peer does not acknowledge any more: its process or its network is gone",
            AfterLane::Resume,
        ),
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => (
            Errno::EREMOTEIO,
            "the peer denies access to its memory: its process may be gone",
            AfterLane::Resume,
        ),
        // A fault on this side would recur on the next lane.
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
