//! The receive queue that all lanes of an endpoint share, and its buffers.

use std::sync::Arc;

use super::super::POLL;
use super::census::Census;
use super::requests::request;
use crate::post::RecvRequest;
use crate::slots::SlotPool;
use crate::srq::Srq;

pub(super) struct SharedQueue {
    /// `None`: it has no buffers.
    queue: Option<Arc<Srq>>,
    /// Its buffers are those with smaller numbers.
    count: usize,
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

impl SharedQueue {
    /// A queue of `count` buffers, none of which is posted yet.
    pub(super) fn new(queue: Option<Arc<Srq>>, count: usize) -> Self {
        Self {
            queue,
            count,
            spent: (0..count as u32).collect(),
            post_from: post_from(count),
            suspects: 0,
            census: None,
            searches_again: false,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether a buffer is one of this queue.
    #[inline]
    pub(super) fn has(&self, slot: u32) -> bool {
        (slot as usize) < self.count
    }

    /// Buffers that are neither the device's nor in use.
    pub(super) fn to_post(&self) -> usize {
        self.spent.len()
    }

    #[inline]
    pub(super) fn give_back(&mut self, slot: u32) {
        self.spent.push(slot);
    }

    /// Whether there are enough buffers to post them.
    #[inline]
    pub(super) fn has_enough(&self) -> bool {
        self.spent.len() >= self.post_from
    }

    /// A queue pair has ended, and may have taken a buffer with it.
    #[cold]
    pub(super) fn suspect(&mut self) {
        if self.queue.is_none() {
            // Which buffers a queue pair with its own queue had is known.
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
        let census = Census::begin(self.count, &self.spent);
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
            self.post_from = post_from(self.count);
            return;
        }
        tracing::debug!("{} receives were lost", lost.len());
        self.suspects -= lost.len();
        self.spent.extend(lost);
        if std::mem::take(&mut self.searches_again) && self.suspects > 0 {
            self.search();
        } else {
            self.suspects = 0;
            self.post_from = post_from(self.count);
        }
    }

    /// Posts all freed buffers. Returns whether a search for lost buffers can go on.
    pub(super) fn post(&mut self, slots: &SlotPool) -> bool {
        let Some(queue) = &self.queue else {
            return false;
        };
        if let Some(census) = &mut self.census {
            census.posts(&self.spent);
        }
        while !self.spent.is_empty() {
            let from = self.spent.len().saturating_sub(POLL);
            let mut requests = [request(slots, self.spent[from]); POLL];
            let count = self.spent.len() - from;
            for (request_of, &slot) in requests.iter_mut().zip(&self.spent[from..]) {
                *request_of = request(slots, slot);
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
pub(super) fn post_from(count: usize) -> usize {
    POLL.min(count / 4).max(1)
}
