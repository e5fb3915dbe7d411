//! The counters of a transport, for tests, reports and tuning.

use ferrofabric_contracts::types::RmaKind;

/// Counters since the transport was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStats {
    /// Messages sent.
    pub sent: u64,
    /// Bytes of the messages sent.
    pub sent_bytes: u64,
    /// Messages received (matched or not).
    pub received: u64,
    /// Bytes of the messages received.
    pub received_bytes: u64,
    /// Messages sent within a slot.
    pub sent_inline: u64,
    /// Messages sent as one record of the payload ring.
    pub sent_eager: u64,
    /// Messages sent in several records.
    pub sent_pipe: u64,
    /// Messages left to the receiver to read.
    pub sent_cma: u64,
    /// Messages received by reading the sender's memory.
    pub received_cma: u64,
    /// Messages that arrived before their receive.
    pub unexpected: u64,
    /// Sends that had to wait for room.
    pub queued: u64,
    /// Doorbells rung.
    pub doorbells: u64,
    /// Links made.
    pub links: u64,
    /// Links that ended because the peer died or broke the protocol.
    pub links_failed: u64,
    /// Links closed idle, because the peer was not, or no longer, in the address vector of either
    /// side.
    pub links_left: u64,
}

/// The one-sided operations that an endpoint has carried out without the help of its peers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CarriedOut {
    /// Writes to regions of peers.
    pub(crate) written: u64,
    /// Reads of regions of peers.
    pub(crate) read: u64,
    /// Those of both that were loads and stores in mapped memory.
    pub(crate) mapped: u64,
}

impl CarriedOut {
    /// Counts an operation.
    pub(crate) fn count(&mut self, kind: RmaKind) {
        match kind {
            RmaKind::Read => self.read += 1,
            RmaKind::Write => self.written += 1,
        }
    }
}
