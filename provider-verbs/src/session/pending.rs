//! Sends that wait for their lanes.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::{SendOp, total_len};

use crate::gather::Readable;

/// A send that waits for its lane, or for room on it.
pub(crate) struct Pending {
    pub(crate) op: SendOp,
    buffers: SendBuffers,
}

impl Pending {
    /// A send of these buffers, or of a copy of them (`INJECT`).
    pub(crate) fn new(op: &SendOp, buffers: Readable<'_>) -> Self {
        Self {
            op: *op,
            buffers: buffers.keep(op.flags),
        }
    }

    /// Length of the message, in bytes.
    pub(crate) fn len(&self) -> usize {
        total_len(self.buffers.list())
    }

    /// Lends its buffers, with the copy that they are in, if it is one.
    pub(crate) fn with_buffers<R>(
        &self,
        look: impl FnOnce(&SendOp, Readable<'_>, Option<&[u8]>) -> R,
    ) -> R {
        // SAFETY: the sender's buffers, which it has promised until the operation completes, which
        // it does not as long as this is there; or bytes of our own.
        let list = unsafe { Readable::new(self.buffers.list()) };
        look(&self.op, list, self.buffers.copy())
    }

    /// Of one that failed.
    pub(crate) fn done(&self) -> SendDone {
        SendDone::of(&self.op, 0)
    }
}
