//! The packets on the wire: [`control`] packets on the UD queue pairs, [`data`] packets on a lane,
//! behind a [`datagram`] prefix where that is UD; [`sidr`] private data with the connection
//! manager. Layouts: `docs/wire-protocol.md`.
//!
//! Integers are little-endian. Every parser is total: any bytes give a value or a [`WireError`].
//! The printer prints each parsed value back to the same bytes.

pub mod control;
pub mod data;
pub mod datagram;
pub mod sidr;

use thiserror::Error;

use super::table::Key;

/// The version of both headers that this code speaks. One version per endpoint pair: it is checked
/// by the handshake, so data headers need not repeat it.
pub const VERSION: u8 = 7;

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WireError {
    /// Fewer or more bytes than the packet says or needs.
    #[error("the packet has a wrong length")]
    Length,
    /// A control packet that does not start with the magic number: not ours.
    #[error("the bytes are not a Ferrofabric packet")]
    Magic,
    /// Of another version than [`VERSION`].
    #[error("the packet has protocol version {0}, not {VERSION}")]
    Version(u8),
    /// A kind that this version does not know.
    #[error("the packet is of unknown kind {0}")]
    Kind(u8),
    /// A field out of its range, or one that must be zero and is not.
    #[error("a field of the packet has an invalid value")]
    Field,
}

/// A session as its receiver names it: 22 bits of index into the receiver's session table, 10 bits
/// that change with each reuse of the index, so that a packet of an earlier session is caught.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u32);

impl SessionId {
    /// Number of sessions that an endpoint can distinguish.
    pub const LIMIT: usize = 1 << Self::INDEX_BITS;

    const INDEX_BITS: u32 = 22;

    /// Position in the receiver's table: dense. The owner compares the whole ID with the one stored
    /// there.
    #[must_use]
    pub fn index(self) -> usize {
        (self.0 & (Self::LIMIT as u32 - 1)) as usize
    }

    /// The ID of the session that starts with the lane of `key`, whose index is below
    /// [`SessionId::LIMIT`].
    pub(crate) fn of(key: Key) -> Self {
        debug_assert!(key.index() < Self::LIMIT);
        SessionId((key.generation() << Self::INDEX_BITS) | key.index() as u32)
    }
}
