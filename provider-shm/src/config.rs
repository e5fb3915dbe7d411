//! The configuration of a transport. The provider that opens the transport fills it in.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_contracts::flags::Rights;

use crate::regions::RegionBoard;
use crate::wire::UNDER_WAY_MAX;

/// Whether large messages may be read straight out of the sender's memory (`process_vm_readv`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cma {
    /// Where it works and measurements show that it is faster.
    Auto,
    /// Wherever it works.
    On,
    /// Never.
    Off,
}

/// The treatment of sends to a peer that shared memory does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// They fail with `EHOSTUNREACH`.
    Fail,
    /// They are kept for [`ShmTransport::take_unreachable`](crate::ShmTransport::take_unreachable).
    HandBack,
}

/// The regions that peers may reach without the help of an endpoint.
#[derive(Clone, Debug)]
pub struct ShownRegions {
    /// The regions of its domain.
    pub board: Arc<RegionBoard>,
    /// The rights of peers by way of the endpoint, for operations of which the endpoint need not
    /// see each.
    pub rights: Rights,
}

/// Settings of a [`ShmTransport`](crate::ShmTransport).
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Messages up to this number of bytes are sent whole before a receive matches, at most 65536.
    pub eager_bytes: usize,
    /// Bytes of a longer message that are sent before a receive matches. At most `eager_bytes`; a
    /// number that fills the ring with whole pieces is best.
    pub first_bytes: usize,
    /// Largest piece in which long messages are copied, in bytes; the payload ring holds three or
    /// more.
    pub chunk_bytes: usize,
    /// Whether to copy messages of 8 KiB and more from process to process directly.
    pub cma: Cma,
    /// Sends to one peer that may wait for room; beyond, sends fail with `EAGAIN`.
    pub queue_sends: usize,
    /// Messages to one peer that may be under way: those whose envelope the peer has, and whose
    /// bytes or whose report of delivery are still missing. At most 1,048,576; later sends wait.
    pub under_way: usize,
    /// Unexpected bytes of one peer that the endpoint keeps; beyond, the peer sends envelopes only.
    pub unexpected_bytes: usize,
    /// Unexpected messages of one peer that the endpoint keeps; beyond, the peer sends envelopes
    /// only.
    pub unexpected_messages: usize,
    /// As [`unexpected_bytes`](Self::unexpected_bytes), from all peers together.
    pub endpoint_unexpected_bytes: usize,
    /// As [`unexpected_messages`](Self::unexpected_messages), from all peers together.
    pub endpoint_unexpected_messages: usize,
    /// Time to connect to a peer that answers and does not agree. An attempt with a silent peer
    /// lasts as long as the peer exists.
    pub connect_deadline: Duration,
    /// Time in which an incoming connection must send its records.
    pub accept_deadline: Duration,
    /// Time between two checks whether peers still exist.
    pub sweep_interval: Duration,
    /// The treatment of sends to unreachable peers.
    pub unreachable: Unreachable,
    /// The regions that peers may reach by themselves; `None`: none, one-sided operations of peers
    /// go as messages.
    pub shown: Option<ShownRegions>,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            eager_bytes: 65_536,
            first_bytes: 26_304,
            chunk_bytes: 8_768,
            cma: Cma::Auto,
            queue_sends: 1 << 20,
            under_way: UNDER_WAY_MAX,
            unexpected_bytes: 4 << 20,
            unexpected_messages: 128 << 10,
            endpoint_unexpected_bytes: 64 << 20,
            endpoint_unexpected_messages: 512 << 10,
            connect_deadline: Duration::from_secs(60),
            accept_deadline: Duration::from_secs(5),
            sweep_interval: Duration::from_millis(100),
            unreachable: Unreachable::Fail,
            shown: None,
        }
    }
}
