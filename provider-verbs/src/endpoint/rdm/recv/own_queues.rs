//! Receive queues of single queue pairs: that of the data queue pair, and those of the lanes on a
//! device without shared queues. All take their buffers from one pool: each queue pair has a few
//! posted, and gets a buffer back when its packet was taken. Buffers of a queue pair that ends go to
//! the others.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Weak;

use super::buffers::request;
use crate::post::RecvRequest;
use crate::qp::{Qp, RcQp, UdQp};
use crate::slots::SlotPool;

/// A queue pair with a receive queue of its own. Others decide about its end.
pub(in super::super) enum ReceivingQueuePair {
    /// That of a lane.
    Rc(Weak<RcQp>),
    /// The data queue pair.
    Ud(Weak<UdQp>),
}

/// The receive queues of an endpoint.
pub(super) struct OwnQueues {
    /// By the number of the queue pair.
    queues: HashMap<u32, OwnQueue>,
    /// The queue pair of each buffer, by its number; 0: none.
    places: Vec<u32>,
    /// Buffers whose packets were taken.
    returned: Vec<u32>,
    /// Buffers without a queue pair.
    free: Vec<u32>,
    /// Buffers with a packet that waits for earlier ones.
    held: HashSet<u32>,
}

struct OwnQueue {
    queue_pair: ReceivingQueuePair,
    depth: usize,
    /// Its buffers: those that are posted, and those whose packets are in use.
    buffers: usize,
    /// The queue pair is in error: nothing is posted any more.
    is_ending: bool,
}

impl OwnQueue {
    fn post(&self, request: &mut RecvRequest<1>) -> bool {
        let post = |qp: &Qp, request: &mut RecvRequest<1>| {
            // SAFETY: the caller of `OwnQueues::post` made a request for a buffer that is the
            // device's until the receive completes.
            unsafe { request.post(qp) }.is_ok()
        };
        match &self.queue_pair {
            ReceivingQueuePair::Rc(qp) => qp.upgrade().is_some_and(|qp| post(&qp, request)),
            ReceivingQueuePair::Ud(qp) => qp.upgrade().is_some_and(|qp| post(&qp, request)),
        }
    }
}

impl OwnQueues {
    /// No queue yet. Its buffers have these numbers, and all others smaller ones.
    pub(super) fn new(buffers: Range<u32>) -> Self {
        Self {
            queues: HashMap::new(),
            places: vec![0; buffers.end as usize],
            returned: Vec::with_capacity(buffers.len()),
            free: buffers.collect(),
            held: HashSet::new(),
        }
    }

    /// Buffers that are neither the device's nor in use.
    pub(super) fn to_post(&self) -> usize {
        self.returned.len() + self.free.len()
    }

    /// A buffer is free again.
    #[inline]
    pub(super) fn give_back(&mut self, slot: u32) {
        self.returned.push(slot);
    }

    /// Whether buffers wait to be posted again.
    #[inline]
    pub(super) fn has_returned(&self) -> bool {
        !self.returned.is_empty()
    }

    /// Whether a queue pair has a queue here.
    pub(super) fn knows(&self, number: u32) -> bool {
        self.queues.contains_key(&number)
    }

    /// Enters a queue pair, with up to `depth` buffers.
    pub(super) fn open(&mut self, number: u32, queue_pair: ReceivingQueuePair, depth: usize) {
        let queue = OwnQueue {
            queue_pair,
            depth,
            buffers: 0,
            is_ending: false,
        };
        self.queues.insert(number, queue);
    }

    /// A queue pair is in error, or will be.
    pub(super) fn ends(&mut self, number: u32) {
        if let Some(queue) = self.queues.get_mut(&number) {
            queue.is_ending = true;
        }
    }

    /// The queue pair that had this buffer is in error.
    pub(super) fn flushed(&mut self, slot: u32) {
        self.ends(self.places[slot as usize]);
    }

    /// A packet in this buffer waits for earlier ones.
    pub(super) fn hold(&mut self, slot: u32) {
        self.held.insert(slot);
    }

    /// Whether a queue pair has no buffer any more.
    pub(super) fn is_empty(&self, number: u32) -> bool {
        self.queues
            .get(&number)
            .is_none_or(|queue| queue.buffers == 0)
    }

    /// A queue pair was destroyed or reset: the device has no buffer of it any more.
    pub(super) fn close(&mut self, number: u32) {
        if self.queues.remove(&number).is_none() {
            return;
        }
        for (place, slot) in self.places.iter_mut().zip(0..) {
            if *place == number {
                *place = 0;
                if !self.held.contains(&slot) {
                    self.free.push(slot);
                }
            }
        }
    }

    /// Posts the returned buffers to the queue pairs that had them, and free ones to queue pairs
    /// that have too few.
    pub(super) fn post(&mut self, slots: &SlotPool) {
        for slot in self.returned.drain(..) {
            self.held.remove(&slot);
            let place = &mut self.places[slot as usize];
            let queue = self.queues.get_mut(place);
            let is_posted = match queue {
                None => false,
                Some(queue) => {
                    let posted = !queue.is_ending && queue.post(&mut request(slots, slot));
                    queue.buffers -= usize::from(!posted);
                    posted
                }
            };
            if !is_posted {
                *place = 0;
                self.free.push(slot);
            }
        }
        if !self.free.is_empty() {
            self.fill(slots);
        }
    }

    /// Posts free buffers to the queue pairs that have too few.
    #[cold]
    fn fill(&mut self, slots: &SlotPool) {
        for (number, queue) in &mut self.queues {
            while !queue.is_ending && queue.buffers < queue.depth {
                let Some(slot) = self.free.pop() else {
                    return;
                };
                if !queue.post(&mut request(slots, slot)) {
                    self.free.push(slot);
                    break;
                }
                self.places[slot as usize] = *number;
                queue.buffers += 1;
            }
        }
    }
}
