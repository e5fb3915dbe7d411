//! The turns of lanes.

use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use crate::lane::Lane;

impl RdmTransport {
    /// A lane has found a shared resource exhausted. It goes on when some of that is back.
    #[cold]
    pub(super) fn stall(&mut self, session: SessionId) {
        if let Some(turn) = self.lanes.of(session).and_then(Lane::turn) {
            self.turns.stall(session, turn);
        }
    }

    /// A shared resource may be back: the lanes that wait for it get their turn before the lanes
    /// that gave it back, first come first.
    #[cold]
    pub(super) fn list_stalled(&mut self) {
        for session in self.turns.take_stalled().into_iter().rev() {
            if let Some(turn) = self.lanes.of(session).and_then(Lane::turn) {
                self.turns.list_first(session, turn);
            }
        }
    }

    /// Puts a lane in the list of those with work.
    #[inline]
    pub(super) fn list(&mut self, session: SessionId) {
        if let Some(turn) = self.lanes.of(session).and_then(Lane::turn) {
            self.turns.list(session, turn);
        }
    }
}
