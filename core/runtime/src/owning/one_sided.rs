//! One-sided operations of an endpoint that owns their buffers.

use super::{Buffer, EndedOperation, OwningEndpoint, context_of};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::RmaOp;

impl OwningEndpoint {
    /// Reads a peer's memory into the first `len` bytes of a buffer, or writes those bytes to it.
    /// The endpoint sets the context and descriptor of `op`, and the flag `COMPLETION`.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::rma`](crate::fabric::Endpoint::rma), and `EINVAL` for more bytes than the
    /// buffer has; the error contains the buffer.
    pub fn post_rma(
        &mut self,
        buffer: Buffer,
        len: usize,
        token: u64,
        op: RmaOp,
    ) -> Result<(), (OpError, Buffer)> {
        if len > buffer.len() || op.flags.contains(Flags::INJECT) {
            return Err((OpError::Failed(Errno::EINVAL), buffer));
        }
        let (slot, io, desc) = self.keep(buffer, len, token, op.dest);
        let op = RmaOp {
            desc,
            context: context_of(slot),
            flags: op.flags | Flags::COMPLETION,
            ..op
        };
        // SAFETY: `in_flight` keeps the buffer, untouched, until the completion of this slot.
        let posted = unsafe { self.endpoint.rma(&op, &[io]) };
        self.posted(slot, posted)
    }
}

/// The write of a peer that a completion without an operation of this endpoint stands for.
#[cold]
pub(super) fn peer_write(completion: Completion) -> Option<EndedOperation> {
    let is_one = completion.flags.contains(Flags::REMOTE_WRITE);
    is_one.then_some(EndedOperation::PeerWrite(completion))
}
