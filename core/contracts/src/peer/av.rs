//! The owner's side of an address vector, for peers: look-ups that also subscribe a peer to the
//! removal of an address, and to the insertion of one that is not there.

use crate::addr::NativeAddr;
use crate::types::FiAddr;

/// The owner's address vector, as its peers look addresses up.
pub trait PeerAv {
    /// The address that was inserted as `addr`; `None` when there is none (any more). The owner
    /// notifies the peer of its removal.
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr>;
    /// The `FiAddr` of an address, [`FiAddr::NOTAVAIL`] if it was not inserted; then the owner
    /// notifies the peer of its insertion. With the endpoint's own name it is `ep_addr` of
    /// fi_peer(3).
    fn find(&self, name: &NativeAddr) -> FiAddr;
    /// Reports each address of a node. The owner notifies the peer of their removal, and of each
    /// address, of any node, that is inserted from now on, as long as the peer has
    /// [unknown sources](super::Transport::has_unknown_sources). Takes as long as the vector is,
    /// so it is for the start of a peer that has an address vector of its own. The default has no
    /// addresses.
    #[cold]
    fn each_on_node(&self, _node: u64, _report: &mut dyn FnMut(FiAddr, NativeAddr)) {}

    /// The source that completions report for `addr`: the user's own ID where there is one
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

    /// The source that completions report for an authorization key: its handle, or the user's own
    /// ID for it.
    fn reported_key(&self, handle: FiAddr) -> FiAddr {
        handle
    }
}
