//! Sends that wait: for a connection, for room, or for the receiver.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::requester::is_requester;
use ferrofabric_contracts::send_line::{SendLine, WaitingSend};
use ferrofabric_contracts::types::{IoBuf, SendOp};

/// Room in a line for parts that pass fences.
pub(crate) const ROOM_TO_PASS: usize = 64;

/// Whether there is room in a line for a send. Those that wait for a fence leave room to parts of
/// one-sided operations that pass it.
pub(crate) fn has_room(line: &SendLine<PendingSend>, op: &SendOp, limit: usize) -> bool {
    let room = match op.kind.passes_fences() {
        true => limit + ROOM_TO_PASS,
        false => limit,
    };
    line.len() < room
}

/// The injected sends of a line: the application takes them for sent.
pub(crate) fn injected<'a>(
    line: impl IntoIterator<Item = &'a PendingSend>,
) -> impl Iterator<Item = &'a PendingSend> {
    let is_injected = |send: &&PendingSend| send.op.kind.is_taken_for_sent(send.op.flags);
    line.into_iter().filter(is_injected)
}

/// A send that could not be started.
#[derive(Debug)]
pub struct PendingSend {
    /// The operation.
    pub op: SendOp,
    buffers: SendBuffers,
}

impl WaitingSend for PendingSend {
    #[inline]
    fn op(&self) -> &SendOp {
        &self.op
    }
}

impl PendingSend {
    /// Keeps a send for later; copies the data of an `INJECT`.
    ///
    /// # Safety
    ///
    /// The buffers are valid for reads: with `INJECT` now, else until the operation completes.
    pub(crate) unsafe fn new(op: &SendOp, iov: &[IoBuf]) -> Self {
        Self {
            op: *op,
            // SAFETY: the caller's contract.
            buffers: unsafe { SendBuffers::new(op.flags, iov) },
        }
    }

    /// The data of the send, valid while `self` lives and the application leaves its buffers alone.
    pub fn iov(&self) -> &[IoBuf] {
        self.buffers.list()
    }

    /// Whether its destination is an address. That of the answer to a request is not.
    pub(crate) fn has_address(&self) -> bool {
        self.op.dest.is_some() && !is_requester(self.op.dest)
    }

    /// The buffers alone.
    pub(crate) fn into_buffers(self) -> SendBuffers {
        self.buffers
    }
}
