//! A completion queue that fails for good: nothing completes any more, and all sessions end.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::Owner;

use super::RdmTransport;
use crate::connect::ToService;
use crate::session::{AfterLane, LaneEnd, Link};

/// Looks at a completion queue that may fail in a row.
const QUEUE_FAILURES: u32 = 64;

/// Nothing completes any more.
const QUEUE_DEAD: LaneEnd = LaneEnd {
    errno: Errno::EIO,
    why: "the device's completion queue failed: the endpoint has to be opened anew",
    status: 0,
    then: AfterLane::Fail,
};

impl RdmTransport {
    /// The completion queue can not be looked at. When that lasts, nothing completes any more: all operations end.
    #[cold]
    pub(super) fn queue_failed<O: Owner>(&mut self, error: OpError, owner: &mut O) -> usize {
        if self.queue_failures == 0 {
            let name = self.cq.context().name();
            tracing::error!("completion queue of {name} failed: {error}");
        }
        self.queue_failures = self.queue_failures.saturating_add(1);
        if !self.queue_is_dead() {
            return 0;
        }
        // At each look: lanes that were on their way may have come up since the last.
        self.end_lanes() + self.end_resumptions(owner) + self.end_waits(owner)
    }

    /// Whether the last poll says how much there was, or none ever will.
    #[inline]
    pub(super) fn has_polled(&self) -> bool {
        self.queue_failures == 0 || self.queue_is_dead()
    }

    /// Whether the completion queue failed for good.
    pub(super) fn queue_is_dead(&self) -> bool {
        self.queue_failures >= QUEUE_FAILURES
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
        let resuming: Vec<_> = self.resuming.keys().copied().collect();
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
