//! Sessions that leave datagrams for an RC lane.

use ferrofabric_protocol::wire::SessionId;
use ferrofabric_protocol::{Time, datagram_lane};

use super::super::RdmTransport;
use crate::lane::UdLane;
use crate::session::SessionState;

impl RdmTransport {
    /// Counts a message that goes by datagrams: enough of them promote the peer.
    pub(super) fn count_message(&mut self, session: SessionId, bytes: usize, now: Time) {
        if !self.life.counts_traffic() {
            return;
        }
        let Some(lane) = self.lanes.ud(session) else {
            return;
        };
        let peer = lane.head.peer;
        if self.life.message(peer, bytes as u64, now)
            && self.apply_without_owner(|life, view, now| life.has_traffic(peer, view, now))
        {
            self.outgrow(session);
        }
    }

    /// A session needs an RC lane.
    pub(super) fn outgrow(&mut self, session: SessionId) {
        if let Some(lane) = self.lanes.ud(session) {
            lane.outgrown = true;
            self.list(session);
        }
    }

    /// Moves a session from datagrams to an RC lane.
    #[cold]
    pub(super) fn promote(&mut self, session: SessionId) -> usize {
        let promotes = self.apply_without_owner(|life, view, _| life.promote(session, view));
        self.poster.counters.lanes.promotions += u64::from(promotes);
        usize::from(promotes)
    }

    /// A session leaves its UD lane.
    pub(in super::super) fn leave_ud_lane(&mut self, mut lane: UdLane) -> SessionState {
        self.send_last_datagram(&mut lane);
        self.ud.deadlines.set(lane.head.key.session(), None);
        let slots = lane.window.release(&lane.session.numbers);
        for (slot, _) in slots {
            self.ud.held_slots -= 1;
            self.receives.give_back(slot);
        }
        lane.session
    }

    /// Statistics of all lanes of the UD kind together.
    pub(in super::super) fn datagram_counters(&self) -> datagram_lane::DatagramLaneCounters {
        self.ud.shared.counters
    }
}
