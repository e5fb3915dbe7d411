//! Lanes that can not go on for want of what all lanes of an endpoint share: bounce buffers, and places for completions. What comes
//! back does so by another lane's completions, which list that lane alone.

use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;

impl RdmTransport {
    /// A lane has found nothing left. It goes on when something has come back.
    #[cold]
    pub(super) fn stall(&mut self, session: SessionId) {
        let stalled = match self.lanes.of(session) {
            Some(lane) => Some(&mut lane.stalled),
            None => (self.ud.lanes.of(session)).map(|lane| &mut lane.stalled),
        };
        if let Some(stalled) = stalled {
            if !std::mem::replace(stalled, true) {
                self.stalled.push(session);
            }
        }
    }

    /// Something may have come back: lanes that wait for it get their turn before those that gave it back, first come first.
    #[cold]
    pub(super) fn go_on_stalled(&mut self) {
        for session in std::mem::take(&mut self.stalled).into_iter().rev() {
            let (stalled, listed) = match self.lanes.of(session) {
                Some(lane) => (&mut lane.stalled, &mut lane.listed),
                None => match self.ud.lanes.of(session) {
                    Some(lane) => (&mut lane.stalled, &mut lane.listed),
                    None => continue,
                },
            };
            *stalled = false;
            if std::mem::replace(listed, true) {
                self.work.retain(|listed| *listed != session);
            }
            self.work.push_front(session);
        }
    }
}
