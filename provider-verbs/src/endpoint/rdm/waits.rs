//! Counts of the operations that wait, by the reason: statistics for the diagnosis of an endpoint
//! that makes no progress.

use super::RdmTransport;
use crate::session::SessionState;

/// Sums over all sessions.
#[derive(Default)]
struct WaitSums {
    unconfirmed: u64,
    resend: u64,
    control_messages: u64,
    announced: u64,
    written: u64,
    taken: u64,
}

impl WaitSums {
    fn add(&mut self, state: &SessionState) {
        self.unconfirmed += u64::from(state.numbers.unconfirmed());
        self.resend += state.resend_queue.len() as u64;
        self.control_messages += state.control_messages.len() as u64;
        self.announced += state.sends.len() as u64;
        self.written += state.writes.len() as u64;
        self.taken += (state.reads.len() + state.receives.len()) as u64;
    }
}

impl RdmTransport {
    /// Reports the counts.
    pub(super) fn report_waits(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let mut sums = WaitSums::default();
        let parked = self.peers.iter().filter_map(|peer| peer.parked.as_deref());
        let carried = self.lanes.iter().map(|lane| &lane.session);
        let by_datagrams = self.ud.lanes.iter().map(|lane| &lane.session);
        (parked.chain(carried).chain(by_datagrams)).for_each(|state| sums.add(state));
        let in_line = self.peers.iter().map(|peer| peer.pending.len() as u64);
        let lanes = self.lanes.iter().filter(|lane| lane.is_ending);
        let ending = lanes.count() + self.ending.len();
        report("verbs_sends_in_line_now", in_line.sum());
        report("verbs_sends_announced_now", sums.announced);
        report("verbs_sends_written_now", sums.written);
        report("verbs_receives_moved_now", sums.taken);
        report("verbs_packets_unconfirmed_now", sums.unconfirmed);
        report("verbs_packets_to_repeat_now", sums.resend);
        report("verbs_notices_now", sums.control_messages);
        report("verbs_sessions_parked_now", self.peers.parked() as u64);
        let (connecting, resuming) = self.life.waiting();
        report("verbs_peers_connecting_now", connecting as u64);
        report("verbs_peers_resuming_now", resuming as u64);
        report("verbs_lanes_ending_now", ending as u64);
    }
}
