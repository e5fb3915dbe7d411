//! How far a message came when it was started.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;

/// The result of [`LinkSender::start_send`](super::sender::LinkSender::start_send).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOutcome {
    /// All of the message is in the ring.
    Complete,
    /// Part of it is, or its answer is awaited; the caller must pass its data to
    /// [`LinkSender::keep`](super::sender::LinkSender::keep).
    Incomplete(IncompleteSend),
    /// There is no room for its first slot.
    NoRoom,
}

/// A message that has started, and is not all in the ring or awaits its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IncompleteSend {
    pub(super) sent: usize,
    pub(super) before_go: usize,
    pub(super) len: usize,
    /// The message was offered to the peer to read.
    pub(super) read: bool,
}

impl IncompleteSend {
    /// The buffers that are needed from now on: none if the message is in the ring.
    ///
    /// # Safety
    ///
    /// As for [`SendBuffers::new`].
    pub(super) unsafe fn buffers(&self, flags: Flags, iov: &[IoBuf]) -> SendBuffers {
        let is_in_the_ring = self.sent == self.len && !self.read;
        // SAFETY: the caller's contract.
        unsafe { SendBuffers::new(flags, if is_in_the_ring { &[] } else { iov }) }
    }
}
