//! The asynchronous events of the device, as the service thread and the reader of events pass them
//! on.

use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::lanes::BROKEN;

use super::RdmTransport;
use crate::connect::UdDestination;

impl RdmTransport {
    /// The device reported that the queue pair of a lane has failed. A completion with the reason
    /// may be there, so what has completed is taken first.
    #[cold]
    pub(super) fn lane_failed<O: Owner>(&mut self, lane: LaneKey, owner: &mut O) -> usize {
        let done = self.poll_all(owner);
        self.break_any_lane(lane.session(), BROKEN, owner);
        done
    }

    /// The path of a UD lane has another address handle. Datagrams under way keep the old one.
    #[cold]
    pub(super) fn renew_path(&mut self, lane: LaneKey, destination: UdDestination) {
        let session = lane.session();
        if let Some(lane) = self.ud.lanes.of(session) {
            lane.route.destination = destination;
        } else {
            self.new_lanes.renew_path(session, destination);
        }
    }
}
