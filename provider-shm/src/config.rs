//! Settings of the transport. Read from nowhere: whoever opens it fills them in.

use std::time::Duration;

/// Whether large messages may be read straight out of the sender's memory (`process_vm_readv`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cma {
    /// Where it works and was measured to be faster.
    Auto,
    /// Wherever it works.
    On,
    /// Never.
    Off,
}

/// What becomes of sends to a peer that shared memory does not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// They fail with `EHOSTUNREACH`.
    Fail,
    /// They are kept for [`ShmTransport::take_unreachable`](crate::ShmTransport::take_unreachable).
    HandBack,
}

/// Settings of a [`ShmTransport`](crate::ShmTransport).
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Messages up to so many bytes are sent whole before a receive is known to wait for them, at
    /// most 65536.
    pub eager_bytes: usize,
    /// Bytes of longer messages that are; there they stop until one does. At most `eager_bytes`;
    /// what fills the ring with whole pieces is best.
    pub first_bytes: usize,
    /// Largest piece in which long messages are copied, in bytes; the payload ring holds three or
    /// more.
    pub chunk_bytes: usize,
    /// Whether to copy messages of 8 KiB and more from process to process directly.
    pub cma: Cma,
    /// Sends to one peer that wait for room, at most; then sends are turned away with `EAGAIN`.
    pub queue_sends: usize,
    /// Unexpected bytes from one peer that are kept; above, it is asked for envelopes only.
    pub unexpected_bytes: usize,
    /// Unexpected messages from one peer that are kept; above, it is asked for envelopes only, and
    /// sends no more than some thousands of those until receives are posted.
    pub unexpected_messages: usize,
    /// As [`unexpected_bytes`](Self::unexpected_bytes), from all peers together.
    pub endpoint_unexpected_bytes: usize,
    /// As [`unexpected_messages`](Self::unexpected_messages), from all peers together.
    pub endpoint_unexpected_messages: usize,
    /// How long a connection is tried to be made with a peer that answers and does not agree. One
    /// that is silent is waited for as long as it exists.
    pub connect_deadline: Duration,
    /// How long an incoming connection may take to say what it has to say.
    pub accept_deadline: Duration,
    /// How often it is looked whether peers still exist.
    pub sweep_interval: Duration,
    /// Sends to who can not be reached.
    pub unreachable: Unreachable,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            eager_bytes: 65_536,
            first_bytes: 26_304,
            chunk_bytes: 8_768,
            cma: Cma::Auto,
            queue_sends: 1024,
            unexpected_bytes: 4 << 20,
            unexpected_messages: 128 << 10,
            endpoint_unexpected_bytes: 64 << 20,
            endpoint_unexpected_messages: 512 << 10,
            connect_deadline: Duration::from_secs(60),
            accept_deadline: Duration::from_secs(5),
            sweep_interval: Duration::from_millis(100),
            unreachable: Unreachable::Fail,
        }
    }
}
