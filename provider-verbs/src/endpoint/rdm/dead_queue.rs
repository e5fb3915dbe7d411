//! A device, or a queue of the endpoint, that fails for good: no operation completes any more, and
//! all sessions end.

use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::peer::Owner;
use ferrofabric_protocol::lanes::LaneEnd;

use super::RdmTransport;
use crate::device::device_queue_failed;

impl RdmTransport {
    /// The completion queue cannot be polled. If that lasts, no operation completes any more.
    #[cold]
    pub(super) fn queue_failed<O: Owner>(&mut self, owner: &mut O) -> usize {
        match (self.completions.end(), self.completions.is_dead()) {
            (Some(end), _) => self.end_all(end, owner),
            (None, true) => {
                self.fail_for_good(device_queue_failed(self.completions.device()), owner)
            }
            (None, false) => 0,
        }
    }

    /// The device, or a queue of the endpoint, has failed for good: ends all operations. Later ones
    /// fail at once.
    #[cold]
    pub(super) fn fail_for_good<O: Owner>(&mut self, why: &'static str, owner: &mut O) -> usize {
        let (end, is_new) = self.completions.fail_for_good(why);
        if is_new {
            tracing::error!("{why}");
            // So that each send looks for its peer, and finds out.
            self.peers.end_routes();
            // Peers would try for ever to connect to an endpoint that answers, and takes no lane.
            self.report_received_counts();
            self.service.begin_close();
        }
        self.end_all(end, owner)
    }

    /// # Errors
    ///
    /// `EIO`: the device, or a queue of the endpoint, has failed.
    #[cold]
    pub(super) fn check_works(&self) -> Result<(), OpError> {
        match self.completions.end() {
            Some(_) => Err(OpError::Failed(Errno::EIO)),
            None => Ok(()),
        }
    }

    /// Ends what has come up since the last call.
    #[cold]
    pub(super) fn end_all<O: Owner>(&mut self, end: LaneEnd, owner: &mut O) -> usize {
        self.end_lanes(end) + self.end_new_lanes(end, owner) + self.end_waits(end, owner)
    }

    fn end_lanes(&mut self, end: LaneEnd) -> usize {
        let datagrams: Vec<_> = (self.lanes.ud_lanes())
            .map(|lane| lane.head.key.session())
            .collect();
        for session in datagrams {
            self.break_lane(session, end);
        }
        let open: Vec<_> = (self.lanes.rc_lanes())
            .filter(|lane| !lane.unflushed)
            .map(|lane| lane.head.key.session())
            .collect();
        for &session in &open {
            self.apply_without_owner(|life, _, now| life.failed_for_good(session, end, now));
            if let Some(lane) = self.lanes.rc(session) {
                lane.unflushed = true;
            }
            self.list(session);
        }
        open.len()
    }

    /// Ends the lanes on which a session has yet to be resumed, and the session with them.
    fn end_new_lanes<O: Owner>(&mut self, end: LaneEnd, owner: &mut O) -> usize {
        let new = self.lanes_that_resume();
        for (lane, _) in &new {
            self.break_emptied_lane(lane.session(), end, owner);
        }
        new.len()
    }

    /// Ends the waits without a lane: sessions between two lanes, and sends whose lane was not made
    /// yet.
    fn end_waits<O: Owner>(&mut self, end: LaneEnd, owner: &mut O) -> usize {
        let waiting = self.life.without_lane();
        for &peer in &waiting {
            self.apply(owner, |life, _, now| life.give_up_waiting(peer, end, now));
        }
        waiting.len()
    }
}
