//! The completion queue that all lanes of an endpoint share.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, OpError, Result};
use ferrofabric_protocol::lanes::{AfterLane, LaneEnd};
use ferrofabric_verbs_sys::ibv_wc;

use super::POLL;
use crate::cq::{CompChannel, Cq};

/// Polls that may fail in a row.
const FAILURES: u32 = 64;

pub(super) struct Completions {
    queue: Arc<Cq>,
    channel: Arc<CompChannel>,
    /// The next completion wakes.
    armed: bool,
    /// Polls that have failed since the last that brought something.
    failures: u32,
    /// The end of all lanes, once the device or a queue has failed for good.
    end: Option<LaneEnd>,
}

impl Completions {
    pub(super) fn new(queue: Arc<Cq>, channel: Arc<CompChannel>) -> Self {
        Self {
            queue,
            channel,
            armed: false,
            failures: 0,
            end: None,
        }
    }

    /// Takes as many completions as there are, up to the room in `into`.
    ///
    /// # Errors
    ///
    /// The queue could not be polled.
    #[inline]
    pub(super) fn poll<'a>(
        &mut self,
        room: &'a mut [MaybeUninit<ibv_wc>; POLL],
    ) -> std::result::Result<&'a [ibv_wc], OpError> {
        match self.queue.poll(room) {
            Ok(completions) => {
                if !completions.is_empty() {
                    self.failures = 0;
                    self.armed = false;
                }
                Ok(completions)
            }
            Err(error) => Err(self.failed(error)),
        }
    }

    #[cold]
    fn failed(&mut self, error: OpError) -> OpError {
        if self.failures == 0 {
            tracing::error!("completion queue of {} failed: {error}", self.device());
        }
        self.failures = self.failures.saturating_add(1);
        error
    }

    /// Whether the last poll has determined how many completions there are, or no poll ever will.
    #[inline]
    pub(super) fn has_polled(&self) -> bool {
        self.failures == 0 || self.is_dead()
    }

    /// Whether the queue failed for good.
    pub(super) fn is_dead(&self) -> bool {
        self.failures >= FAILURES || self.end.is_some()
    }

    /// The reason for which nothing completes any more.
    pub(super) fn end(&self) -> Option<LaneEnd> {
        self.end
    }

    /// Nothing completes any more, for this reason, unless there was one before. Returns the
    /// reason, and whether it is new.
    #[cold]
    pub(super) fn fail_for_good(&mut self, why: &'static str) -> (LaneEnd, bool) {
        let is_new = self.end.is_none();
        let end = *self.end.get_or_insert(LaneEnd {
            errno: Errno::EIO,
            why,
            status: 0,
            then: AfterLane::Fail,
        });
        (end, is_new)
    }

    /// Arms the queue: the next completion wakes. Returns false when the queue was not armed
    /// before: an earlier completion does not wake, so the caller polls once more and calls again.
    ///
    /// # Errors
    ///
    /// An error of the device.
    pub(super) fn arm(&mut self) -> Result<bool> {
        if self.armed {
            return Ok(true);
        }
        while self.channel.take_event()?.is_some() {}
        (self.queue.arm(false)).map_err(|e| Error::new(e.errno(), "arm", "completion queue"))?;
        self.armed = true;
        Ok(false)
    }

    /// The number of polls that take everything that is in the queue now.
    pub(super) fn polls_that_empty_it(&self) -> usize {
        self.queue.depth() as usize / POLL + 1
    }

    /// Name of the device.
    pub(super) fn device(&self) -> &str {
        self.queue.context().name()
    }

    /// Whether this process opened the device, and not the one that it was forked from.
    pub(super) fn is_own(&self) -> bool {
        self.queue.context().is_own()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
