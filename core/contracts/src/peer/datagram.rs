//! The transport of a DGRAM endpoint, which matches no messages, so it takes the receives
//! themselves.

use super::{Owner, Transport};
use crate::error::OpError;
use crate::types::IoBuf;
use crate::types::RecvOp;

/// A transport of one DGRAM endpoint: messages may be lost, and come in any order. It holds the
/// receives that are posted, and takes none from its owner's shared receive context, so
/// [`Transport::start`] and [`Transport::discard`] have nothing to do. A message for which no
/// receive is posted is lost; so is one that can not be sent, once it was taken.
pub trait DatagramTransport: Transport {
    /// Posts a receive for one message. Of the operation, context, descriptor and `COMPLETION`
    /// count.
    ///
    /// # Safety
    ///
    /// The buffers stay valid for writes, and nobody else uses them, until the operation completes.
    ///
    /// # Errors
    ///
    /// [`OpError::Again`] when as many are posted as can be. `EINVAL`: too many buffers, or the
    /// first has no room for the prefix.
    unsafe fn post_recv<O: Owner>(
        &mut self,
        op: &RecvOp,
        iov: &[IoBuf],
        owner: &mut O,
    ) -> Result<(), OpError>;

    /// Takes back a receive: it completes with `ECANCELED`, perhaps later, unless a message comes
    /// first.
    ///
    /// # Errors
    ///
    /// `ENOENT`: none is posted with that context.
    fn cancel_recv<O: Owner>(&mut self, context: u64, owner: &mut O) -> Result<(), OpError>;
}
