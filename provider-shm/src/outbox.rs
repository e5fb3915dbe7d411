//! What an endpoint's links have under way: one table for all of them.

use std::collections::VecDeque;

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::peer::SendDone;
use slab::Slab;

use crate::pending::PendingSend;

/// A message of ours that is announced but not all in the ring, or not delivered where the sender
/// wants to know.
pub(crate) struct Outgoing {
    pub(crate) done: SendDone,
    pub(crate) buffers: SendBuffers,
    pub(crate) sent: usize,
    /// How far the receiver lets us go.
    pub(crate) until: usize,
    /// It has said so.
    pub(crate) go: bool,
    /// It says when the message is delivered; only then it is done.
    pub(crate) told: bool,
    /// It was left to the receiver to read.
    pub(crate) read: bool,
}

/// What all links of an endpoint send with. What takes room here is in flight, whomever it goes to;
/// so a link needs little of its own.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) outgoing: Slab<Outgoing>,
    /// Room for sends that wait, which the next link that needs some gets.
    spare: VecDeque<PendingSend>,
}

impl Outbox {
    /// Room for sends that wait.
    pub(crate) fn take_room(&mut self) -> VecDeque<PendingSend> {
        std::mem::take(&mut self.spare)
    }

    /// Room that a link does not need any more; the larger one is kept.
    pub(crate) fn give_back(&mut self, room: VecDeque<PendingSend>) {
        if room.capacity() > self.spare.capacity() {
            self.spare = room;
        }
    }
}

/// Entries that a link's tables keep while nothing is in them: what a burst needed beyond is given
/// back.
pub(crate) const KEPT_ENTRIES: usize = 8;
