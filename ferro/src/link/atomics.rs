//! Atomic operations on the peer's region.

use ferrofabric_contracts::atomics::{
    AtomicBuffers, AtomicForm, AtomicOp, AtomicOperator, Datatype,
};
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;

use super::buffers::Slot;
use super::{IS_SEND, Link, Purpose, cannot, context, region};
use crate::failure::Result;

/// An atomic operation on the elements at the start of the peer's region.
pub(crate) struct LinkAtomic<'a> {
    pub(crate) form: AtomicForm,
    pub(crate) operator: AtomicOperator,
    pub(crate) datatype: Datatype,
    /// The operands, whose length is that of the operation.
    pub(crate) operands: &'a [u8],
    /// The compare values, of [`AtomicForm::Compare`] alone; else empty.
    pub(crate) compares: &'a [u8],
}

impl Link {
    /// Starts an atomic operation. The elements that come back are then at the start of the buffer.
    /// A [`LinkEvent::Sent`](super::LinkEvent::Sent) with [`Purpose::Data`] says that it is over.
    ///
    /// # Errors
    ///
    /// When the operation is refused, or the partner is gone.
    #[inline]
    pub(crate) fn atomic(&mut self, atomic: &LinkAtomic<'_>, slot: Slot) -> Result<()> {
        let place = self.buffers.place(slot);
        let len = atomic.operands.len();
        let results = [IoBuf::new(place.addr, len.min(place.len))];
        let operands = [IoBuf::new(atomic.operands.as_ptr(), len)];
        let compares = [IoBuf::new(atomic.compares.as_ptr(), atomic.compares.len())];
        let op = AtomicOp {
            form: atomic.form,
            operator: atomic.operator,
            datatype: atomic.datatype,
            dest: self.peer,
            key: region::KEY,
            place: 0,
            desc: place.desc,
            context: context(slot, Purpose::Data) | IS_SEND,
            flags: Flags::COMPLETION,
        };
        let buffers = AtomicBuffers {
            operands: &operands,
            compares: match atomic.form {
                AtomicForm::Compare => &compares,
                _ => &[],
            },
            results: match atomic.form {
                AtomicForm::Base => &[],
                _ => &results,
            },
        };
        loop {
            // SAFETY: the operands and compare values are borrowed until return; the buffer stays,
            // and is not touched, while the place is busy.
            match unsafe { self.bound.endpoint.atomic(&op, &buffers) } {
                Ok(()) => {
                    self.buffers.begin(slot);
                    return Ok(());
                }
                Err(OpError::Again) => self.make_room()?,
                Err(error) => return Err(cannot("change by", len, error)),
            }
        }
    }
}
