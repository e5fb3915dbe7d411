//! The receive buffers that all lanes of an endpoint share.

use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::ibv_sge;

use super::super::POLL;
use crate::mr::Access;
use crate::pd::Pd;
use crate::post::RecvRequest;
use crate::session::receive_wr_id;
use crate::slots::SlotPool;
use crate::srq::Srq;

pub(in super::super) struct ReceivePool {
    queue: Arc<Srq>,
    slots: SlotPool,
    /// Buffers to be posted again.
    spent: Vec<u32>,
    /// The number of buffers from which they are posted together: a small part of all, because
    /// lanes may hold some.
    post_from: usize,
}

impl ReceivePool {
    /// Makes `count` buffers, all posted to the queue.
    pub(in super::super) fn create(
        pd: &Arc<Pd>,
        queue: Arc<Srq>,
        count: usize,
        slot_bytes: usize,
    ) -> Result<Self> {
        let mut slots = SlotPool::create(pd, count, slot_bytes, Access::LOCAL_WRITE)?;
        let mut spent = Vec::with_capacity(count);
        spent.extend(std::iter::from_fn(|| slots.take()));
        let mut this = Self {
            queue,
            slots,
            spent,
            post_from: POLL.min(count / 4),
        };
        this.post();
        Ok(this)
    }

    pub(in super::super) fn count(&self) -> usize {
        self.slots.count()
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

    /// A buffer is free again. It goes back to the device together with others.
    #[inline]
    pub(in super::super) fn give_back(&mut self, slot: u32) {
        self.spent.push(slot);
    }

    /// Posts the freed buffers, if there are enough.
    #[inline]
    pub(in super::super) fn post_if_enough(&mut self) {
        if self.spent.len() >= self.post_from {
            self.post();
        }
    }

    fn post(&mut self) {
        let lkey = self.slots.lkey();
        let length = self.slots.slot_bytes() as u32;
        while !self.spent.is_empty() {
            let from = self.spent.len().saturating_sub(POLL);
            let request = |slot: u32| {
                let addr = self.slots.address(slot) as u64;
                RecvRequest::new(receive_wr_id(slot), [ibv_sge { addr, length, lkey }])
            };
            let mut requests = [request(self.spent[from]); POLL];
            let count = self.spent.len() - from;
            for (request_of, &slot) in requests.iter_mut().zip(&self.spent[from..]) {
                *request_of = request(slot);
            }
            // SAFETY: the slots are the device's until their receives complete.
            let posted =
                unsafe { RecvRequest::post_all_shared(&mut requests[..count], &self.queue) };
            match posted {
                Ok(()) => self.spent.truncate(from),
                Err((error, taken)) => {
                    self.spent.drain(from..from + taken);
                    tracing::warn!("receives of {} not posted: {error}", self.queue);
                    return;
                }
            }
        }
    }
}
