//! The side of a ring that takes slots and records.

use std::ptr::NonNull;

use ferrofabric_system::prefetch::prefetch;

use super::slot::{BODY_WORDS, Broken, Head, PAYLOAD_BYTES, Progress, SLOTS, Slot};

/// The consumer's side.
pub(crate) struct Rx {
    slots: NonNull<Slot>,
    progress: NonNull<Progress>,
    payload: NonNull<u8>,
    /// Slots consumed, and how many of them the producer was told of.
    head: u32,
    told: u32,
    /// Payload bytes consumed since.
    untold_bytes: u32,
    pressed: bool,
}

// SAFETY: as for `Tx`.
unsafe impl Send for Rx {}

/// A slot that the producer has published.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// What its publish word says.
    pub(crate) head: Head,
    slot: NonNull<Slot>,
}

impl Seen {
    /// The body, to copy out of; valid until the slot is consumed. The other process may write to
    /// it at any time.
    #[inline(always)]
    pub(crate) fn with_body<R>(&self, f: impl FnOnce(*const u64) -> R) -> R {
        // SAFETY: the slot stays mapped (see `Rx::new`).
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

impl Rx {
    /// # Safety
    ///
    /// As for [`Tx::new`], and this is the only consumer.
    pub(crate) unsafe fn new(
        slots: NonNull<Slot>,
        progress: NonNull<Progress>,
        payload: NonNull<u8>,
    ) -> Self {
        Self {
            slots,
            progress,
            payload,
            head: 0,
            told: 0,
            untold_bytes: 0,
            pressed: false,
        }
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<Seen> {
        // SAFETY: the index is masked; the slots stay mapped (see `new`).
        let slot = unsafe { self.slots.add(Slot::index(self.head)) };
        // SAFETY: as above.
        let head = unsafe { slot.as_ref() }.head(self.head)?;
        Some(Seen { head, slot })
    }

    /// The record of `len` bytes at `offset`, checked to lie in the payload ring.
    #[inline(always)]
    pub(crate) fn record(&self, offset: u32, len: usize) -> Result<*const u8, Broken> {
        let offset = offset as usize;
        if offset > PAYLOAD_BYTES || len > PAYLOAD_BYTES - offset {
            return Err(Broken("it sent a record outside its payload ring"));
        }
        // SAFETY: just checked.
        Ok(unsafe { self.payload.as_ptr().add(offset) })
    }

    /// The slot of the last `peek`, and `record_bytes` of payload, are done with. True when the
    /// producer should be told soon.
    #[inline(always)]
    pub(crate) fn consume(&mut self, record_bytes: usize) -> bool {
        self.head = self.head.wrapping_add(1);
        self.untold_bytes += record_bytes as u32;
        self.head.wrapping_sub(self.told) as usize >= SLOTS / 4
            || self.untold_bytes as usize >= PAYLOAD_BYTES / 8
    }

    /// Slots consumed so far, modulo 2³².
    pub(crate) fn consumed(&self) -> u32 {
        self.head
    }

    /// Whether there is something that the producer was not told.
    #[inline(always)]
    pub(crate) fn has_unpublished_tail(&self) -> bool {
        self.head != self.told
    }

    /// Asks for envelopes only, or lifts that again; takes effect with the next `publish_tail`.
    pub(crate) fn set_back_pressure(&mut self, pressed: bool) {
        self.pressed = pressed;
    }

    /// Tells the producer how far the consumer is.
    #[inline(always)]
    pub(crate) fn publish_tail(&mut self) {
        self.told = self.head;
        self.untold_bytes = 0;
        // SAFETY: mapped as long as `self`.
        unsafe { self.progress.as_ref() }.publish(self.head, self.pressed);
    }

    /// Brings a slot that will be looked at soon closer, if one message has just been there: in a
    /// stream of them it has been written already. (In a ping-pong it was read a lap ago and lies
    /// in our cache: no harm.)
    #[inline(always)]
    pub(crate) fn prefetch(&self) {
        let ahead = Slot::index(self.head.wrapping_add(SLOTS as u32 / 8));
        prefetch(self.slots.as_ptr().wrapping_add(ahead));
    }
}
