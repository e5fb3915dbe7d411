//! Sends that wait for their lanes.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::peer::SendDone;
use ferrofabric_contracts::types::{IoBuf, SendOp, total_len};

use crate::gather::Readable;

/// A send that waits for its lane, or for room on it.
pub(crate) struct Pending {
    pub(crate) op: SendOp,
    iov: Gathered,
}

/// What a waiting send sends.
enum Gathered {
    /// The application's buffers, in order. They may be read as long as the send waits.
    Borrowed(Box<[IoBuf]>),
    /// A copy (`INJECT`).
    Copied(Box<[u8]>),
}

impl Pending {
    /// A send of these buffers, or of a copy of them (`INJECT`).
    pub(crate) fn new(op: &SendOp, buffers: Readable<'_>) -> Self {
        Self {
            op: *op,
            iov: match op.flags.contains(Flags::INJECT) {
                true => Gathered::Copied(buffers.to_bytes()),
                false => Gathered::Borrowed(buffers.list().into()),
            },
        }
    }

    /// Length of the message, in bytes.
    pub(crate) fn len(&self) -> usize {
        match &self.iov {
            Gathered::Borrowed(iov) => total_len(iov),
            Gathered::Copied(bytes) => bytes.len(),
        }
    }

    /// Lends its buffers, with the copy that they are in, if it is one.
    pub(crate) fn with_buffers<R>(
        &self,
        look: impl FnOnce(&SendOp, Readable<'_>, Option<&[u8]>) -> R,
    ) -> R {
        let (one, copy);
        let list: &[IoBuf] = match &self.iov {
            Gathered::Borrowed(iov) => {
                copy = None;
                iov
            }
            Gathered::Copied(bytes) => {
                copy = Some(&**bytes);
                one = [IoBuf::new(bytes.as_ptr(), bytes.len())];
                &one
            }
        };
        // SAFETY: the sender's buffers, which it has promised until the operation completes, which
        // it does not as long as this is there; or bytes of our own.
        look(&self.op, unsafe { Readable::new(list) }, copy)
    }

    /// Of one that failed.
    pub(crate) fn done(&self) -> SendDone {
        SendDone::of(&self.op, 0)
    }
}
