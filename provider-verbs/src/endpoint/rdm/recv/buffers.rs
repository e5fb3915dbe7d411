//! The receive buffers of an endpoint. Lanes take theirs from a shared queue, on a device that has
//! one. The data queue pair has its own queue: a datagram that finds no receive is lost, so
//! connections that send faster than this side receives would keep all datagrams out.

use std::sync::Arc;

use ferrofabric_contracts::error::Result;

use super::census::Census;
use super::own_queues::{OwnQueues, ReceivingQueuePair};
use super::shared_queue::{SharedQueue, post_from};
use crate::mr::Access;
use crate::pd::Pd;
use crate::slots::SlotPool;
use crate::srq::Srq;
use crate::tuning::Tuning;

pub(in super::super) struct ReceivePool {
    /// It has no buffers on a device without shared queues: there each lane has its own queue.
    shared: SharedQueue,
    own: OwnQueues,
    slots: SlotPool,
}

impl ReceivePool {
    /// Makes the buffers. Those of lanes that share a queue are posted to it.
    pub(in super::super) fn create(
        pd: &Arc<Pd>,
        shared: Option<Arc<Srq>>,
        tuning: &Tuning,
    ) -> Result<Self> {
        let count = tuning.receives;
        let mut slots = SlotPool::create(pd, count, tuning.slot_bytes(), Access::LOCAL_WRITE)?;
        while slots.take().is_some() {}
        let of_datagrams = tuning.datagram_receives;
        // A lane with its own queue has few buffers, and needs each of them.
        let (of_shared, post_own_from) = match shared {
            Some(_) => (count - of_datagrams, post_from(of_datagrams)),
            None => (0, 1),
        };
        let mut this = Self {
            shared: SharedQueue::new(shared, of_shared),
            own: OwnQueues::new(of_shared as u32..count as u32, post_own_from),
            slots,
        };
        this.shared.post(&this.slots);
        Ok(this)
    }

    pub(in super::super) fn count(&self) -> usize {
        self.slots.count()
    }

    /// Buffers that are neither the device's nor in use.
    pub(in super::super) fn to_post(&self) -> usize {
        self.shared.to_post() + self.own.to_post()
    }

    /// A queue pair with its own receive queue receives from now on. It gets up to `depth`
    /// buffers.
    #[cold]
    pub(in super::super) fn open(
        &mut self,
        number: u32,
        queue_pair: ReceivingQueuePair,
        depth: usize,
    ) {
        self.own.open(number, queue_pair, depth);
        self.own.post(&self.slots);
    }

    /// The same for the queue pair of a lane, unless it takes its receives from the shared queue.
    #[cold]
    pub(in super::super) fn open_lane(
        &mut self,
        number: u32,
        queue_pair: ReceivingQueuePair,
        depth: usize,
    ) {
        if !self.shared.is_there() {
            self.open(number, queue_pair, depth);
        }
    }

    /// A queue pair goes to error.
    #[cold]
    pub(in super::super) fn ends(&mut self, number: u32) {
        self.own.ends(number);
    }

    /// A buffer comes back without a packet: its queue pair is in error.
    #[cold]
    pub(in super::super) fn flushed(&mut self, slot: u32) {
        self.own.flushed(slot);
        self.give_back(slot);
    }

    /// A packet of a datagram in a buffer waits for earlier ones.
    pub(in super::super) fn hold(&mut self, slot: u32) {
        self.own.hold(slot);
    }

    /// Whether the device has no buffer of a queue pair in error any more; `None` where the queue
    /// pair takes them from the shared queue.
    pub(in super::super) fn is_empty(&self, number: u32) -> Option<bool> {
        let is_own = self.own.knows(number) || !self.shared.is_there();
        is_own.then(|| self.own.is_empty(number))
    }

    /// A queue pair was destroyed or reset.
    #[cold]
    pub(in super::super) fn close(&mut self, number: u32) {
        self.own.close(number);
        self.own.post(&self.slots);
    }

    #[inline]
    pub(in super::super) fn slot_bytes(&self) -> usize {
        self.slots.slot_bytes()
    }

    /// Whether there is a buffer of that number.
    #[inline]
    pub(in super::super) fn has(&self, slot: u32) -> bool {
        self.slots.has(slot)
    }

    #[inline]
    pub(in super::super) fn address(&self, slot: u32) -> *mut u8 {
        self.slots.address(slot)
    }

    /// A buffer is free again. It goes back to the device, maybe together with others.
    #[inline]
    pub(in super::super) fn give_back(&mut self, slot: u32) {
        match self.shared.has(slot) {
            true => self.shared.give_back(slot),
            false => self.own.give_back(slot),
        }
    }

    /// Posts the freed buffers, if there are enough. Returns whether a search for lost buffers can
    /// go on.
    #[inline]
    pub(in super::super) fn post_if_enough(&mut self) -> bool {
        if self.own.has_enough() {
            self.own.post(&self.slots);
        }
        self.shared.has_enough() && self.shared.post(&self.slots)
    }

    /// The queue pair of a lane has ended, and may have taken a buffer with it.
    #[cold]
    pub(super) fn suspect(&mut self) {
        self.shared.suspect();
    }

    /// The search for lost buffers, once the queue has turned.
    pub(super) fn turned_census(&mut self) -> Option<&mut Census> {
        self.shared.turned_census()
    }

    /// Ends the search: the buffers that are away are lost, and free again.
    pub(super) fn end_search(&mut self) {
        self.shared.end_search();
    }
}
