//! Sends that wait: for a connection, for room, or for the receiver.

use ferrofabric_contracts::buffers::SendBuffers;
use ferrofabric_contracts::types::{IoBuf, SendOp};

/// A send that could not be started.
#[derive(Debug)]
pub struct PendingSend {
    /// The operation.
    pub op: SendOp,
    buffers: SendBuffers,
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

    /// The buffers alone.
    pub(crate) fn into_buffers(self) -> SendBuffers {
        self.buffers
    }
}
