//! Statistics of an endpoint.

use super::RdmTransport;

/// Statistics of the endpoint.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RdmCounters {
    pub(super) sent: SentCounters,
    pub(super) received: ReceivedCounters,
    pub(super) lanes: LaneCounters,
}

/// Sent messages and packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SentCounters {
    pub(super) eager: u64,
    /// Of these, messages that were sent in several packets.
    pub(super) fragmented: u64,
    pub(super) rendezvous: u64,
    /// Envelopes of messages that wait here. Each of these messages counts once more when it goes.
    pub(super) envelopes: u64,
    pub(super) bytes: u64,
    /// Posted reads and writes of rendezvous messages.
    pub(super) chunks: u64,
    /// Chunks of those transfers that are under way. A request that is posted to the same lane now
    /// waits for no more than them.
    pub(super) chunks_under_way: u64,
    pub(super) acks: u64,
    pub(super) one_sided: OneSidedCounters,
}

/// One-sided operations that the device was to carry out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OneSidedCounters {
    pub(super) writes: u64,
    pub(super) reads: u64,
    /// Of these, operations that were lost with their lanes.
    pub(super) lost: u64,
}

/// Received messages and packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReceivedCounters {
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) packets: u64,
    pub(super) dropped: u64,
    pub(super) unexpected: u64,
}

/// Numbers of lanes, by their fate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LaneCounters {
    pub(super) failed: u64,
    pub(super) sessions_resumed: u64,
    pub(super) packets_repeated: u64,
    /// Lanes of the UD kind.
    pub(super) ud: u64,
    pub(super) promotions: u64,
    pub(super) recycled: u64,
    /// Lanes given up because their peers were removed.
    pub(super) left: u64,
}

impl RdmTransport {
    /// Reports each counter by its name.
    pub(super) fn report(&self, report: &mut dyn FnMut(&'static str, u64)) {
        let RdmCounters {
            sent,
            received,
            lanes,
        } = &self.poster.counters;
        report("verbs_messages_sent", sent.eager + sent.rendezvous);
        report("verbs_bytes_sent", sent.bytes);
        report("verbs_messages_received", received.messages);
        report("verbs_bytes_received", received.bytes);
        report("verbs_sent_eager", sent.eager);
        report("verbs_sent_in_parts", sent.fragmented);
        report("verbs_sent_rendezvous", sent.rendezvous);
        report("verbs_sent_envelopes", sent.envelopes);
        report("verbs_chunks", sent.chunks);
        report("verbs_chunks_under_way", sent.chunks_under_way);
        report("verbs_rma_writes", sent.one_sided.writes);
        report("verbs_rma_reads", sent.one_sided.reads);
        report("verbs_rma_again", sent.one_sided.lost);
        self.poster.registrations.report(report);
        report("verbs_packets_received", received.packets);
        report("verbs_receive_buffers", self.receives.count() as u64);
        report("verbs_receives_to_post_now", self.receives.to_post() as u64);
        report("verbs_receives_held_now", self.ud.held_slots() as u64);
        report("verbs_bounces_lost_now", self.lost_bounces() as u64);
        report("verbs_credit_lost_now", self.lost_credit());
        report("verbs_packets_dropped", received.dropped);
        report("verbs_unexpected", received.unexpected);
        report("verbs_unexpected_now", self.unexpected.len() as u64);
        report("verbs_units_granted", u64::from(self.grants.in_use()));
        report("verbs_lanes_failed", lanes.failed);
        let sessions = self.lanes.carried().count() + self.peers.parked();
        report("verbs_sessions_now", sessions as u64);
        report("verbs_rc_lanes_now", self.lanes.rc_lanes().count() as u64);
        report("verbs_peers_now", self.peers.count() as u64);
        report("verbs_peers_unlisted_now", self.peers.unlisted() as u64);
        self.report_waits(report);
        report("verbs_sessions_resumed", lanes.sessions_resumed);
        report("verbs_packets_repeated", lanes.packets_repeated);
        report("verbs_queue_pairs_made", self.service.queue_pairs());
        report("verbs_lanes_recycled", lanes.recycled);
        report("verbs_lanes_left", lanes.left);
        report("verbs_ud_lanes", lanes.ud);
        report("verbs_ud_promotions", lanes.promotions);
        let datagrams = self.datagram_counters();
        report("verbs_datagrams_sent", datagrams.sent + sent.acks);
        report("verbs_datagrams_repeated", datagrams.repeated);
        self.service.events().counts().report(report);
    }
}
