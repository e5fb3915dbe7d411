//! The sizes that a link works with, as they were set.

use super::{ENVELOPES_MAX, SPARE_BUFFERS, SPARE_BYTES};
use crate::config::ShmConfig;

use crate::ring::{PAYLOAD_BYTES, SLOTS};
use crate::wire::MAX_WINDOW;

/// The sizes that a link works with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(super) window: usize,
    pub(super) chunk: usize,
    pub(super) queue: usize,
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
        Self {
            window: config.eager_bytes.min(MAX_WINDOW as usize),
            chunk: config.chunk_bytes.clamp(256, PAYLOAD_BYTES / 3),
            queue: config.queue_sends.max(1),
            quota: Quota {
                bytes: config.unexpected_bytes,
                messages: config.unexpected_messages,
            },
        }
    }
}
