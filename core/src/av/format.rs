//! Addresses as an application has them, in the format of its domain.

use crate::addr::{Address, NativeAddr, VerbsAddr};
use crate::error::{Errno, Error, Result};
use crate::info::AddrFormat;

/// How a domain's addresses look, and what they leave out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Naming {
    pub(crate) format: AddrFormat,
    /// What all queue pairs that its endpoints talk to have in common with its own, where addresses do not say it.
    pub(crate) common: Option<VerbsAddr>,
}

impl Naming {
    /// The endpoint that the bytes name; text where the format is text.
    ///
    /// # Errors
    ///
    /// `EINVAL`, with the reason.
    pub(crate) fn parse(&self, bytes: &[u8]) -> Result<NativeAddr> {
        let own = NativeAddr {
            incarnation: 0,
            node: 0,
            shm: None,
            verbs: self.common,
        };
        let addr = parse(self.format, bytes)?;
        addr.native(&own)
            .ok_or_else(|| invalid("endpoints of this domain are not found by such addresses"))
    }
}

/// The address in these bytes; text where the format is text.
///
/// # Errors
///
/// `EINVAL`, with the reason.
pub fn parse(format: AddrFormat, bytes: &[u8]) -> Result<Address> {
    Address::from_bytes(format, bytes).map_err(|why| invalid(&why.to_string()))
}

/// An endpoint's address as the application gets it: text ends with a 0. Native where the format does not tell of it.
pub fn to_bytes(format: AddrFormat, addr: &NativeAddr) -> Vec<u8> {
    Address::of_endpoint(*addr, format)
        .and_then(|addr| addr.to_bytes(format).ok())
        .unwrap_or_else(|| addr.to_bytes().to_vec())
}

fn invalid(why: &str) -> Error {
    Error::new(Errno::EINVAL, "insert", "address").mend(why)
}
