//! The number of packets that each session has received. The endpoint's last message to a peer
//! contains it, so that no peer reports a delivered message as lost.

use std::collections::HashSet;

use super::RdmTransport;
use crate::connect::ToEngine;

impl RdmTransport {
    /// Passes the numbers to the service thread, by lane, when the endpoint closes.
    pub(super) fn report_received_counts(&mut self) {
        for lane in self.lanes.iter_mut() {
            (self.service).received(lane.key, lane.session.numbers.expected());
        }
        for lane in self.ud.lanes.iter_mut() {
            (self.service).received(lane.key, lane.session.numbers.expected());
        }
        // The last message may go by a lane on which a session has to be resumed, and is not yet.
        for (lane, peer) in self.lanes_that_resume() {
            if let Some(expected) = self.expected_by(peer) {
                self.service.received(lane, expected);
            }
        }
        // It may also go by a lane that has just come up.
        let mut begun = HashSet::new();
        while let Some(message) = self.service.message() {
            let ToEngine::LaneUp { up, .. } = message else {
                continue;
            };
            if !up.resumes {
                // From now on the peer has another session.
                begun.insert(up.peer);
            }
            let peer = self.peers.find(&up.peer);
            let peer = peer.filter(|_| !begun.contains(&up.peer));
            if let Some(expected) = peer.and_then(|peer| self.expected_by(peer)) {
                self.service.received(up.lane, expected);
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
        match self.lanes.of(session) {
            Some(lane) => Some(lane.session.numbers.expected()),
            None => (self.ud.lanes.of(session)).map(|lane| lane.session.numbers.expected()),
        }
    }
}
