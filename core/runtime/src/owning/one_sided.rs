//! One-sided operations of an endpoint that owns their buffers.

use super::{Buffer, InFlightOperation, OwningEndpoint, context_of};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
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
        let (io, desc) = (buffer.io(len), buffer.desc());
        let slot = self.in_flight.insert(InFlightOperation {
            buffer,
            token,
            peer: op.dest,
        });
        let op = RmaOp {
            desc,
            context: context_of(slot),
            flags: op.flags | Flags::COMPLETION,
            ..op
        };
        // SAFETY: `in_flight` keeps the buffer, untouched, until the completion of this slot.
        match unsafe { self.endpoint.rma(&op, &[io]) } {
            Ok(()) => Ok(()),
            Err(e) => Err((e, self.in_flight.remove(slot).buffer)),
        }
    }
}
