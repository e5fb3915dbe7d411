//! The receiving side of a link: what came, what more is to come, and what is kept of it.

use std::collections::VecDeque;
use std::time::Instant;

use ferrofabric_contracts::types::IoBuf;

use super::sizes::{Quota, Used};
use crate::cma::{CmaPeer, Read};
use crate::incoming::{Incoming, IncomingTable};
use crate::ring::{Broken, Rx, Seen};

/// The receiving side.
pub(crate) struct LinkReceiver {
    rx: Rx,
    incoming: IncomingTable,
    /// The ids of messages that are read by CMA.
    reading: VecDeque<u32>,
    cma: Option<CmaPeer>,
    quota: Quota,
    /// What unexpected messages of its take, whether it was asked for envelopes only, and what they
    /// took then.
    held: Used,
    has_back_pressure: bool,
    held_before: Used,
}

impl LinkReceiver {
    pub(super) fn new(rx: Rx, cma: Option<CmaPeer>, quota: Quota) -> Self {
        Self {
            rx,
            incoming: IncomingTable::default(),
            reading: VecDeque::new(),
            cma,
            quota,
            held: Used::default(),
            has_back_pressure: false,
            held_before: Used::default(),
        }
    }

    /// The next slot, if it has been published.
    #[inline(always)]
    pub(super) fn peek(&self) -> Option<Seen> {
        self.rx.peek()
    }

    #[inline(always)]
    pub(super) fn prefetch(&self) {
        self.rx.prefetch();
    }

    /// The slot of the last `peek` is done with; true when the producer should be told soon.
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

    /// Whether no message is there in part.
    pub(super) fn is_idle(&self) -> bool {
        self.reading.is_empty() && self.incoming.is_empty()
    }

    /// Whether it keeps no unexpected message.
    pub(super) fn holds_nothing(&self) -> bool {
        self.held.messages == 0
    }

    /// Bytes of unexpected messages.
    #[cfg(test)]
    pub(super) fn held_bytes(&self) -> usize {
        self.held.bytes
    }

    /// The record of `len` bytes at `offset`, checked to lie in the payload ring.
    #[inline(always)]
    pub(crate) fn record(&self, offset: u32, len: usize) -> Result<*const u8, Broken> {
        self.rx.record(offset, len)
    }

    /// The messages of which more is to come.
    #[inline(always)]
    pub(crate) fn incoming(&mut self) -> &mut IncomingTable {
        &mut self.incoming
    }

    /// Its key among the endpoint's deliveries, of a message that goes into a receive.
    #[inline]
    pub(crate) fn delivery(&self, id: u32) -> Option<usize> {
        match self.incoming.get(id) {
            Some(Incoming::Matched(key)) => Some(key as usize),
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
    pub(crate) unsafe fn read_memory(&mut self, addr: u64, into: IoBuf, now: Instant) -> Read {
        match &mut self.cma {
            // SAFETY: the caller's promise.
            Some(cma) => unsafe { cma.read(addr, into, now) },
            None => Read::Refused,
        }
    }

    /// The peer's memory can not be read.
    pub(crate) fn give_up_cma(&mut self) {
        self.cma = None;
    }

    /// Whether messages are to be read by CMA.
    #[inline(always)]
    pub(crate) fn has_reads(&self) -> bool {
        !self.reading.is_empty()
    }

    /// The next of them.
    pub(crate) fn next_read(&mut self) -> Option<u32> {
        self.reading.pop_front()
    }

    /// A message is to be read by CMA, after the others.
    pub(crate) fn read_on(&mut self, id: u32) {
        self.reading.push_back(id);
    }

    /// No message is to be read any more.
    pub(crate) fn forget_reads(&mut self) {
        self.reading.clear();
    }

    /// Gives memory back that a burst needed.
    pub(super) fn shrink_to(&mut self, entries: usize) {
        self.reading.shrink_to(entries);
    }

    /// Whether the peer has heeded that it was asked for envelopes only, as far as it can have.
    pub(crate) fn heeds_back_pressure(&self) -> bool {
        !(self.has_back_pressure && self.held.is_beyond_what_follows(self.held_before))
    }

    /// An unexpected message is kept.
    pub(crate) fn hold(&mut self, taken: Used) {
        self.held.add(taken);
    }

    /// An unexpected message is done with.
    pub(crate) fn release(&mut self, freed: Used) {
        self.held.take(freed);
    }

    /// Asks the peer for envelopes only when too much is kept, of it or of all (`all_is_over`), and
    /// lifts that again. True when the peer has to be told.
    pub(super) fn update_back_pressure(&mut self, all_is_over: bool) -> bool {
        let change = match self.has_back_pressure {
            false => all_is_over || self.quota.is_exceeded(self.held),
            true => !all_is_over && self.quota.is_half_free(self.held),
        };
        if change {
            self.has_back_pressure = !self.has_back_pressure;
            self.held_before = self.held;
            self.rx.set_back_pressure(self.has_back_pressure);
        }
        change
    }
}
