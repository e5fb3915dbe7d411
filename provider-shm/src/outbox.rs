//! The messages that an endpoint's links have under way: one table for all links.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::send_line::SendLine;
use slab::Slab;

use crate::pending::PendingSend;

/// A message that has started but is not all in the ring, or whose sender awaits `DELIVERED`.
pub(crate) struct OutgoingMessage {
    pub(crate) done: SendDone,
    pub(crate) buffers: SendBuffers,
    pub(crate) sent: usize,
    /// The length up to which the receiver's last `GO` lets the sender go on.
    pub(crate) until: usize,
    /// A `GO` has come.
    pub(crate) go: bool,
    /// The receiver sends `DELIVERED`; only then the send is complete.
    pub(crate) wants_delivered: bool,
    /// The message was offered to the receiver to read.
    pub(crate) read: bool,
}

/// The sending state of an endpoint, for all its links. Messages in flight take room here, to
/// whichever peer they go; so a link needs little of its own.
#[derive(Default)]
pub(crate) struct Outbox {
    pub(crate) outgoing: Slab<OutgoingMessage>,
    /// A spare queue for waiting sends, which the next link that needs one takes.
    spare: SendLine<PendingSend>,
}

impl Outbox {
    /// Takes the spare queue for waiting sends.
    pub(crate) fn take_room(&mut self) -> SendLine<PendingSend> {
        std::mem::take(&mut self.spare)
    }

    /// Takes back a queue that a link does not need any more; keeps the larger one.
    pub(crate) fn give_back(&mut self, room: SendLine<PendingSend>) {
        if room.capacity() > self.spare.capacity() {
            self.spare = room;
        }
    }
}

/// Entries that a link's tables keep while they are empty: room beyond this, which a burst needed,
/// is freed.
pub(crate) const KEPT_ENTRIES: usize = 8;
