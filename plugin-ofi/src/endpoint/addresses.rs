//! The addresses of an endpoint's calls: those of its address vector, or of the owner of an
//! imported one. The tables of an endpoint exist once for each kind, so that calls with addresses
//! of the own kind are compiled as if there were no other.

use ferrofabric_contracts::types::FiAddr;

use super::object::EndpointObject;

/// A kind of addresses that calls have.
pub(super) trait CallAddrs: 'static {
    /// The address in the endpoint's vector; `NOTAVAIL` if there is none.
    fn find(endpoint: &EndpointObject, addr: FiAddr) -> FiAddr;
}

/// Addresses of the endpoint's vector.
pub(super) struct OwnAddrs;

impl CallAddrs for OwnAddrs {
    #[inline(always)]
    fn find(_endpoint: &EndpointObject, addr: FiAddr) -> FiAddr {
        addr
    }
}

/// Addresses of the owner of the endpoint's vector (`FI_PEER`).
pub(super) struct OwnersAddrs;

impl CallAddrs for OwnersAddrs {
    #[inline]
    fn find(endpoint: &EndpointObject, addr: FiAddr) -> FiAddr {
        match endpoint.imported_av.get() {
            Some(_) if addr == FiAddr::UNSPEC => addr,
            Some(av) => av.find(addr),
            None => FiAddr::NOTAVAIL,
        }
    }
}
