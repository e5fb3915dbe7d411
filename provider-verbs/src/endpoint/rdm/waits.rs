//! Counts of the operations that wait, by the reason: statistics for the diagnosis of an endpoint
//! that makes no progress, and counts of the resources that were lost.

use super::RdmTransport;
use crate::session::{RdmPeer, SessionState};

/// Sums over all sessions.
#[derive(Default)]
struct WaitSums {
    unconfirmed: u64,
    resend: u64,
    control_messages: u64,
    announced: u64,
    waiting: u64,
    written: u64,
    taken: u64,
    credit_units: u64,
}

impl WaitSums {
    fn add(&mut self, state: &SessionState) {
        self.unconfirmed += u64::from(state.numbers.unconfirmed());
        self.resend += state.resend_queue.len() as u64;
        self.control_messages += state.control_messages.len() as u64;
        self.announced += state.sends.len() as u64;
        self.waiting += state.envelopes.len() as u64;
        self.written += state.writes.len() as u64;
        self.credit_units += u64::from(state.numbers.send_credit.available_units());
        self.taken += (state.reads.len() + state.receives.len() + state.pulls.len()) as u64;
    }
}

impl RdmTransport {
    /// Reports the counts.
    pub(super) fn report_waits(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let mut sums = WaitSums::default();
        let parked = self.peers.iter().filter_map(|peer| peer.parked.as_deref());
        let carried = self.lanes.carried().map(|(_, session)| session);
        parked.chain(carried).for_each(|state| sums.add(state));
        let in_line = self.peers.iter().map(|peer| peer.pending.len() as u64);
        let lanes = self
            .lanes
            .rc_lanes()
            .filter(|lane| lane.head.gate.is_ending());
        let ending = lanes.count() + self.ending.len();
        report("verbs_sends_in_line_now", in_line.sum());
        report("verbs_sends_announced_now", sums.announced);
        report("verbs_sends_enveloped_now", sums.waiting);
        report("verbs_sends_written_now", sums.written);
        report("verbs_receives_moved_now", sums.taken);
        report("verbs_packets_unconfirmed_now", sums.unconfirmed);
        report("verbs_packets_to_repeat_now", sums.resend);
        report("verbs_notices_now", sums.control_messages);
        report("verbs_credit_units_now", sums.credit_units);
        report("verbs_sessions_parked_now", self.peers.parked() as u64);
        let (connecting, resuming) = self.life.waiting();
        report("verbs_peers_connecting_now", connecting as u64);
        report("verbs_peers_resuming_now", resuming as u64);
        report("verbs_lanes_ending_now", ending as u64);
    }
}

impl RdmTransport {
    /// Bounce buffers that are neither free nor those of a posted request.
    pub(super) fn lost_bounces(&self) -> usize {
        let queues = self.lanes.rc_lanes().map(|lane| &lane.queue);
        let by_lanes = queues.map(|queue| queue.iter().filter(|wqe| wqe.packet.slot().is_some()));
        let by_datagrams = self.ud.queue_pair.as_ref().map_or(0, |qp| qp.bounces());
        let under_way = by_lanes.map(Iterator::count).sum::<usize>() + by_datagrams;
        self.poster.bounces.taken().abs_diff(under_way)
    }

    /// Units of credit that are granted, and are no session's.
    pub(super) fn lost_credit(&self) -> u64 {
        let quota = |state: &SessionState| u64::from(state.numbers.receive_credit.quota_units());
        let parked = |peer: &RdmPeer| {
            let lent = u64::from(peer.lent.unwrap_or(0));
            peer.parked.as_deref().map_or(0, quota).abs_diff(lent)
        };
        let carried = self.lanes.carried().map(|(_, session)| quota(session));
        let of_sessions = carried.chain(self.peers.iter().map(parked));
        of_sessions
            .sum::<u64>()
            .abs_diff(u64::from(self.grants.granted()))
    }
}
