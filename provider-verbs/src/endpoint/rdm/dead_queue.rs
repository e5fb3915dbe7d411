//! A completion queue that fails for good: no operation completes any more, and all sessions end.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::lanes::{AfterLane, LaneEnd};

use super::RdmTransport;

/// Nothing completes any more.
const QUEUE_DEAD: LaneEnd = LaneEnd {
    errno: Errno::EIO,
    why: "the device's completion queue failed: close the endpoint and open it again",
    status: 0,
    then: AfterLane::Fail,
};

impl RdmTransport {
    /// The completion queue cannot be polled. If that lasts, no operation completes any more, so
    /// all operations end.
    #[cold]
    pub(super) fn queue_failed<O: Owner>(&mut self, owner: &mut O) -> usize {
        if !self.completions.is_dead() {
            return 0;
        }
        // This runs at each poll: further lanes may have come up since the last one.
        self.end_lanes() + self.end_new_lanes(owner) + self.end_waits(owner)
    }

    fn end_lanes(&mut self) -> usize {
        let datagrams: Vec<_> = (self.ud.lanes.iter_mut())
            .map(|lane| lane.key.session())
            .collect();
        for session in datagrams {
            self.break_lane(session, QUEUE_DEAD);
        }
        let open: Vec<_> = (self.lanes.iter_mut())
            .filter(|lane| !lane.unflushed)
            .map(|lane| lane.key.session())
            .collect();
        for &session in &open {
            self.apply_without_owner(|life, view, now| {
                life.broke_for_good(session, QUEUE_DEAD, view, now)
            });
            if let Some(lane) = self.lanes.of(session) {
                lane.unflushed = true;
            }
            self.list(session);
        }
        open.len()
    }

    /// Ends the lanes on which a session has yet to be resumed, and the session with them.
    fn end_new_lanes<O: Owner>(&mut self, owner: &mut O) -> usize {
        let new = self.lanes_that_resume();
        for (lane, _) in &new {
            self.break_any_lane(lane.session(), QUEUE_DEAD, owner);
        }
        new.len()
    }

    /// Ends the waits without a lane: sessions between two lanes, and sends whose lane was not made
    /// yet.
    fn end_waits<O: Owner>(&mut self, owner: &mut O) -> usize {
        let waiting = self.life.without_lane();
        for &peer in &waiting {
            self.apply(owner, |life, _, now| {
                life.give_up_waiting(peer, QUEUE_DEAD, now)
            });
        }
        waiting.len()
    }
}
