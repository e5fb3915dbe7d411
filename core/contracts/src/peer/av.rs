//! The owner's side of an address vector.

use crate::addr::NativeAddr;
use crate::types::FiAddr;

/// What a peer asks of the owner's address vector.
pub trait PeerAv {
    /// The address that was inserted as `addr`; `None` when there is none (any more). The peer is
    /// told when it is removed.
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr>;
    /// The `FiAddr` of an address, [`FiAddr::NOTAVAIL`] if it was not inserted; the peer is told
    /// when it is. Also answers `ep_addr` of fi_peer(3), asked with the endpoint's own name.
    fn find(&self, name: &NativeAddr) -> FiAddr;
    /// What completions say of messages from `addr`: the user's own ID where there is one
    /// (`FI_AV_USER_ID`).
    #[inline]
    fn reported(&self, addr: FiAddr) -> FiAddr {
        addr
    }

    /// The source that an error names, of the one that a receive was posted for: a peer's address,
    /// or a key within matching. [`FiAddr::NOTAVAIL`] where the receive was for any source.
    #[cold]
    fn reported_source(&self, src: FiAddr) -> FiAddr {
        match src {
            FiAddr::UNSPEC => FiAddr::NOTAVAIL,
            src => self.reported(src),
        }
    }

    /// What completions say of an authorization key: its handle, or the user's own ID for it.
    fn reported_key(&self, handle: FiAddr) -> FiAddr {
        handle
    }
}
