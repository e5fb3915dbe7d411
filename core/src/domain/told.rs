//! Sends and receives by addresses that were told of with a range and lead nowhere yet (`docs/adr/0036`).

use super::owner::EndpointOwner;
use crate::av::Unresolved;
use crate::error::{Errno, OpError};
use crate::fabric::RecvOp;
use crate::peer::Transport;
use crate::types::{IoBuf, SendOp};

/// What becomes of a send that a transport did not take: one to an address that was told is turned away until its endpoint was
/// found, and goes to another address by which that is in.
///
/// # Safety
///
/// As [`Transport::send`].
#[cold]
pub(super) unsafe fn send_further<T: Transport>(
    error: OpError,
    op: &SendOp,
    iov: &[IoBuf],
    transport: &mut T,
    owner: &mut EndpointOwner<'_>,
) -> Result<(), OpError> {
    if error != OpError::Failed(Errno::EADDRNOTAVAIL) {
        return Err(error);
    }
    match owner.avs[owner.binding.av].ask(op.dest) {
        None => Err(error),
        Some(Unresolved::Asked) => Err(OpError::Again),
        Some(Unresolved::Failed(errno)) => Err(OpError::Failed(errno)),
        Some(Unresolved::Same(dest)) => {
            // SAFETY: the caller's promise.
            unsafe { transport.send(&SendOp { dest, ..*op }, iov, owner) }
        }
    }
}

impl EndpointOwner<'_> {
    /// The receive that is posted for one whose source may have been told of: that is asked for, so that what comes from it is
    /// known to.
    #[cold]
    pub(super) fn directed(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].ask_to_hear(op.src))
    }

    /// The same of a receive that looks for a message once: who looks again has it asked for again.
    #[cold]
    pub(super) fn looked_for(&self, op: &RecvOp) -> RecvOp {
        from_first(op, self.avs[self.binding.av].ask(op.src))
    }
}

/// A receive from the address by which its source is in.
fn from_first(op: &RecvOp, source: Option<Unresolved>) -> RecvOp {
    let src = match source {
        Some(Unresolved::Same(first)) => first,
        _ => op.src,
    };
    RecvOp { src, ..*op }
}
