//! A completion queue that fails for good: nothing completes any more, and all sessions end.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Owner;

use super::RdmTransport;
use crate::connect::ToService;
use crate::session::{AfterLane, LaneEnd, Link};

/// Nothing completes any more.
const QUEUE_DEAD: LaneEnd = LaneEnd {
    errno: Errno::EIO,
    why: "the device's completion queue failed: the endpoint has to be opened anew",
    status: 0,
    then: AfterLane::Fail,
};

impl RdmTransport {
    /// The completion queue can not be looked at. When that lasts, nothing completes any more: all
    /// operations end.
    #[cold]
    pub(super) fn queue_failed<O: Owner>(&mut self, owner: &mut O) -> usize {
        if !self.completions.is_dead() {
            return 0;
        }
        // At each look: lanes that were on their way may have come up since the last.
        self.end_lanes() + self.end_resumptions(owner) + self.end_waits(owner)
    }

    fn end_lanes(&mut self) -> usize {
        let datagrams: Vec<_> = (self.ud.lanes.iter_mut())
            .map(|lane| lane.key.session())
            .collect();
        for session in datagrams {
            self.ud_lane_broke(session, QUEUE_DEAD);
        }
        let open: Vec<_> = (self.lanes.iter_mut())
            .filter(|lane| !lane.unflushed)
            .map(|lane| lane.key.session())
            .collect();
        for &session in &open {
            self.break_lane(session, QUEUE_DEAD);
            if let Some(lane) = self.lanes.of(session) {
                lane.end = Some(QUEUE_DEAD);
                lane.unflushed = true;
            }
            self.list(session);
        }
        open.len()
    }

    /// Ends the lanes on which a session has yet to be taken up, and the session with them.
    fn end_resumptions<O: Owner>(&mut self, owner: &mut O) -> usize {
        let resuming: Vec<_> = self
            .resuming
            .iter()
            .map(|lane| lane.up.lane.session())
            .collect();
        for &session in &resuming {
            self.give_up_resuming(session, QUEUE_DEAD, owner);
        }
        resuming.len()
    }

    /// Ends what has no lane: sessions between two of them, and sends for which there was none yet.
    fn end_waits<O: Owner>(&mut self, owner: &mut O) -> usize {
        let waiting = self.peers.without_lane();
        for &at in &waiting {
            let peer = self.peers.at(at);
            if peer.link == Link::Connecting {
                peer.link = Link::Idle;
                self.service.request(ToService::Cancel(peer.key));
            }
            self.connection_ended(at, QUEUE_DEAD, owner);
        }
        waiting.len()
    }
}
