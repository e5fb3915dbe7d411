//! The sizes that a link works with, as they were set.

use super::{ENVELOPES_MAX, SPARE_BUFFERS, SPARE_BYTES};
use crate::config::{Cma, ShmConfig};

use crate::ring::{LINE, PAYLOAD_BYTES, SLOTS};
use crate::wire::MAX_WINDOW;

/// The sizes that a link works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    eager: usize,
    first: usize,
    chunk: usize,
    pub(super) queue: usize,
    pub(super) cma: Cma,
    pub(crate) quota: Quota,
}

/// What is kept for one peer of messages that nobody receives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quota {
    /// Above these it is asked for envelopes only.
    pub(crate) bytes: usize,
    pub(crate) messages: usize,
}

impl Quota {
    /// Whether a peer that has been asked for envelopes only sends more than it can have sent before it knew, and than it
    /// may send then.
    pub(crate) fn is_abused(self, bytes: usize, messages: usize) -> bool {
        const IN_RING: usize = SLOTS * MAX_WINDOW as usize + SPARE_BUFFERS * SPARE_BYTES;
        bytes > self.bytes.saturating_add(IN_RING)
            || messages > self.messages.saturating_add(SLOTS + 2 * ENVELOPES_MAX)
    }
}

impl Sizes {
    pub(crate) fn new(config: &ShmConfig) -> Self {
        let eager = config.eager_bytes.min(MAX_WINDOW as usize);
        Self {
            eager,
            first: config.first_bytes.min(eager),
            chunk: config.chunk_bytes.clamp(256, PAYLOAD_BYTES / 3),
            queue: config.queue_sends.max(1),
            cma: config.cma,
            quota: Quota {
                bytes: config.unexpected_bytes,
                messages: config.unexpected_messages,
            },
        }
    }

    /// Bytes of a piece of a message of `len`: all are as long, as far as may be. A short last one would cost as much time as the
    /// others do to begin with, and leave the ring divided in another way for what comes next.
    #[inline]
    pub(super) fn piece(&self, len: usize) -> usize {
        len.div_ceil(self.pieces(len))
            .next_multiple_of(LINE)
            .min(self.chunk)
    }

    /// In how many pieces a message of `len` bytes comes.
    pub(crate) fn pieces(&self, len: usize) -> usize {
        len.div_ceil(self.chunk).max(1)
    }

    /// Bytes of a message of `len` that are sent before a receive is known to wait for it.
    #[inline]
    pub(super) fn window(&self, len: usize) -> usize {
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
        let sizes = Sizes::new(&ShmConfig::default());
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
