//! The turns of lanes.

use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;

impl RdmTransport {
    /// A lane has found a shared resource exhausted. It goes on when some of that is back.
    #[cold]
    pub(super) fn stall(&mut self, session: SessionId) {
        match self.lanes.of(session) {
            Some(lane) => self.turns.stall(session, &mut lane.turn),
            None => {
                if let Some(lane) = self.ud.lanes.of(session) {
                    self.turns.stall(session, &mut lane.turn);
                }
            }
        }
    }

    /// A shared resource may be back: the lanes that wait for it get their turn before the lanes
    /// that gave it back, first come first.
    #[cold]
    pub(super) fn list_stalled(&mut self) {
        for session in self.turns.take_stalled().into_iter().rev() {
            match self.lanes.of(session) {
                Some(lane) => self.turns.list_first(session, &mut lane.turn),
                None => {
                    if let Some(lane) = self.ud.lanes.of(session) {
                        self.turns.list_first(session, &mut lane.turn);
                    }
                }
            }
        }
    }

    /// Puts a lane in the list of those with work.
    #[inline]
    pub(super) fn list(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.of(session) {
            return self.turns.list(session, &mut lane.turn);
        }
        self.list_ud_lane(session);
    }

    #[cold]
    pub(super) fn list_ud_lane(&mut self, session: SessionId) {
        if let Some(lane) = self.ud.lanes.of(session) {
            self.turns.list(session, &mut lane.turn);
        }
    }
}
