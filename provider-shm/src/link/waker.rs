//! The status words of a link's two sides, and how one side wakes the other.

use std::sync::Arc;

use crate::hazard::Hazard;
use crate::segment::{SegmentSide, ShmSegment};
use crate::service::{EndpointShared, NewLink};
use crate::stats::ShmStats;
use crate::status::{SLEEPS, Status, WANTS_ROOM, waker_fence};

/// Wakes the peer of a link, and publishes to it that the link is closed.
pub(super) struct PeerWaker {
    segment: Arc<ShmSegment>,
    shared: Arc<EndpointShared>,
    /// The id of the peer's endpoint.
    peer: u64,
    side: SegmentSide,
    /// Both sides are this endpoint.
    is_loopback: bool,
    /// Whether this side needs a fence, because the peer's barrier does not cover it.
    fence: bool,
}

impl PeerWaker {
    pub(super) fn new(new: &NewLink, shared: &Arc<EndpointShared>, is_loopback: bool) -> Self {
        Self {
            segment: Arc::clone(&new.segment),
            shared: Arc::clone(shared),
            peer: new.id,
            side: new.side,
            is_loopback,
            fence: new.fence,
        }
    }

    /// The id of the peer's endpoint.
    pub(super) fn peer(&self) -> u64 {
        self.peer
    }

    pub(super) fn segment(&self) -> &Arc<ShmSegment> {
        &self.segment
    }

    #[inline(always)]
    pub(super) fn own_status(&self) -> &Status {
        self.segment.status(self.side)
    }

    /// The hazard word of our side.
    #[inline]
    pub(super) fn own_hazard(&self) -> &Hazard {
        self.segment.hazard(self.side)
    }

    #[inline(always)]
    pub(super) fn peer_status(&self) -> &Status {
        self.segment.status(match (self.side, self.is_loopback) {
            (SegmentSide::Initiator, false) => SegmentSide::Acceptor,
            _ => SegmentSide::Initiator,
        })
    }

    /// Wakes the peer if it sleeps, after a publication.
    #[inline(always)]
    pub(super) fn wake_if_asleep(&self, stats: &mut ShmStats) {
        self.wake_if(SLEEPS, stats);
    }

    /// Wakes the peer if it sleeps until it has room, after room became free.
    #[inline(always)]
    pub(super) fn wake_if_waits_for_room(&self, stats: &mut ShmStats) {
        self.wake_if(WANTS_ROOM, stats);
    }

    #[inline(always)]
    fn wake_if(&self, flag: u32, stats: &mut ShmStats) {
        waker_fence(self.fence);
        if self.peer_status().load() & flag != 0 {
            self.wake(stats);
        }
    }

    #[cold]
    fn wake(&self, stats: &mut ShmStats) {
        if self.peer_status().take_wake_request() {
            stats.doorbells += 1;
            self.shared.ring(self.peer);
        }
    }

    /// Publishes that this side uses the segment no more.
    pub(super) fn close(&self) {
        // A child process that inherited the link must not end it.
        if self.shared.is_ours() {
            self.own_status().close();
        }
    }
}
