//! Sends that wait: for a connection, for room, or for the receiver.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, SendOp, total_len};

use crate::copy::gather;

/// A send that could not be started, with its data: the application's buffers, or a copy where it
/// may have them back.
#[derive(Debug)]
pub struct PendingSend {
    /// The operation.
    pub op: SendOp,
    source: Source,
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
            // SAFETY: the caller's promise.
            source: unsafe { Source::new(op.flags, iov) },
        }
    }

    /// Where the data lies, as long as `self` lives and the application leaves its buffers alone.
    pub fn iov(&self) -> &[IoBuf] {
        self.source.iov()
    }

    /// Taken apart.
    pub(crate) fn into_source(self) -> Source {
        self.source
    }
}

/// Where the data of an operation in flight comes from.
#[derive(Debug)]
pub(crate) enum Source {
    /// One buffer of the application.
    One([IoBuf; 1]),
    /// Several.
    Many(Box<[IoBuf]>),
    /// A copy, which the entry beside it names.
    Copy(
        [IoBuf; 1],
        #[allow(dead_code, reason = "keeps what the entry names")] Box<[u8]>,
    ),
}

impl Source {
    /// # Safety
    ///
    /// As for [`PendingSend::new`].
    pub(crate) unsafe fn new(flags: Flags, iov: &[IoBuf]) -> Self {
        if flags.contains(Flags::INJECT) {
            let mut copy = vec![0u8; total_len(iov)].into_boxed_slice();
            // SAFETY: the caller's promise; `copy` has as many bytes as the list.
            unsafe { gather(iov, 0, copy.as_mut_ptr(), copy.len()) };
            Self::Copy([IoBuf::new(copy.as_ptr(), copy.len())], copy)
        } else if let [one] = iov {
            Self::One([*one])
        } else {
            Self::Many(iov.into())
        }
    }

    /// The list.
    #[inline]
    pub(crate) fn iov(&self) -> &[IoBuf] {
        match self {
            Self::One(one) | Self::Copy(one, _) => one,
            Self::Many(many) => many,
        }
    }
}
