//! The identity of a peer in the protocol.

use std::fmt;

/// Size of [`PeerKey::place`] in bytes: that of a native address.
pub const PLACE_BYTES: usize = 64;

/// One incarnation of one endpoint.
///
/// Keys are ordered by their bytes; that order settles simultaneous connects, so both sides must
/// build the same key from the same address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey {
    /// The endpoint's place: its native address, with the fields that a restart changes
    /// (incarnation, shared-memory name) set to zero. Opaque here.
    pub place: [u8; PLACE_BYTES],
    /// The process among those that lived at that place, one after the other. Incarnations have no
    /// order: a new one is only different.
    pub incarnation: u64,
}

impl fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let used = self
            .place
            .iter()
            .rposition(|&b| b != 0)
            .map_or(0, |last| last + 1);
        for byte in &self.place[..used] {
            write!(f, "{byte:02x}")?;
        }
        write!(f, "#{:x}", self.incarnation)
    }
}
