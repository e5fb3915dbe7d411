//! A lane: an RC queue pair under a session, and the requests posted to it.

use std::sync::Arc;

use ferrofabric_protocol::Time;
use ferrofabric_protocol::session::WINDOW;

use super::{LaneHead, LaneSendQueue, LaneTurn, LaneWqe, PacketBuffer, WqeKind};
use crate::qp::RcQp;
use crate::session::{SessionState, is_injected, is_reply_of};

/// A lane that is up, or being drained.
pub(crate) struct RcLane {
    // The queue pair goes first: the device uses the other fields.
    pub(crate) qp: Arc<RcQp>,
    pub(crate) head: LaneHead,
    pub(crate) session: SessionState,
    /// The longest packet that the peer accepts, in bytes.
    pub(crate) packet_bytes: usize,
    pub(crate) queue: LaneSendQueue,
    /// No request will be flushed: the lane waits for the end of the queue pair.
    pub(crate) unflushed: bool,
    /// The queue pair has rejected a request: requests that are entered behind it will not
    /// complete.
    pub(crate) refused: bool,
    /// Of an unflushed lane: how long it waits for the device to give back its receives.
    pub(crate) last_receive_due: Time,
    pub(crate) turn: LaneTurn,
}

impl RcLane {
    /// Whether a message can be posted now, and the session has a number for it.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.queue.has_room() && self.session.numbers.unconfirmed() < WINDOW
    }

    /// Whether a control message or a chunk can be posted now.
    pub(crate) fn has_reserved_room(&self) -> bool {
        self.queue.has_reserved_room() && self.session.numbers.unconfirmed() < WINDOW
    }

    /// Whether there may be something to post besides messages.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        let state = &self.session;
        !self.head.gate.is_open()
            || !state.control_messages.is_empty()
            || !state.reads.is_empty()
            || !state.writes.is_empty()
            || !state.resend_queue.is_empty()
            || state.envelopes.has_pulled()
    }

    /// Whether the lane has no work under way or waiting that could not go on over datagrams.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = &self.session;
        let small =
            |wqe: &LaneWqe| matches!(wqe.packet, PacketBuffer::Nowhere | PacketBuffer::Record(_));
        self.head.gate.is_open()
            && self.queue.iter().all(small)
            && self.queue.one_sided.is_empty()
            && state.control_messages.is_empty()
            && !state.envelopes.has_pulled()
            && state.reads.is_empty()
            && state.writes.is_empty()
            && state.receives.is_empty()
    }

    /// Injected messages that are not at the peer, and answers that are not posted.
    pub(crate) fn undelivered(&self) -> usize {
        let is_owed =
            |wqe: &&LaneWqe| matches!(&wqe.kind, WqeKind::Message(done) if is_injected(done));
        self.queue.iter().filter(is_owed).count() + self.session.undelivered()
    }

    /// As [`SessionState::has_part`], in the lane's queue, too.
    pub(crate) fn has_part(&self, parts: &[u64]) -> bool {
        let is_reply =
            |wqe: &LaneWqe| matches!(&wqe.kind, WqeKind::Message(done) if is_reply_of(done, parts));
        self.queue.iter().any(is_reply) || self.session.has_part(parts)
    }

    /// Has to be called when the session has something to send again, or has nothing left of that.
    pub(crate) fn reconsider(&mut self) {
        self.head.gate.reconsider(self.session.catches_up());
    }

    /// As [`LaneSendQueue::next`].
    #[inline]
    pub(crate) fn next(&mut self, signaled: bool) -> (u64, bool) {
        self.queue.next(self.head.key.session(), signaled)
    }
}
