//! The number of packets that each session has received. The endpoint's last message to a peer
//! contains it, so that no peer reports a delivered message as lost.

use std::collections::HashSet;

use super::RdmTransport;
use crate::connect::ToEngine;

impl RdmTransport {
    /// Passes the numbers to the service thread, by peer, when the endpoint closes. The last message
    /// may name any lane: the one that carries the session, one on which the session is to be
    /// resumed, one that is being made, or the last one where there is none.
    pub(super) fn report_received_counts(&mut self) {
        // A lane may just have come up that begins another session with its peer.
        let mut begun = HashSet::new();
        while let Some(message) = self.service.message() {
            if let ToEngine::LaneUp { up, .. } = message {
                if !up.resumes {
                    begun.insert(up.peer);
                }
            }
        }
        let with_session: Vec<_> = (self.peers.indexed())
            .filter(|(_, peer)| peer.parked.is_some() || peer.lane.is_some())
            .filter(|(_, peer)| !begun.contains(&peer.key))
            .map(|(at, peer)| (at, peer.key))
            .collect();
        for (at, key) in with_session {
            if let Some(expected) = self.expected_by(at) {
                self.service.received(key, expected);
            }
        }
    }

    /// The next number that the session with a peer expects; `None` where the peer may have begun
    /// another session by now.
    fn expected_by(&mut self, peer: u32) -> Option<u32> {
        let at = self.peers.at(peer);
        if let Some(session) = &at.parked {
            return (!session.numbers.is_offered()).then(|| session.numbers.expected());
        }
        let session = at.lane?;
        let state = self.lanes.session(session)?;
        Some(state.numbers.expected())
    }
}
