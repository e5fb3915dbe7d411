//! The producer's side of a ring: fills slots and records, and publishes them.

use std::ptr::NonNull;

use ferrofabric_system::prefetch::prefetch_to_write;

use super::slot::{Head, LINE, LineSlot, LinkViolation, PAYLOAD_BYTES, RingProgress, SLOTS};

/// A piece of the payload ring that the producer may fill and then publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadRecord {
    /// Where it starts, in bytes from the start of the payload ring.
    pub(crate) offset: u32,
    advance: u32,
    next: u32,
}

/// The producer's side.
pub(crate) struct RingProducer {
    slots: NonNull<LineSlot>,
    progress: NonNull<RingProgress>,
    payload: NonNull<u8>,
    /// Slots published, and slots that the consumer is known to have consumed.
    head: u32,
    tail: u32,
    /// Next free payload offset. Payload bytes taken, and bytes known to be free again, both since
    /// the start and with the bytes that were skipped.
    next: u32,
    taken: u32,
    freed: u32,
    back_pressure: bool,
    /// `taken` as it was after each slot.
    taken_at: [u32; SLOTS],
}

// SAFETY: the pointers lead into a mapping that outlives the ring (its `ShmLink` holds the
// segment), and the shared words are atomics; the rest is plain data.
unsafe impl Send for RingProducer {}

impl RingProducer {
    /// # Safety
    ///
    /// The pointers lead to `SLOTS` slots, a progress line and `PAYLOAD_BYTES` bytes that stay
    /// mapped, of which this is the only producer in this process.
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
            tail: 0,
            next: 0,
            taken: 0,
            freed: 0,
            back_pressure: false,
            taken_at: [0; SLOTS],
        }
    }

    /// Whether `spare + 1` slots are free, as far as known without looking at the shared line.
    #[inline(always)]
    pub(crate) fn has_slot(&self, spare: usize) -> bool {
        (self.head.wrapping_sub(self.tail) as usize) < SLOTS - spare
    }

    /// Whether the consumer requested envelopes only, as far as known.
    #[inline(always)]
    pub(crate) fn has_back_pressure(&self) -> bool {
        self.back_pressure
    }

    /// Reads the consumer's progress.
    #[cold]
    #[inline(never)]
    pub(crate) fn refresh(&mut self) -> Result<(), LinkViolation> {
        // SAFETY: mapped as long as `self` (see `new`).
        let (consumed, back_pressure) = unsafe { self.progress.as_ref() }.read();
        if consumed.wrapping_sub(self.tail) > self.head.wrapping_sub(self.tail) {
            return Err(LinkViolation("it consumed more than it was sent"));
        }
        self.back_pressure = back_pressure;
        if consumed != self.tail {
            self.tail = consumed;
            self.freed = self.taken_at[LineSlot::index(consumed.wrapping_sub(1))];
        }
        Ok(())
    }

    /// Reads the consumer's progress again. Returns whether it has changed; also if it makes no
    /// sense, which the next step finds.
    pub(crate) fn refresh_progress(&mut self) -> bool {
        let before = (self.tail, self.back_pressure);
        self.refresh().is_err() || (self.tail, self.back_pressure) != before
    }

    /// Payload room for exactly `len` bytes in one piece; `None` when there is none now.
    #[inline]
    pub(crate) fn reserve(&self, len: usize) -> Option<PayloadRecord> {
        let need = (len + LINE - 1) & !(LINE - 1);
        let free = PAYLOAD_BYTES - self.taken.wrapping_sub(self.freed) as usize;
        let to_end = PAYLOAD_BYTES - self.next as usize;
        let (offset, advance) = if need <= to_end {
            (self.next as usize, need)
        } else {
            (0, to_end + need)
        };
        (advance <= free).then(|| PayloadRecord {
            offset: offset as u32,
            advance: advance as u32,
            next: (offset + need) as u32,
        })
    }

    /// Payload room for up to `most` bytes, but no tiny rest; `None` if there is none now.
    #[inline]
    pub(crate) fn reserve_some(&self, most: usize) -> Option<(PayloadRecord, usize)> {
        const WORTHWHILE: usize = 2048;
        let free = PAYLOAD_BYTES - self.taken.wrapping_sub(self.freed) as usize;
        let here = free.min(PAYLOAD_BYTES - self.next as usize);
        let len = if here >= most.min(WORTHWHILE) {
            most.min(here)
        } else {
            most.min(free.saturating_sub(PAYLOAD_BYTES - self.next as usize))
        };
        if len < most.min(WORTHWHILE) {
            return None;
        }
        self.reserve(len).map(|record| (record, len))
    }

    /// Prefetches the lines of the next record, if that has this length.
    pub(crate) fn expect(&self, len: usize) {
        if let Some(record) = self.reserve(len) {
            let start = self.record_ptr(record);
            for line in (0..len).step_by(LINE) {
                prefetch_to_write(start.wrapping_add(line));
            }
        }
    }

    /// The memory of a record, to fill.
    #[inline(always)]
    pub(crate) fn record_ptr(&self, record: PayloadRecord) -> *mut u8 {
        // SAFETY: `reserve` keeps offset and length within the payload ring.
        unsafe { self.payload.as_ptr().add(record.offset as usize) }
    }

    /// Slots published so far, modulo 2³².
    pub(crate) fn published(&self) -> u32 {
        self.head
    }

    /// Publishes a slot: `fill` writes the words of the body. The caller has seen a free slot.
    #[inline(always)]
    pub(crate) fn publish(&mut self, head: Head, fill: impl FnOnce(*mut u64)) {
        debug_assert!(self.has_slot(0));
        let position = self.head;
        self.taken_at[LineSlot::index(position)] = self.taken;
        // SAFETY: the index is masked; the slots stay mapped (see `new`).
        let slot = unsafe { &*self.slots.as_ptr().add(LineSlot::index(position)) };
        self.head = position.wrapping_add(1);
        slot.publish(position, head, fill);
    }

    /// Publishes a slot that passes a record to the consumer.
    #[inline(always)]
    pub(crate) fn publish_record(
        &mut self,
        head: Head,
        record: PayloadRecord,
        fill: impl FnOnce(*mut u64),
    ) {
        self.taken = self.taken.wrapping_add(record.advance);
        self.next = record.next;
        self.publish(head, fill);
    }
}
