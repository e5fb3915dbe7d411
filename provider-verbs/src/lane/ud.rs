//! A lane of the UD kind: a session over the endpoint's data queue pair, which all such lanes
//! share.

use ferrofabric_protocol::datagram_lane::DatagramLane;
use ferrofabric_protocol::wire::datagram::DatagramPrefix;

use super::{LaneHead, LaneTurn};
use crate::connect::UdDestination;
use crate::session::SessionState;

/// The route of a lane: each of its datagrams is sent with these.
#[derive(Clone)]
pub(crate) struct UdRoute {
    pub(crate) destination: UdDestination,
    /// The peer's data queue pair.
    pub(crate) qpn: u32,
    /// The number that both ends write into each datagram: the low half of the lane's name.
    pub(crate) cookie: u32,
}

/// A lane of the UD kind that is up. The packets that are not confirmed are in the session's
/// `resend_queue`, from the oldest on.
pub(crate) struct UdLane {
    pub(crate) head: LaneHead,
    pub(crate) session: SessionState,
    /// The packets under way, and packets that came too early: for each the receive slot that has
    /// it, and its length in bytes.
    pub(crate) window: DatagramLane<(u32, u32)>,
    pub(crate) route: UdRoute,
    /// The longest data packet that a datagram holds, in bytes.
    pub(crate) packet_bytes: usize,
    /// The session needs an RC lane, as soon as there is room for one.
    pub(crate) outgrown: bool,
    pub(crate) turn: LaneTurn,
}

impl UdLane {
    /// Whether a message may be given a number now.
    pub(crate) fn has_room(&self) -> bool {
        self.head.gate.is_usable() && !self.outgrown && self.window.has_room(&self.session.numbers)
    }

    /// The prefix of a packet that is sent now.
    pub(crate) fn prefix(&mut self, ack_at_once: bool) -> DatagramPrefix {
        DatagramPrefix {
            ack_at_once,
            cookie: self.route.cookie,
            ack: self.window.ack(&self.session.numbers),
            credit: self.session.numbers.receive_credit.count(),
        }
    }
}
