//! Look-ups of sessions, by their lanes and by their names, and control messages to their peers.

use ferrofabric_protocol::wire::SessionId;

use super::RdmTransport;
use crate::session::{ControlMessage, SessionState};

impl RdmTransport {
    /// The session of this name with a peer, and its lane if it has one.
    pub(super) fn session_named(
        &mut self,
        peer: u32,
        name: u64,
    ) -> Option<(&mut SessionState, Option<SessionId>)> {
        if let Some(session) = self.peers.at(peer).lane {
            let state = self.lanes.session(session)?;
            return (state.numbers.name() == name).then_some((state, Some(session)));
        }
        let state = self.peers.at(peer).parked.as_deref_mut()?;
        (state.numbers.name() == name).then_some((state, None))
    }

    /// Notifies the peer as soon as there is room.
    pub(super) fn notify(&mut self, peer: u32, name: u64, control: ControlMessage) {
        if let Some((state, lane)) = self.session_named(peer, name) {
            state.control_messages.push_back(control);
            if let Some(lane) = lane {
                self.list(lane);
            }
        }
    }
}
