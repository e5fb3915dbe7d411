//! The operations of an endpoint that have ended.

use super::Buffer;
use ferrofabric_contracts::error::OpError;
use ferrofabric_contracts::peer::{Completion, CqError};
use ferrofabric_contracts::types::FiAddr;

/// The result of an operation.
#[derive(Debug)]
pub struct OwnedCompletion {
    /// The token of the operation.
    pub token: u64,
    /// The peer of the operation: the destination of a send, or the source of a receive.
    pub peer: FiAddr,
    /// Its buffer.
    pub buffer: Buffer,
    /// Its completion, or its error.
    pub outcome: Result<Completion, Box<CqError>>,
}

impl OwnedCompletion {
    /// The buffer of a receive, with the length of the `len` bytes that were received into it.
    pub fn received(self, len: usize) -> Buffer {
        let mut buffer = self.buffer;
        buffer.set_received(len);
        buffer
    }
}

/// An operation that has ended.
#[derive(Debug)]
pub enum EndedOperation {
    /// An operation with a buffer.
    Operation(OwnedCompletion),
    /// An inject that failed: an inject that succeeds is not reported.
    Inject(Box<CqError>),
    /// A write with CQ data, of a peer to a region of the domain.
    PeerWrite(Completion),
}

impl EndedOperation {
    /// For callers that fail if an inject failed, and do not look at writes of peers.
    #[inline]
    pub(super) fn operation(self) -> Result<Option<OwnedCompletion>, OpError> {
        match self {
            Self::Operation(done) => Ok(Some(done)),
            Self::Inject(failed) => Err(OpError::Failed(failed.errno)),
            Self::PeerWrite(_) => Ok(None),
        }
    }
}
