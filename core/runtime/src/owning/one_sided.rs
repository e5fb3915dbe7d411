//! One-sided operations of an endpoint that owns their buffers.

use super::{AtomicElement, Buffer, EndedOperation, OwningEndpoint, context_of};
use ferrofabric_contracts::atomics::{AtomicBuffers, AtomicOp};
use ferrofabric_contracts::error::{Errno, OpError};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::Completion;
use ferrofabric_contracts::types::{IoBuf, RmaOp};

/// The values of an atomic operation.
#[derive(Clone, Copy, Debug)]
pub struct AtomicValues<'a, E> {
    /// The operands.
    pub operands: &'a [E],
    /// The compare values.
    pub compares: &'a [E],
    /// The number of elements that come back.
    pub results: usize,
}

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
        let io = buffer.io(len);
        let (slot, desc) = self.keep(buffer, token, op.dest);
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

    /// Changes elements of a peer's memory. The buffer of the completion has the elements that come
    /// back. The endpoint sets the data type, context and descriptor of `op`, and the flag
    /// `COMPLETION`.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::atomic`](crate::fabric::Endpoint::atomic).
    pub fn post_atomic<E: AtomicElement>(
        &mut self,
        op: AtomicOp,
        values: AtomicValues<'_, E>,
        token: u64,
    ) -> Result<(), OpError> {
        if values.results > E::DATATYPE.max_count() {
            return Err(OpError::Failed(Errno::EMSGSIZE));
        }
        let buffer = Buffer::new(values.results * size_of::<E>());
        let buffer = buffer.map_err(|error| OpError::Failed(error.errno()))?;
        let results = buffer.memory();
        let (slot, desc) = self.keep(buffer, token, op.dest);
        let op = AtomicOp {
            datatype: E::DATATYPE,
            desc,
            context: context_of(slot),
            flags: op.flags | Flags::COMPLETION,
            ..op
        };
        let bytes = |values: &[E]| IoBuf::new(values.as_ptr().cast(), size_of_val(values));
        let buffers = AtomicBuffers {
            operands: &[bytes(values.operands)],
            compares: &[bytes(values.compares)],
            results: &[results],
        };
        // SAFETY: `in_flight` keeps the buffer for the results, untouched, until the completion of
        // this slot. The others are borrowed until return.
        let posted = unsafe { self.endpoint.atomic(&op, &buffers) };
        self.posted(slot, posted).map_err(|(error, _)| error)
    }
}

/// The write of a peer that a completion without an operation of this endpoint stands for.
#[cold]
pub(super) fn peer_write(completion: Completion) -> Option<EndedOperation> {
    let is_one = completion.flags.contains(Flags::REMOTE_WRITE);
    is_one.then_some(EndedOperation::PeerWrite(completion))
}
