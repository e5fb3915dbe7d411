//! The receiving side of a link: its ring, its incomplete messages, and its unexpected messages.

use std::collections::VecDeque;
use std::time::Instant;

use ferrofabric_contracts::types::IoBuf;

use super::sizes::{Quota, Used};
use crate::cma::{CmaPeer, CopyOutcome, CopyWay};
use crate::incoming::{IncomingState, IncomingTable};
use crate::ring::{LinkViolation, PublishedSlot, RingConsumer, SLOTS};

/// The receiving side.
pub(crate) struct LinkReceiver {
    rx: RingConsumer,
    incoming: IncomingTable,
    /// The ids of messages to read by CMA.
    reading: VecDeque<u32>,
    cma: Option<CmaPeer>,
    quota: Quota,
    /// The memory of the link's unexpected messages, whether envelopes only are requested, and the
    /// memory at the time of that request.
    unexpected: Used,
    has_back_pressure: bool,
    unexpected_before: Used,
    /// Whole messages with bytes that were kept since that request.
    whole_since: usize,
}

impl LinkReceiver {
    pub(super) fn new(rx: RingConsumer, cma: Option<CmaPeer>, quota: Quota) -> Self {
        Self {
            rx,
            incoming: IncomingTable::default(),
            reading: VecDeque::new(),
            cma,
            quota,
            unexpected: Used::default(),
            has_back_pressure: false,
            unexpected_before: Used::default(),
            whole_since: 0,
        }
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<PublishedSlot> {
        self.rx.peek()
    }

    /// The slot at a position from the next one on, if it has been published.
    pub(super) fn peek_ahead(&self, position: u32) -> Option<PublishedSlot> {
        self.rx.peek_ahead(position)
    }

    #[inline(always)]
    pub(super) fn prefetch(&self) {
        self.rx.prefetch();
    }

    /// Consumes the slot of the last `peek`; true if the caller should publish its progress soon.
    #[inline(always)]
    pub(super) fn consume(&mut self, record_bytes: usize) -> bool {
        self.rx.consume(record_bytes)
    }

    #[inline(always)]
    pub(super) fn has_unpublished_tail(&self) -> bool {
        self.rx.has_unpublished_tail()
    }

    #[inline(always)]
    pub(super) fn publish_tail(&mut self) {
        self.rx.publish_tail();
    }

    /// Slots taken so far, modulo 2³².
    pub(super) fn consumed(&self) -> u32 {
        self.rx.consumed()
    }

    /// Whether no message is incomplete.
    pub(super) fn is_idle(&self) -> bool {
        self.reading.is_empty() && self.incoming.is_empty()
    }

    /// Whether there is no unexpected message.
    pub(super) fn has_no_unexpected(&self) -> bool {
        self.unexpected.messages == 0
    }

    /// Bytes of unexpected messages.
    #[cfg(test)]
    pub(super) fn unexpected_bytes(&self) -> usize {
        self.unexpected.bytes
    }

    /// The record of `len` bytes at `offset`, checked to lie in the payload ring.
    #[inline(always)]
    pub(crate) fn record(&self, offset: u32, len: usize) -> Result<*const u8, LinkViolation> {
        self.rx.record(offset, len)
    }

    /// The incomplete messages.
    #[inline(always)]
    pub(crate) fn incoming(&mut self) -> &mut IncomingTable {
        &mut self.incoming
    }

    /// The key of a message among the endpoint's deliveries, if the message goes into a receive.
    #[inline]
    pub(crate) fn delivery(&self, id: u32) -> Option<usize> {
        match self.incoming.get(id) {
            Some(IncomingState::Matched(key)) => Some(key as usize),
            _ => None,
        }
    }

    /// Whether the peer's memory can be read, as far as known.
    #[inline(always)]
    pub(crate) fn has_cma(&self) -> bool {
        self.cma.is_some()
    }

    /// Reads the peer's memory.
    ///
    /// # Safety
    ///
    /// `into` is valid for writes.
    pub(crate) unsafe fn read_memory(
        &mut self,
        addr: u64,
        into: IoBuf,
        now: Instant,
    ) -> CopyOutcome {
        match &mut self.cma {
            // SAFETY: the caller's contract.
            Some(cma) => unsafe { cma.read(addr, into, now) },
            None => CopyOutcome::Refused,
        }
    }

    /// Copies between the peer's memory from `addr` on and buffers.
    ///
    /// # Safety
    ///
    /// The buffers are valid: for writes if the peer's memory is read, else for reads.
    pub(super) unsafe fn copy_memory(
        &mut self,
        way: CopyWay,
        addr: u64,
        buffers: &[IoBuf],
        now: Instant,
    ) -> CopyOutcome {
        match &mut self.cma {
            // SAFETY: the caller's contract.
            Some(cma) => unsafe { cma.copy_list(way, addr, buffers, now) },
            None => CopyOutcome::Refused,
        }
    }

    /// The peer's memory can not be read any more.
    pub(crate) fn give_up_cma(&mut self) {
        self.cma = None;
    }

    /// Whether messages are to be read by CMA.
    #[inline(always)]
    pub(crate) fn has_reads(&self) -> bool {
        !self.reading.is_empty()
    }

    /// The next message to read by CMA.
    pub(crate) fn next_read(&mut self) -> Option<u32> {
        self.reading.pop_front()
    }

    /// Adds a message to be read by CMA, after the others.
    pub(crate) fn read_on(&mut self, id: u32) {
        self.reading.push_back(id);
    }

    /// Cancels all reads.
    pub(crate) fn cancel_reads(&mut self) {
        self.reading.clear();
    }

    /// Gives memory back that a burst needed.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.reading.shrink_to(entries);
    }

    /// Whether the peer obeys the request for envelopes only, as far as it can have seen it.
    pub(crate) fn obeys_back_pressure(&self) -> bool {
        // The ring was full, and the peer looks at the request when it knows of no free slot.
        const WHOLE: usize = 2 * SLOTS;
        let unexpected = self.unexpected;
        !(self.has_back_pressure
            && (self.whole_since > WHOLE
                || unexpected.is_beyond_what_follows(self.unexpected_before)))
    }

    /// Counts an unexpected message that is kept, and came whole or not.
    pub(crate) fn count_unexpected(&mut self, taken: Used, is_whole: bool) {
        self.unexpected.add(taken);
        self.whole_since += usize::from(is_whole);
    }

    /// Counts an unexpected message that is freed.
    pub(crate) fn release(&mut self, freed: Used) {
        self.unexpected.take(freed);
    }

    /// Requests envelopes only if the messages of this link, or of all links (`all_is_over`),
    /// exceed their quota; lifts that request again. True if the change must be published.
    pub(super) fn update_back_pressure(&mut self, all_is_over: bool) -> bool {
        let change = match self.has_back_pressure {
            false => all_is_over || self.quota.is_exceeded(self.unexpected),
            true => !all_is_over && self.quota.is_half_free(self.unexpected),
        };
        if change {
            self.has_back_pressure = !self.has_back_pressure;
            self.unexpected_before = self.unexpected;
            self.whole_since = 0;
            self.rx.set_back_pressure(self.has_back_pressure);
        }
        change
    }
}
