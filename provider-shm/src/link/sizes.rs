//! The sizes and quotas of a link, computed from the configuration.

use crate::config::{Cma, ShmConfig};
use crate::ring::{LINE, PAYLOAD_BYTES, SLOTS};
use crate::wire::{MAX_BEFORE_GO, UNDER_WAY_MAX};

/// Number of buffers of unexpected messages that an endpoint keeps for later messages, and their
/// largest size in bytes.
pub(crate) const SPARE_BUFFERS: usize = 64;
pub(crate) const SPARE_BYTES: usize = 4096;

/// The sizes that a link works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkSizes {
    eager: usize,
    first: usize,
    chunk: usize,
    pub(super) queue: usize,
    pub(super) under_way: usize,
    pub(super) cma: Cma,
    pub(super) quota: Quota,
}

/// The bytes and the number of unexpected messages.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

impl Used {
    /// Of one message.
    pub(crate) fn of(bytes: usize) -> Self {
        Self { bytes, messages: 1 }
    }

    pub(crate) fn add(&mut self, more: Self) {
        self.bytes += more.bytes;
        self.messages += more.messages;
    }

    pub(crate) fn take(&mut self, less: Self) {
        self.bytes = self.bytes.saturating_sub(less.bytes);
        self.messages = self.messages.saturating_sub(less.messages);
    }

    /// Whether a peer has sent too much since the receiver, which held `before`, requested
    /// envelopes only: more than fits into the ring, which the peer may have filled before it saw
    /// the request, or more messages than it may send as envelopes after that.
    pub(crate) fn is_beyond_what_follows(self, before: Self) -> bool {
        const IN_RING: usize = SLOTS * MAX_BEFORE_GO as usize + SPARE_BUFFERS * SPARE_BYTES;
        self.bytes > before.bytes.saturating_add(IN_RING)
            || self.messages > before.messages.saturating_add(SLOTS + 2 * UNDER_WAY_MAX)
    }
}

/// The limit of unexpected messages, in bytes and in number: of one peer, or of all peers of an
/// endpoint. Above the limit the receiver requests envelopes only of that peer, or of every peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    bytes: usize,
    messages: usize,
}

impl Quota {
    /// The limit of an endpoint.
    pub(crate) fn of_endpoint(config: &ShmConfig) -> Self {
        Self {
            bytes: config.endpoint_unexpected_bytes,
            messages: config.endpoint_unexpected_messages,
        }
    }

    pub(crate) fn is_exceeded(self, used: Used) -> bool {
        used.bytes > self.bytes || used.messages > self.messages
    }

    pub(crate) fn is_half_free(self, used: Used) -> bool {
        used.bytes <= self.bytes / 2 && used.messages <= self.messages / 2
    }
}

impl LinkSizes {
    pub(crate) fn new(config: &ShmConfig) -> Self {
        let eager = config.eager_bytes.min(MAX_BEFORE_GO as usize);
        Self {
            eager,
            first: config.first_bytes.min(eager),
            chunk: config.chunk_bytes.clamp(256, PAYLOAD_BYTES / 3),
            queue: config.queue_sends.max(1),
            under_way: config.under_way.clamp(1, UNDER_WAY_MAX),
            cma: config.cma,
            quota: Quota {
                bytes: config.unexpected_bytes,
                messages: config.unexpected_messages,
            },
        }
    }

    /// Bytes of a piece of a message of `len`: all pieces are equally long, as far as possible. A
    /// short last piece would have the same fixed cost as the others, and would divide the ring
    /// differently for the next message.
    #[inline]
    pub(super) fn piece(&self, len: usize) -> usize {
        len.div_ceil(self.pieces(len))
            .next_multiple_of(LINE)
            .min(self.chunk)
    }

    /// Number of pieces of a message of `len` bytes.
    pub(super) fn pieces(&self, len: usize) -> usize {
        len.div_ceil(self.chunk).max(1)
    }

    /// Bytes of a message of `len` that are sent before a receive matches.
    #[inline]
    pub(super) fn before_go(&self, len: usize) -> usize {
        match len <= self.eager {
            true => len,
            false => self.first,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_few_as_can_be_and_as_long_as_each_other() {
        let sizes = LinkSizes::new(&ShmConfig::default());
        let of = |len: usize| (sizes.piece(len), len.div_ceil(sizes.piece(len)));
        assert_eq!(of(8_768), (8_768, 1));
        assert_eq!(of(8_769), (4_416, 2));
        assert_eq!(of(26_304), (8_768, 3));
        assert_eq!(of(64 << 10), (8_192, 8));
        for len in (1..2_000_000).step_by(997) {
            let piece = sizes.piece(len);
            assert!(piece <= sizes.chunk, "{piece} of {len} bytes");
            assert_eq!(len.div_ceil(piece), len.div_ceil(sizes.chunk));
        }
    }
}
