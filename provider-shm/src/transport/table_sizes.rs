//! Counts of an endpoint's tables, for fuzzing: a hostile peer must leave nothing behind. Also ends
//! links, as an input's end does.

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::Owner;

use super::ShmTransport;
use crate::peers::PeerState;

/// Sizes of the tables of an endpoint. All are 0 when it has just been opened.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TableSizes {
    links: usize,
    poll_order: usize,
    watched_links: usize,
    peers: usize,
    sends_under_way: usize,
    sends_handed_back: usize,
    receives_under_way: usize,
    unexpected_messages: usize,
    unexpected_left_behind: usize,
    counted_messages: usize,
    counted_bytes: usize,
}

impl ShmTransport {
    /// The sizes now.
    pub(crate) fn table_sizes(&self) -> TableSizes {
        let (receives_under_way, unexpected) = self.receiver.table_sizes();
        let (unexpected_messages, unexpected_left_behind, counted) = unexpected;
        TableSizes {
            links: self.links.len(),
            poll_order: self.poll_order.len(),
            watched_links: self.idle_closer.len(),
            peers: self.peers.known(),
            sends_under_way: self.outbox.outgoing.len(),
            sends_handed_back: self.unreachable.len(),
            receives_under_way,
            unexpected_messages,
            unexpected_left_behind,
            counted_messages: counted.messages,
            counted_bytes: counted.bytes,
        }
    }

    /// Whether sends wait for a link with the endpoint of this ID, and the service thread has no
    /// report yet.
    pub(crate) fn awaits_answer(&mut self, id: u64) -> bool {
        matches!(self.peers.get_mut(id), Some(PeerState::Connecting(_)))
            && !self.service.has_events()
    }

    /// Ends all links, as if their peers had closed their endpoints.
    pub(crate) fn end_links<O: Owner>(&mut self, owner: &mut O) {
        let keys: Vec<usize> = self.links.iter().map(|(key, _)| key).collect();
        for key in keys {
            self.fail_link(key, Errno::ESHUTDOWN, "the input is over", owner);
        }
    }
}
