//! The end of queue pairs that belong to no lane any more.
//!
//! A queue pair in error may hold a receive of the shared queue whose message has begun. The device
//! flushes it at a time of its own, maybe behind all requests of the send queue, and reports the
//! last one by an event. With the queue pair, receives would go that are not flushed yet, and
//! completions that are not taken yet.

use std::sync::Arc;
use std::time::Duration;

use ferrofabric_protocol::Time;

use super::super::RdmTransport;
use super::super::endings::{Ending, RetiredQueuePair};
use crate::device::Quirks;
use crate::qp::{Qp, RcQp};

/// How long a queue pair waits for the report of its last receive. Devices flush in microseconds
/// to milliseconds.
const LAST_RECEIVE_TIME: Duration = Duration::from_millis(100);

impl RdmTransport {
    /// How long a queue pair that goes to error now waits for the report of its last receive.
    pub(in super::super) fn last_receive_deadline(&self) -> Time {
        self.ud.now() + LAST_RECEIVE_TIME
    }

    /// Ends a queue pair in error, once the device has given back its receives. Its Resume may lie
    /// in a slot.
    pub(super) fn retire(&mut self, qp: Arc<RcQp>, slot: Option<u32>) {
        let quirks = qp.pd().context().quirks();
        let retired = RetiredQueuePair {
            slot,
            until: self.last_receive_deadline(),
            has_last_receive: quirks.contains(Quirks::LAST_RECEIVE_NOT_REPORTED),
            qp,
        };
        self.ending.push(Ending::QueuePair(retired));
    }

    /// Ends the queue pair of an unflushed lane, which has waited for the report of its last
    /// receive.
    pub(super) fn end_unflushed(&mut self, qp: Arc<RcQp>) {
        let has_last_receive = self.has_receives_back(&qp);
        self.destroy(qp, has_last_receive);
    }

    /// Whether the device has given back all receives of a queue pair in error, as far as it says.
    pub(in super::super) fn has_receives_back(&self, qp: &Qp) -> bool {
        let has_none = self.receives.is_empty(qp.number());
        has_none.unwrap_or_else(|| qp.has_reached_last_receive())
    }

    /// Destroys a queue pair in this thread: afterwards it uses no memory, and its held receive is
    /// back or lost.
    fn destroy(&mut self, qp: Arc<RcQp>, has_last_receive: bool) {
        let (number, may_lose) = (qp.number(), may_lose_receive(&qp, has_last_receive));
        drop(qp);
        self.receives.close(number);
        if may_lose {
            self.suspect_lost_receive();
        }
    }

    /// Everything that was in the completion queue was taken. Returns whether the queue pair has
    /// ended.
    pub(super) fn end_queue_pair(&mut self, mut retired: RetiredQueuePair) -> bool {
        if !retired.has_last_receive {
            retired.has_last_receive = self.has_receives_back(&retired.qp);
            // The service thread may have the queue pair yet, and the device its own receives.
            let may_flush = Arc::strong_count(&retired.qp) > 1
                && self.receives.is_empty(retired.qp.number()) == Some(false);
            if retired.has_last_receive || may_flush || self.ud.now() < retired.until {
                // Receives may have been flushed since the last poll.
                self.ending.push(Ending::QueuePair(retired));
                return false;
            }
        }
        match retired.slot {
            None if !may_lose_receive(&retired.qp, retired.has_last_receive) => {
                self.receives.close(retired.qp.number());
                self.service.verbs().destroy(retired.qp);
            }
            None => self.destroy(retired.qp, retired.has_last_receive),
            Some(slot) => {
                self.destroy(retired.qp, retired.has_last_receive);
                self.resume_slots.give(slot);
            }
        }
        true
    }
}

/// Whether a receive of the shared queue may go with a queue pair.
fn may_lose_receive(qp: &RcQp, has_last_receive: bool) -> bool {
    let quirks = qp.pd().context().quirks();
    quirks.contains(Quirks::HELD_RECEIVE_LOST) || !has_last_receive
}
