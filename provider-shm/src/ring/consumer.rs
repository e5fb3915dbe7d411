//! The side of a ring that takes slots and records.

use std::ptr::NonNull;

use ferrofabric_system::prefetch::prefetch;

use super::slot::{BODY_WORDS, Head, LineSlot, LinkViolation, PAYLOAD_BYTES, RingProgress, SLOTS};

/// The consumer's side.
pub(crate) struct RingConsumer {
    slots: NonNull<LineSlot>,
    progress: NonNull<RingProgress>,
    payload: NonNull<u8>,
    /// Slots consumed, and the number of consumed slots that was published last.
    head: u32,
    published: u32,
    /// Payload bytes consumed since that publication.
    unpublished_bytes: u32,
    back_pressure: bool,
}

// SAFETY: as for `RingProducer`.
unsafe impl Send for RingConsumer {}

/// A slot that the producer has published.
#[derive(Clone, Copy)]
pub(crate) struct PublishedSlot {
    /// The kind, flags and length in the slot's publish word.
    pub(crate) head: Head,
    slot: NonNull<LineSlot>,
}

impl PublishedSlot {
    /// The body, to copy out of; valid until the slot is consumed. The other process may write to
    /// it at any time.
    #[inline(always)]
    pub(crate) fn with_body<R>(&self, f: impl FnOnce(*const u64) -> R) -> R {
        // SAFETY: the slot stays mapped (see `RingConsumer::new`).
        unsafe { self.slot.as_ref() }.with_body(f)
    }

    /// The first `N` words of the body, each read once.
    #[inline(always)]
    pub(crate) fn words<const N: usize>(&self) -> [u64; N] {
        const { assert!(N <= BODY_WORDS) };
        self.with_body(|body| {
            // SAFETY: a slot has `BODY_WORDS` words; volatile, for the other process may write to
            // them.
            std::array::from_fn(|i| unsafe { body.add(i).read_volatile() })
        })
    }
}

impl RingConsumer {
    /// # Safety
    ///
    /// As for [`RingProducer::new`], and this is the only consumer.
    pub(crate) unsafe fn new(
        slots: NonNull<LineSlot>,
        progress: NonNull<RingProgress>,
        payload: NonNull<u8>,
    ) -> Self {
        Self {
            slots,
            progress,
            payload,
            head: 0,
            published: 0,
            unpublished_bytes: 0,
            back_pressure: false,
        }
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<PublishedSlot> {
        self.peek_at(self.head)
    }

    /// The slot at a position from the next one on, if it has been published. None lies more than a
    /// lap ahead, whatever the producer writes.
    pub(crate) fn peek_ahead(&self, position: u32) -> Option<PublishedSlot> {
        let is_near = (position.wrapping_sub(self.head) as usize) < SLOTS;
        is_near.then(|| self.peek_at(position)).flatten()
    }

    #[inline(always)]
    fn peek_at(&self, position: u32) -> Option<PublishedSlot> {
        // SAFETY: the index is masked; the slots stay mapped (see `new`).
        let slot = unsafe { self.slots.add(LineSlot::index(position)) };
        // SAFETY: as above.
        let head = unsafe { slot.as_ref() }.head(position)?;
        Some(PublishedSlot { head, slot })
    }

    /// The record of `len` bytes at `offset`, checked to lie in the payload ring.
    #[inline(always)]
    pub(crate) fn record(&self, offset: u32, len: usize) -> Result<*const u8, LinkViolation> {
        let offset = offset as usize;
        if offset > PAYLOAD_BYTES || len > PAYLOAD_BYTES - offset {
            return Err(LinkViolation("it sent a record outside its payload ring"));
        }
        // SAFETY: just checked.
        Ok(unsafe { self.payload.as_ptr().add(offset) })
    }

    /// Consumes the slot of the last `peek`, and `record_bytes` of payload. True if the caller
    /// should publish its progress soon.
    #[inline(always)]
    pub(crate) fn consume(&mut self, record_bytes: usize) -> bool {
        self.head = self.head.wrapping_add(1);
        self.unpublished_bytes += record_bytes as u32;
        self.head.wrapping_sub(self.published) as usize >= SLOTS / 4
            || self.unpublished_bytes as usize >= PAYLOAD_BYTES / 8
    }

    /// Slots consumed so far, modulo 2³².
    pub(crate) fn consumed(&self) -> u32 {
        self.head
    }

    /// Whether slots were consumed since the last publication.
    #[inline(always)]
    pub(crate) fn has_unpublished_tail(&self) -> bool {
        self.head != self.published
    }

    /// Requests envelopes only, or lifts that request; takes effect with the next `publish_tail`.
    pub(crate) fn set_back_pressure(&mut self, back_pressure: bool) {
        self.back_pressure = back_pressure;
    }

    /// Publishes the consumer's progress for the producer.
    #[inline(always)]
    pub(crate) fn publish_tail(&mut self) {
        self.published = self.head;
        self.unpublished_bytes = 0;
        // SAFETY: mapped as long as `self`.
        unsafe { self.progress.as_ref() }.publish(self.head, self.back_pressure);
    }

    /// Prefetches a slot that will be read soon, after a message was there: in a stream of
    /// messages the producer has written that slot already. (In a ping-pong the slot was read a lap
    /// ago and is still in our cache: no harm.)
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let ahead = LineSlot::index(self.head.wrapping_add(SLOTS as u32 / 8));
        prefetch(self.slots.as_ptr().wrapping_add(ahead));
    }
}
