//! The reads and writes of rendezvous messages: as many as a lane may have under way.

use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use crate::lane::{RcLane, WqeKind};
use crate::post::{SendFlags, SendRequest};

impl RdmTransport {
    /// Posts the reads or writes that `next` gives, as many as a lane may have under way. The
    /// Done follows the last write of a transfer: that write is held back, to be posted together
    /// with the Done. No other request is held back.
    pub(super) fn run_chunks(
        &mut self,
        session: SessionId,
        mut next: impl FnMut(&mut RcLane) -> Option<(SendRequest<1>, WqeKind, Option<Key>)>,
    ) -> usize {
        let mut done = 0;
        // Requests that were held back before go first.
        self.post_held_back();
        loop {
            let Some(lane) = self.lanes.rc(session) else {
                return done;
            };
            if !lane.head.gate.is_usable() || !lane.has_reserved_room() {
                return done;
            }
            if self.poster.is_scarce() && !self.poster.has_share(lane) {
                self.stall(session);
                return done;
            }
            let Some((request, kind, ended)) = next(lane) else {
                return done;
            };
            done += 1;
            let request = request.flags(SendFlags::SIGNALED);
            let posted = (self.poster).post_chunk(lane, &request, kind, ended.is_some());
            if posted.is_err() {
                self.lane_broke(session);
                return done;
            }
            if let Some(transfer) = ended {
                self.queue_done(session, transfer);
                self.post_held_back();
            }
        }
    }
}
