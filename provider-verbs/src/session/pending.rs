//! Sends that wait for their lanes.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::send_line::WaitingSend;
use ferrofabric_contracts::types::{SendOp, total_len};
use ferrofabric_protocol::envelopes::WaitingKind;

use crate::gather::Readable;

/// A send that waits for its lane, or for room on it.
pub(crate) struct Pending {
    pub(crate) op: SendOp,
    buffers: SendBuffers,
}

impl WaitingSend for Pending {
    #[inline]
    fn op(&self) -> &SendOp {
        &self.op
    }
}

impl Pending {
    /// A send of these buffers, or of a copy of them (`INJECT`).
    pub(crate) fn new(op: &SendOp, buffers: Readable<'_>) -> Self {
        Self {
            op: *op,
            buffers: buffers.keep(op.flags),
        }
    }

    /// What it is among the messages that wait for the peer.
    pub(crate) fn waiting_kind(&self) -> WaitingKind {
        let SendOp { kind, flags, .. } = self.op;
        if kind.is_reply() || kind.is_dispensable() {
            WaitingKind::Answer
        } else if kind.is_taken_for_sent(flags) {
            WaitingKind::TakenForSent
        } else {
            WaitingKind::Plain
        }
    }

    /// Length of the message, in bytes.
    pub(crate) fn len(&self) -> usize {
        total_len(self.buffers.list())
    }

    /// Lends the message's buffers, and the copy that contains them, if there is one.
    pub(crate) fn with_buffers<R>(
        &self,
        look: impl FnOnce(&SendOp, Readable<'_>, Option<&[u8]>) -> R,
    ) -> R {
        // SAFETY: the sender keeps the buffers until the operation completes, and it does not
        // complete while this value exists; or they are a copy of this value's own.
        let list = unsafe { Readable::new(self.buffers.list()) };
        look(&self.op, list, self.buffers.copy())
    }

    /// The report of a send that failed.
    pub(crate) fn done(&self) -> SendDone {
        SendDone::of(&self.op, 0)
    }
}
