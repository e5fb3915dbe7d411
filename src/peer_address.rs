//! The forms in which a program gives the address of a peer.

use std::net::SocketAddr;

use ferrofabric_contracts::addr::{AddrError, Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};

/// The forms of an address: an [`Address`] or [`NativeAddr`], a [`SocketAddr`], or the text
/// of any.
pub trait PeerAddress {
    /// The address.
    ///
    /// # Errors
    ///
    /// `EINVAL` for text that is no address.
    fn to_address(&self) -> Result<Address>;
}

impl PeerAddress for Address {
    fn to_address(&self) -> Result<Address> {
        Ok(*self)
    }
}

impl PeerAddress for NativeAddr {
    fn to_address(&self) -> Result<Address> {
        Ok(Address::from(*self))
    }
}

impl PeerAddress for SocketAddr {
    fn to_address(&self) -> Result<Address> {
        Ok(Address::from(*self))
    }
}

impl PeerAddress for str {
    fn to_address(&self) -> Result<Address> {
        self.parse().map_err(|why: AddrError| {
            Error::new(Errno::EINVAL, "read", format!("address {self:?}")).mend(format!(
                "{why}; an address looks like ferro://?inc=5f3c&node=91a0&shm=27d4 (the text of \
                 an endpoint's `address()`) or fi_sockaddr_in://10.1.0.1:7471"
            ))
        })
    }
}

impl PeerAddress for String {
    fn to_address(&self) -> Result<Address> {
        self.as_str().to_address()
    }
}

impl<P: PeerAddress + ?Sized> PeerAddress for &P {
    fn to_address(&self) -> Result<Address> {
        (**self).to_address()
    }
}
