//! The receive buffers that all lanes of an endpoint share: in one queue, or in a queue of each
//! lane on a device without shared queues.

use std::sync::Arc;

use ferrofabric_contracts::error::Result;
use ferrofabric_verbs_sys::ibv_sge;

use super::super::POLL;
use super::census::Census;
use super::own_queues::{OwnQueues, ReceivingQueuePair};
use crate::mr::Access;
use crate::pd::Pd;
use crate::post::RecvRequest;
use crate::session::receive_wr_id;
use crate::slots::SlotPool;
use crate::srq::Srq;

/// The queues that the buffers are posted to.
enum ReceiveQueues {
    /// One for all queue pairs.
    Shared(Arc<Srq>),
    /// One for each queue pair.
    Own(OwnQueues),
}

pub(in super::super) struct ReceivePool {
    queue: ReceiveQueues,
    slots: SlotPool,
    /// Buffers to be posted again.
    spent: Vec<u32>,
    /// The number of buffers from which they are posted together.
    post_from: usize,
    /// Queue pairs that ended and may have taken a buffer each with them.
    suspects: usize,
    /// The search for those buffers.
    census: Option<Box<Census>>,
    /// One of the suspects has ended during the search.
    searches_again: bool,
}

impl ReceivePool {
    /// Makes `count` buffers, all posted to the shared queue if there is one.
    pub(in super::super) fn create(
        pd: &Arc<Pd>,
        shared: Option<Arc<Srq>>,
        count: usize,
        slot_bytes: usize,
    ) -> Result<Self> {
        let mut slots = SlotPool::create(pd, count, slot_bytes, Access::LOCAL_WRITE)?;
        let mut spent = Vec::with_capacity(count);
        spent.extend(std::iter::from_fn(|| slots.take()));
        let post_from = match shared {
            Some(_) => post_from(count),
            None => 1,
        };
        let queue = match shared {
            Some(queue) => ReceiveQueues::Shared(queue),
            None => ReceiveQueues::Own(OwnQueues::new(std::mem::take(&mut spent))),
        };
        let mut this = Self {
            queue,
            slots,
            spent,
            post_from,
            suspects: 0,
            census: None,
            searches_again: false,
        };
        this.post();
        Ok(this)
    }

    pub(in super::super) fn count(&self) -> usize {
        self.slots.count()
    }

    /// Buffers that are neither the device's nor in use.
    pub(in super::super) fn to_post(&self) -> usize {
        let free = match &self.queue {
            ReceiveQueues::Shared(_) => 0,
            ReceiveQueues::Own(queues) => queues.free(),
        };
        self.spent.len() + free
    }

    fn own_queues(&mut self) -> Option<&mut OwnQueues> {
        match &mut self.queue {
            ReceiveQueues::Shared(_) => None,
            ReceiveQueues::Own(queues) => Some(queues),
        }
    }

    /// A queue pair receives from now on. Without a shared queue it gets up to `depth` buffers.
    #[cold]
    pub(in super::super) fn open(
        &mut self,
        number: u32,
        queue_pair: ReceivingQueuePair,
        depth: usize,
    ) {
        if let Some(queues) = self.own_queues() {
            queues.open(number, queue_pair, depth);
            self.post();
        }
    }

    /// A queue pair goes to error.
    #[cold]
    pub(in super::super) fn ends(&mut self, number: u32) {
        if let Some(queues) = self.own_queues() {
            queues.ends(number);
        }
    }

    /// A buffer comes back without a packet: its queue pair is in error.
    #[cold]
    pub(in super::super) fn flushed(&mut self, slot: u32) {
        if let Some(queues) = self.own_queues() {
            queues.flushed(slot);
        }
        self.give_back(slot);
    }

    /// A packet in a buffer waits for earlier ones.
    pub(in super::super) fn hold(&mut self, slot: u32) {
        if let Some(queues) = self.own_queues() {
            queues.hold(slot);
        }
    }

    /// Whether a queue pair in error has no buffer any more; `None` with a shared queue.
    pub(in super::super) fn is_empty(&self, number: u32) -> Option<bool> {
        match &self.queue {
            ReceiveQueues::Shared(_) => None,
            ReceiveQueues::Own(queues) => Some(queues.is_empty(number)),
        }
    }

    /// A queue pair was destroyed or reset.
    #[cold]
    pub(in super::super) fn close(&mut self, number: u32) {
        if let Some(queues) = self.own_queues() {
            queues.close(number);
            self.post();
        }
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

    /// Posts the freed buffers, if there are enough. Returns whether a search for lost buffers can
    /// go on.
    #[inline]
    pub(in super::super) fn post_if_enough(&mut self) -> bool {
        self.spent.len() >= self.post_from && self.post()
    }

    /// A queue pair has ended, and may have taken a buffer with it.
    #[cold]
    pub(super) fn suspect(&mut self) {
        if self.own_queues().is_some() {
            // Which buffers a queue pair had is known.
            return;
        }
        self.suspects += 1;
        // None may wait here while some are missing at the device.
        self.post_from = 1;
        self.searches_again = self.census.is_some();
        if self.census.is_none() {
            self.search();
        }
    }

    fn search(&mut self) {
        let census = Census::begin(self.slots.count(), &self.spent);
        self.census = Some(Box::new(census));
    }

    /// The search for lost buffers, once the queue has turned.
    pub(super) fn turned_census(&mut self) -> Option<&mut Census> {
        self.census
            .as_deref_mut()
            .filter(|census| census.has_turned())
    }

    /// Ends the search: the buffers that are away are lost, and free again.
    pub(super) fn end_search(&mut self) {
        let Some(census) = self.census.take() else {
            return;
        };
        let lost = census.away(&self.spent);
        if lost.len() > self.suspects {
            tracing::warn!("the device does not take shared receives in their order");
            (self.suspects, self.searches_again) = (0, false);
            self.post_from = post_from(self.slots.count());
            return;
        }
        tracing::debug!("{} receives were lost", lost.len());
        self.suspects -= lost.len();
        self.spent.extend(lost);
        if std::mem::take(&mut self.searches_again) && self.suspects > 0 {
            self.search();
        } else {
            self.suspects = 0;
            self.post_from = post_from(self.slots.count());
        }
    }

    /// Posts all freed buffers. Returns whether a search for lost buffers can go on.
    fn post(&mut self) -> bool {
        if let Some(census) = &mut self.census {
            census.posts(&self.spent);
        }
        let lkey = self.slots.lkey();
        let length = self.slots.slot_bytes() as u32;
        let queue = match &mut self.queue {
            ReceiveQueues::Shared(queue) => queue,
            ReceiveQueues::Own(queues) => {
                let slots = &self.slots;
                queues.post(&mut self.spent, |slot| {
                    let addr = slots.address(slot) as u64;
                    RecvRequest::new(receive_wr_id(slot), [ibv_sge { addr, length, lkey }])
                });
                return false;
            }
        };
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
            let posted = unsafe { RecvRequest::post_all_shared(&mut requests[..count], queue) };
            match posted {
                Ok(()) => self.spent.truncate(from),
                Err((error, taken)) => {
                    self.spent.drain(from..from + taken);
                    tracing::warn!("receives of {queue} not posted: {error}");
                    if self.census.is_some() {
                        // It has those for posted that were not.
                        self.search();
                    }
                    return false;
                }
            }
        }
        (self.census.as_ref()).is_some_and(|census| census.has_turned())
    }
}

/// The number of buffers that are posted together: a small part of all, because lanes may hold
/// some.
fn post_from(count: usize) -> usize {
    POLL.min(count / 4)
}
