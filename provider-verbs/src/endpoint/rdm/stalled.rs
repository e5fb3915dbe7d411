//! Lanes that can not go on for want of what all lanes of an endpoint share: bounce buffers, and places for completions. What comes
//! back does so by another lane's completions, which list that lane alone.

use ferrofabric_core::protocol::wire::SessionId;

use super::RdmTransport;

impl RdmTransport {
    /// A lane has found nothing left. It goes on when something has come back.
    #[cold]
    pub(super) fn stall(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.of(session) {
            if !lane.stalled {
                lane.stalled = true;
                self.stalled.push(session);
            }
        }
    }

    /// Something may have come back: lanes that wait for it get their turn before those that gave it back, first come first.
    #[cold]
    pub(super) fn go_on_stalled(&mut self) {
        for session in std::mem::take(&mut self.stalled).into_iter().rev() {
            let Some(lane) = self.lanes.of(session) else {
                continue;
            };
            lane.stalled = false;
            if std::mem::replace(&mut lane.listed, true) {
                self.work.retain(|listed| *listed != session);
            }
            self.work.push_front(session);
        }
    }
}
