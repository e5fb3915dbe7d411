//! Receive queues of single queue pairs: that of the data queue pair, and those of the lanes on a
//! device without shared queues. All take their buffers from one pool: each queue pair has a few
//! posted, and gets a buffer back when its packet was taken. Buffers of a queue pair that ends go to
//! the others.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Weak;

use super::super::POLL;
use super::requests::request;
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
    /// The number of those from which they are posted together.
    post_from: usize,
    /// That number now: 1 while a queue pair has too few.
    posts_now_from: usize,
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
    /// Posts buffers, at most [`POLL`]. Returns how many of them, from the first one on, are the
    /// device's now.
    fn post(&self, buffers: &[u32], slots: &SlotPool) -> usize {
        let Some(&first) = buffers.first().filter(|_| !self.is_ending) else {
            return 0;
        };
        let first = request(slots, first);
        if buffers.len() == 1 {
            return self.post_requests(&mut [first]);
        }
        let mut requests = [first; POLL];
        for (request_of, &slot) in requests.iter_mut().zip(buffers) {
            *request_of = request(slots, slot);
        }
        self.post_requests(&mut requests[..buffers.len()])
    }

    /// Posts requests for buffers. Returns how many were posted.
    fn post_requests(&self, requests: &mut [RecvRequest<1>]) -> usize {
        match &self.queue_pair {
            ReceivingQueuePair::Rc(qp) => qp.upgrade().map_or(0, |qp| post_to(&qp, requests)),
            ReceivingQueuePair::Ud(qp) => qp.upgrade().map_or(0, |qp| post_to(&qp, requests)),
        }
    }
}

fn post_to(qp: &Qp, requests: &mut [RecvRequest<1>]) -> usize {
    // SAFETY: `OwnQueue::post` made requests for buffers that are the device's until their receives
    // complete.
    match unsafe { RecvRequest::post_all(requests, qp) } {
        Ok(()) => requests.len(),
        Err((_, posted)) => posted,
    }
}

impl OwnQueues {
    /// No queue yet. Its buffers have these numbers, and all others smaller ones. They are posted
    /// again `post_from` at a time.
    pub(super) fn new(buffers: Range<u32>, post_from: usize) -> Self {
        Self {
            queues: HashMap::new(),
            places: vec![0; buffers.end as usize],
            returned: Vec::with_capacity(buffers.len()),
            post_from,
            posts_now_from: post_from,
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

    /// Whether there are enough returned buffers to post them.
    #[inline]
    pub(super) fn has_enough(&self) -> bool {
        self.returned.len() >= self.posts_now_from
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

    /// Whether the device has no buffer of a queue pair any more.
    pub(super) fn is_empty(&self, number: u32) -> bool {
        let is_its = |slot: &&u32| self.places[**slot as usize] == number;
        let is_empty = |queue: &OwnQueue| {
            let returned = self.returned.iter().filter(is_its).count();
            let held = self.held.iter().filter(is_its);
            let held = held.filter(|slot| !self.returned.contains(slot)).count();
            queue.buffers == returned + held
        };
        self.queues.get(&number).is_none_or(is_empty)
    }

    /// A queue pair was destroyed or reset: the device has no buffer of it any more.
    pub(super) fn close(&mut self, number: u32) {
        if self.queues.remove(&number).is_none() {
            return;
        }
        for (place, slot) in self.places.iter_mut().zip(0..) {
            if *place == number {
                *place = 0;
                // Held and returned ones come with their return, or the next post.
                if !self.held.contains(&slot) && !self.returned.contains(&slot) {
                    self.free.push(slot);
                }
            }
        }
    }

    /// Posts the returned buffers to the queue pairs that had them, and free ones to queue pairs
    /// that have too few.
    pub(super) fn post(&mut self, slots: &SlotPool) {
        let mut returned = std::mem::take(&mut self.returned);
        let mut rest = &returned[..];
        while let Some(&first) = rest.first() {
            let place = self.places[first as usize];
            let most = &rest[..rest.len().min(POLL)];
            let is_other = |slot: &u32| self.places[*slot as usize] != place;
            let of_one = most.iter().position(is_other).unwrap_or(most.len());
            let (buffers, others) = rest.split_at(of_one);
            self.post_again(place, buffers, slots);
            rest = others;
        }
        returned.clear();
        self.returned = returned;
        if !self.free.is_empty() {
            self.fill(slots);
        }
        self.posts_now_from = match self.free.is_empty() {
            true => self.post_from,
            false => 1,
        };
    }

    /// Posts buffers to the queue pair that had them. Those that it does not take are free.
    fn post_again(&mut self, place: u32, buffers: &[u32], slots: &SlotPool) {
        if !self.held.is_empty() {
            for slot in buffers {
                self.held.remove(slot);
            }
        }
        let mut posted = 0;
        if let Some(queue) = self.queues.get_mut(&place) {
            posted = queue.post(buffers, slots);
            queue.buffers -= buffers.len() - posted;
        }
        for &slot in &buffers[posted..] {
            self.places[slot as usize] = 0;
            self.free.push(slot);
        }
    }

    /// Posts free buffers to the queue pairs that have too few.
    #[cold]
    fn fill(&mut self, slots: &SlotPool) {
        for (number, queue) in &mut self.queues {
            while !queue.is_ending && queue.buffers < queue.depth {
                let Some(&slot) = self.free.last() else {
                    return;
                };
                if queue.post(&[slot], slots) == 0 {
                    break;
                }
                self.free.pop();
                self.places[slot as usize] = *number;
                queue.buffers += 1;
            }
        }
    }
}
