//! A lane: an RC queue pair under a session, and what was posted to it.

use std::collections::VecDeque;
use std::sync::Arc;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_protocol::handshake::LaneKey;
use ferrofabric_protocol::rendezvous::Chunk;
use ferrofabric_protocol::session::WINDOW;
use ferrofabric_protocol::table::Key;
use ferrofabric_protocol::wire::SessionId;

use super::records::{Record, Records};
use super::state::SessionState;
use crate::qp::RcQp;
use crate::registration::Region;

/// What lies in the send queue, in the order of posting.
pub(crate) struct Wqe {
    /// Counts requests of this lane, modulo 2³².
    pub(crate) number: u32,
    /// The packet's number in the session, if it has one.
    pub(crate) sequence: Option<u32>,
    /// What it is.
    pub(crate) kind: WqeKind,
    /// Where the packet is kept until it has arrived.
    pub(crate) packet: Place,
}

/// What a work request does.
pub(crate) enum WqeKind {
    /// A whole message.
    Message(SendDone),
    /// A packet of our own, with which nothing ends.
    Notice,
    /// The end of a message that we wrote.
    Done(Key),
    /// A read.
    Read(Box<Chunk>),
    /// A write.
    Write(Box<Chunk>),
    /// The last: when it is flushed all is.
    Marker,
}

/// Where a posted packet lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// Nowhere: it need not be sent again.
    Nowhere,
    /// Among the records: it travels in the work request.
    Record(Record),
    /// In a bounce buffer.
    Bounce { slot: u32, len: u32 },
    /// Its header in a bounce buffer, the rest where the application has it: in the next of the
    /// lane's [`described`](Lane::described) regions.
    Split { slot: u32, head: u32, rest: IoBuf },
}

impl Place {
    /// The bounce buffer that it takes.
    #[inline]
    pub(crate) fn slot(self) -> Option<u32> {
        match self {
            Place::Bounce { slot, .. } | Place::Split { slot, .. } => Some(slot),
            Place::Nowhere | Place::Record(_) => None,
        }
    }
}

/// How a lane's end came about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneEnd {
    /// What its operations end with, if they do.
    pub(crate) errno: Errno,
    pub(crate) why: &'static str,
    /// What the device said, 0 if nothing.
    pub(crate) status: i32,
    pub(crate) then: AfterLane,
}

/// What becomes of the session when its lane has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterLane {
    /// It goes on over another lane.
    Resume,
    /// So it does, for the lane was given up in good order.
    Change,
    /// It rests: the lane was given up in good order, for there is no more to say. It goes on over another lane when there is.
    Rest,
    /// It is over: the peer is gone, or broken.
    Fail,
    /// It is over, and another one begins: what was under way may be lost, what waits to be sent is not.
    Restart,
    /// The peer closed it in good order, and had taken so much.
    Closed { expected: Option<u32> },
}

/// A lane that is up, or being drained.
pub(crate) struct Lane {
    // The queue pair goes first: the device uses what the rest holds.
    pub(crate) qp: Arc<RcQp>,
    pub(crate) key: LaneKey,
    pub(crate) peer: u32,
    pub(crate) session: SessionState,
    /// Messages may be posted: the peer's end is up, nothing is to be sent again, the lane is not failing.
    pub(crate) open: bool,
    /// The peer's end is up.
    pub(crate) may_send: bool,
    /// The longest packet that it takes, in bytes.
    pub(crate) packet_bytes: usize,
    pub(crate) heard: bool,
    pub(crate) queue: VecDeque<Wqe>,
    pub(crate) records: Records,
    /// The regions of the split packets in the queue, in the same order. The application may close
    /// them meanwhile.
    pub(crate) described: VecDeque<Arc<Region>>,
    pub(crate) depth: usize,
    pub(crate) next_number: u32,
    /// Requests posted since the last that was signalled.
    pub(crate) unsignaled: u32,
    /// Set once the lane is given up.
    pub(crate) end: Option<LaneEnd>,
    /// What was posted and taken when its use was looked at last.
    pub(crate) used: (u32, u32),
    /// Nothing will be flushed: wait for the queue pair to be destroyed.
    pub(crate) unflushed: bool,
    /// The queue pair has refused a request: what is entered behind it will not complete.
    pub(crate) refused: bool,
    /// Whether the lane is in the list of those with work.
    pub(crate) listed: bool,
    /// Whether it is in the list of those that wait for what all share.
    pub(crate) stalled: bool,
}

/// Room in each send queue that messages leave to notices and chunks.
const RESERVED: usize = 8;

impl Lane {
    /// Whether a message can be posted now, and has a number to be had.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.queue.len() + RESERVED < self.depth && self.session.numbers.unconfirmed() < WINDOW
    }

    /// Whether the queue is long enough for so many packets of a message.
    pub(crate) fn could_take(&self, packets: usize) -> bool {
        packets + RESERVED <= self.depth
    }

    /// Whether so many packets of a message can be posted now.
    pub(crate) fn has_room_for(&self, packets: usize) -> bool {
        self.queue.len() + packets + RESERVED <= self.depth
    }

    /// Whether a notice or a chunk can be posted now.
    pub(crate) fn has_reserved_room(&self) -> bool {
        self.queue.len() + 1 < self.depth && self.session.numbers.unconfirmed() < WINDOW
    }

    /// Whether no request is under way whose completion was asked for.
    pub(crate) fn expects_no_word(&self) -> bool {
        self.queue.len() == self.unsignaled as usize
    }

    /// Whether there may be something to post besides messages.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        let state = &self.session;
        !self.open
            || !state.notices.is_empty()
            || !state.reads.is_empty()
            || !state.writes.is_empty()
            || !state.replay.is_empty()
    }

    /// Whether anything can be posted but what is to be sent again.
    pub(crate) fn is_usable(&self) -> bool {
        self.may_send && self.end.is_none()
    }

    /// Whether nothing is under way or waits on it that could not go on over datagrams.
    pub(crate) fn is_quiet(&self) -> bool {
        let state = &self.session;
        let small = |wqe: &Wqe| matches!(wqe.packet, Place::Nowhere | Place::Record(_));
        self.open
            && self.queue.iter().all(small)
            && state.notices.is_empty()
            && state.reads.is_empty()
            && state.writes.is_empty()
            && state.receives.is_empty()
    }

    /// To be called when something changed that `open` depends on.
    pub(crate) fn reconsider(&mut self) {
        self.open = self.is_usable() && !self.session.catches_up();
    }

    /// The number for the next work request, and whether it must be signalled although nobody waits for it, so that the
    /// queue does not fill up with requests of which we never hear.
    #[inline]
    pub(crate) fn next(&mut self, signaled: bool) -> (u64, bool) {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        let signaled = signaled || self.unsignaled as usize >= self.depth / 4;
        self.unsignaled = if signaled { 0 } else { self.unsignaled + 1 };
        (send_wr_id(self.key.session(), number), signaled)
    }
}

/// Lanes are told apart by the session that began with each.
pub(crate) trait Named {
    fn session(&self) -> SessionId;
}

impl Named for Lane {
    #[inline]
    fn session(&self) -> SessionId {
        self.key.session()
    }
}

/// The lanes of one kind of an endpoint, by what data packets towards us name them.
pub(crate) struct Lanes<L = Lane> {
    places: Vec<Option<Box<L>>>,
    /// Lanes whose place has another already: the service thread gives it out again as soon as a lane is down, and here
    /// one stays until all that it had is flushed.
    leaving: Vec<L>,
}

impl<L> Default for Lanes<L> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            leaving: Vec::new(),
        }
    }
}

impl<L: Named> Lanes<L> {
    /// Enters a lane.
    pub(crate) fn insert(&mut self, lane: L) {
        let at = lane.session().index();
        if self.places.len() <= at {
            self.places.resize_with(at + 1, || None);
        }
        let before = self.places[at].replace(Box::new(lane));
        self.leaving.extend(before.map(|lane| *lane));
    }

    /// The lane of a session, if there is one still.
    #[inline]
    pub(crate) fn of(&mut self, session: SessionId) -> Option<&mut L> {
        let place = self.places.get_mut(session.index())?;
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

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.places.iter().flatten().count() + self.leaving.len()
    }

    /// All lanes, to be looked at.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &L> {
        let places = self.places.iter().flatten();
        places.map(|lane| &**lane).chain(&self.leaving)
    }

    /// All lanes.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut L> {
        let places = self.places.iter_mut().flatten();
        places.map(|lane| &mut **lane).chain(&mut self.leaving)
    }

    /// Takes a lane out.
    pub(crate) fn remove(&mut self, session: SessionId) -> Option<Box<L>> {
        let is_it = |lane: &L| lane.session() == session;
        let place = self.places.get_mut(session.index())?;
        if place.as_deref().is_some_and(is_it) {
            return place.take();
        }
        let at = self.leaving.iter().position(is_it)?;
        Some(Box::new(self.leaving.swap_remove(at)))
    }
}

/// High half of the work request ID of datagrams; no session has it, either.
const DATAGRAM: u32 = u32::MAX - 1;

/// The work request ID of a datagram.
#[inline]
pub(crate) fn datagram_wr_id(number: u32) -> u64 {
    send_wr_id(SessionId(DATAGRAM), number)
}

/// Whether a work request ID that looks like a lane's is a datagram's.
#[inline]
pub(crate) fn is_datagram(session: SessionId) -> bool {
    session.0 == DATAGRAM
}

/// High half of the work request ID of receives; no session has it, for a table never has so many lanes.
const RECEIVE: u32 = u32::MAX;

/// A work request ID: session and number for sends.
#[inline]
pub(crate) fn send_wr_id(session: SessionId, number: u32) -> u64 {
    (u64::from(session.0) << 32) | u64::from(number)
}

/// The work request ID of a receive into a slot.
#[inline]
pub(crate) fn receive_wr_id(slot: u32) -> u64 {
    (u64::from(RECEIVE) << 32) | u64::from(slot)
}

/// What a work request ID names.
pub(crate) enum WrId {
    /// A receive into a slot.
    Receive(u32),
    /// A request of a lane.
    Send(SessionId, u32),
}

impl WrId {
    #[inline]
    pub(crate) fn parse(wr_id: u64) -> Self {
        let (high, low) = ((wr_id >> 32) as u32, wr_id as u32);
        match high {
            RECEIVE => Self::Receive(low),
            session => Self::Send(SessionId(session), low),
        }
    }
}
