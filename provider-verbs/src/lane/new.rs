//! A lane that is up and does not carry a session yet.

use ferrofabric_protocol::handshake::LaneUp;
use ferrofabric_protocol::session::SessionStart;
use ferrofabric_protocol::wire::control::LaneLimits;

use super::LaneHead;
use crate::connect::LaneCarrier;

/// A lane that does not carry a session yet.
pub(crate) struct NewLane {
    pub(crate) carrier: LaneCarrier,
    pub(crate) head: LaneHead,
    /// How a session begins that starts with the lane.
    pub(crate) start: SessionStart,
    /// Limits of the peer's end.
    pub(crate) limits: LaneLimits,
    /// The peer's queue pair.
    pub(crate) remote_qpn: u32,
    /// A session from an earlier lane may go on over it.
    pub(crate) resumes: bool,
    /// A Resume was posted.
    pub(crate) said: bool,
    /// The Resume, or a probe behind it, is under way: one request at a time.
    pub(crate) under_way: bool,
    /// Where that Resume lies, unless in the work request.
    pub(crate) slot: Option<u32>,
}

impl NewLane {
    /// The lane of a handshake.
    pub(crate) fn new(peer: u32, up: &LaneUp, carrier: LaneCarrier) -> Self {
        Self {
            carrier,
            head: LaneHead::new(up.lane, peer, up.may_send),
            start: SessionStart {
                name: up.name,
                remote: up.remote_session,
                peer_grants_units: up.remote_limits.quota_units,
                we_grant_units: up.local_quota_units,
            },
            limits: up.remote_limits,
            remote_qpn: up.remote_qpn,
            resumes: up.resumes,
            said: false,
            under_way: false,
            slot: None,
        }
    }
}
