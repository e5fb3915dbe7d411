//! The look-ups that endpoints make in their address vector.

use super::AvTable;
use ferrofabric_contracts::addr::NativeAddr;
use ferrofabric_contracts::peer::PeerAv;
use ferrofabric_contracts::types::{FiAddr, is_key_source};

impl PeerAv for AvTable {
    #[inline]
    fn lookup(&self, addr: FiAddr) -> Option<NativeAddr> {
        self.use_addr(addr)
    }

    #[inline]
    fn find(&self, name: &NativeAddr) -> FiAddr {
        self.use_name(name)
    }

    #[inline]
    fn reported(&self, addr: FiAddr) -> FiAddr {
        match self.ids.are_any() && addr.is_some() {
            false => addr,
            true => self.model.entry(addr).map_or(addr, |entry| {
                let is_of = |generation| self.model.addr(entry, generation) == addr;
                self.ids.of(entry, addr, is_of)
            }),
        }
    }

    #[cold]
    fn reported_source(&self, src: FiAddr) -> FiAddr {
        if !is_key_source(src) {
            return self.reported(src);
        }
        let keys = self.auth_keys.as_ref();
        keys.and_then(|keys| keys.handle_of_source(src))
            .map_or(FiAddr::NOTAVAIL, |handle| self.reported_key(handle))
    }

    fn reported_key(&self, handle: FiAddr) -> FiAddr {
        match (self.has_user_ids(), &self.auth_keys) {
            (true, Some(keys)) => keys.user_id(handle).unwrap_or(FiAddr::NOTAVAIL),
            _ => handle,
        }
    }
}
