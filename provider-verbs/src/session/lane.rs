//! A lane: an RC queue pair under a session, and the requests posted to it.

use std::sync::Arc;

use ferrofabric_protocol::Time;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::session::WINDOW;
use ferrofabric_protocol::wire::SessionId;

use super::send_queue::{LaneSendQueue, LaneWqe, PacketBuffer, WqeKind};
use super::state::{SessionState, is_injected, is_reply_of};
use super::turns::LaneTurn;
use crate::qp::RcQp;

/// A lane that is up, or being drained.
pub(crate) struct RcLane {
    // The queue pair goes first: the device uses the other fields.
    pub(crate) qp: Arc<RcQp>,
    pub(crate) key: LaneKey,
    pub(crate) peer: u32,
    pub(crate) session: SessionState,
    /// Messages may be posted: the peer's end is up, no packet has to be sent again, and the lane
    /// is not failing.
    pub(crate) open: bool,
    /// The peer's end is up.
    pub(crate) may_send: bool,
    /// The longest packet that the peer accepts, in bytes.
    pub(crate) packet_bytes: usize,
    pub(crate) heard: bool,
    pub(crate) queue: LaneSendQueue,
    /// The lane is closing: its queue pair is in error.
    pub(crate) is_ending: bool,
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
        !self.open
            || !state.control_messages.is_empty()
            || !state.reads.is_empty()
            || !state.writes.is_empty()
            || !state.resend_queue.is_empty()
            || state.envelopes.has_pulled()
    }

    /// Whether anything but replayed packets can be posted.
    pub(crate) fn is_usable(&self) -> bool {
        self.may_send && !self.is_ending
    }

    /// Whether the lane has no work under way or waiting that could not go on over datagrams.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = &self.session;
        let small =
            |wqe: &LaneWqe| matches!(wqe.packet, PacketBuffer::Nowhere | PacketBuffer::Record(_));
        self.open
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

    /// Has to be called when a condition of `open` has changed.
    pub(crate) fn reconsider(&mut self) {
        self.open = self.is_usable() && !self.session.catches_up();
    }

    /// As [`LaneSendQueue::next`].
    #[inline]
    pub(crate) fn next(&mut self, signaled: bool) -> (u64, bool) {
        self.queue.next(self.key.session(), signaled)
    }
}

/// A lane has the name of the session that began with it.
pub(crate) trait NamedLane {
    fn session(&self) -> SessionId;
}

impl NamedLane for RcLane {
    #[inline]
    fn session(&self) -> SessionId {
        self.key.session()
    }
}

/// The lanes of one kind of an endpoint, by the name that data packets to this endpoint give them.
pub(crate) struct LaneTable<L = RcLane> {
    slots: Vec<Option<Box<L>>>,
    /// Lanes whose place in the table has another lane already: the service thread uses the place
    /// again as soon as a lane is down, and here a lane stays until all its requests are flushed.
    leaving: Vec<L>,
}

impl<L> Default for LaneTable<L> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            leaving: Vec::new(),
        }
    }
}

impl<L: NamedLane> LaneTable<L> {
    /// Enters a lane.
    pub(crate) fn insert(&mut self, lane: L) {
        let at = lane.session().index();
        if self.slots.len() <= at {
            self.slots.resize_with(at + 1, || None);
        }
        let before = self.slots[at].replace(Box::new(lane));
        self.leaving.extend(before.map(|lane| *lane));
    }

    /// The lane of a session, if it still exists.
    #[inline]
    pub(crate) fn of(&mut self, session: SessionId) -> Option<&mut L> {
        let place = self.slots.get_mut(session.index())?;
        match place.as_deref_mut() {
            Some(lane) if lane.session() == session => Some(lane),
            _ => Self::find(&mut self.leaving, session),
        }
    }

    #[cold]
    fn find(leaving: &mut [L], session: SessionId) -> Option<&mut L> {
        let mut lanes = leaving.iter_mut();
        lanes.find(|lane| lane.session() == session)
    }

    /// The number of lanes.
    pub(crate) fn count(&self) -> usize {
        self.slots.iter().flatten().count() + self.leaving.len()
    }

    /// The number of lanes at most, without a count of them.
    pub(crate) fn places(&self) -> usize {
        self.slots.len() + self.leaving.len()
    }

    /// All lanes, to be read.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &L> {
        let slots = self.slots.iter().flatten();
        slots.map(|lane| &**lane).chain(&self.leaving)
    }

    /// All lanes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut L> {
        let slots = self.slots.iter_mut().flatten();
        slots.map(|lane| &mut **lane).chain(&mut self.leaving)
    }

    /// Takes all lanes out.
    pub(crate) fn into_lanes(self) -> impl Iterator<Item = L> {
        let slots = self.slots.into_iter().flatten();
        slots.map(|lane| *lane).chain(self.leaving)
    }

    /// Takes a lane out.
    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Box<L>> {
        let is_it = |lane: &L| lane.session() == session;
        let place = self.slots.get_mut(session.index())?;
        if place.as_deref().is_some_and(is_it) {
            return place.take();
        }
        let at = self.leaving.iter().position(is_it)?;
        Some(Box::new(self.leaving.swap_remove(at)))
    }
}
