//! The lanes of a pair of peers, and a model of the handshake that makes and drops them.

use std::collections::VecDeque;

use crate::handshake::{EndReason, LaneKey};
use crate::session::ResumeState;
use crate::wire::control::LaneKind;

#[derive(Clone, Copy, Debug)]
pub(super) enum LanePacket {
    Resume(ResumeState),
    Data { sequence: u32, message: u64 },
    Ack { expected: u32 },
}

/// An end of a lane as its owner has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimLaneState {
    /// Not up yet.
    Absent,
    /// It is up, and takes packets.
    Up,
    /// In error: the posted requests are being flushed; or, for the UD kind, no more packets are
    /// taken.
    Failed,
    /// Its queue pair is released, or it never came up.
    Gone,
}

pub(super) struct SimLane {
    pub(super) kind: LaneKind,
    pub(super) resumes: bool,
    /// On its way to each end.
    pub(super) to: [VecDeque<LanePacket>; 2],
    pub(super) state: [SimLaneState; 2],
    /// The other end is up, as an end knows.
    pub(super) may_send: [bool; 2],
    /// The same, as the handshake of an end knows: a Resume on a lane that carries no session tells
    /// only the end.
    pub(super) handshake_knows: [bool; 2],
    /// Its session has entered it.
    pub(super) carries: [bool; 2],
    /// The handshake of an end has dropped it, and notifies the other end with this reason.
    pub(super) dropped: [Option<EndReason>; 2],
    /// Its owner has yet to learn that it is down, with this reason.
    pub(super) down: [Option<EndReason>; 2],
    /// [`TakeAll`](crate::lanes::LaneOrder::TakeAll) was returned.
    pub(super) take_all: [bool; 2],
    /// A Resume is to be repeated.
    pub(super) repeats: [bool; 2],
    pub(super) outgrown: [bool; 2],
    /// All posted requests are flushed.
    pub(super) drained: [bool; 2],
    /// The queue pair of an end has failed: nothing crosses any more.
    pub(super) closed: [bool; 2],
}

impl SimLane {
    pub(super) fn new(kind: LaneKind, resumes: bool) -> Self {
        SimLane {
            kind,
            resumes,
            to: Default::default(),
            state: [SimLaneState::Absent; 2],
            may_send: [false; 2],
            handshake_knows: [false; 2],
            carries: [false; 2],
            dropped: [None; 2],
            down: [None; 2],
            take_all: [false; 2],
            repeats: [false; 2],
            outgrown: [false; 2],
            drained: [false; 2],
            closed: [false; 2],
        }
    }

    /// The queue pair of an end fails. The first `arrived` packets to it have arrived, and all
    /// packets to the other end.
    pub(super) fn close(&mut self, at: usize, arrived: usize) {
        self.closed[at] = true;
        self.to[at].truncate(arrived);
    }

    /// Whether an RC queue pair is there for it at an end.
    pub(super) fn has_queue_pair(&self, at: usize) -> bool {
        self.kind == LaneKind::Rc && self.state[at] != SimLaneState::Gone
    }

    /// The handshake of an end drops it. A lane that is not up there never comes up.
    pub(super) fn drop_at(&mut self, at: usize, why: EndReason) {
        self.dropped[at].get_or_insert(why);
        if self.state[at] == SimLaneState::Absent {
            self.state[at] = SimLaneState::Gone;
        }
    }

    /// The handshake of an end has dropped the lane, and notifies the other end. Returns whether
    /// that is news to the other end.
    pub(super) fn notify(&mut self, at: usize) -> bool {
        let Some(why) = self.dropped[1 - at] else {
            return false;
        };
        if self.dropped[at].is_some() {
            return false;
        }
        if self.state[at] != SimLaneState::Absent {
            self.down[at] = Some(why);
        }
        self.drop_at(at, why);
        true
    }
}

/// The lanes between a pair of peers.
#[derive(Default)]
pub(super) struct PeerPair {
    pub(super) lanes: Vec<SimLane>,
    /// The kind of lane that each end requests, until it may send on a lane.
    pub(super) requested: [Option<LaneKind>; 2],
    /// The last lane that came up at each end, unless the session of that is over.
    pub(super) last_up: [Option<usize>; 2],
    /// The request of an end failed with its lane, for this reason. The owner has no word of it
    /// yet.
    pub(super) failed: [Option<EndReason>; 2],
}

impl PeerPair {
    /// Whether the last lane still has a future: neither end has dropped it.
    pub(super) fn has_lane(&self) -> bool {
        let last = self.lanes.last();
        last.is_some_and(|lane| lane.dropped == [None; 2])
    }
}

/// The key of the lane of a pair, the same at both ends.
pub(super) fn key(pair: usize, lane: usize) -> LaneKey {
    LaneKey::from_bits((1 << 32) | (lane * super::world::PAIRS + pair) as u64)
}

/// The lane of a key.
pub(super) fn place(key: LaneKey) -> usize {
    (key.to_bits() as u32 as usize) / super::world::PAIRS
}
