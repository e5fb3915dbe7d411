//! Addresses as an application has them, in the format of its domain.

use crate::addr::NativeAddr;
use crate::error::{Errno, Error, Result};
use crate::info::AddrFormat;

/// The address in these bytes; text where the format is text.
///
/// # Errors
///
/// `EINVAL`, with the reason.
pub fn parse(format: AddrFormat, bytes: &[u8]) -> Result<NativeAddr> {
    let parsed = match format {
        AddrFormat::STR => match std::str::from_utf8(bytes) {
            Ok(text) => text.parse(),
            Err(_) => return Err(invalid("it is no text")),
        },
        _ => NativeAddr::from_bytes(bytes),
    };
    parsed.map_err(|why| invalid(&why.to_string()))
}

/// An address as the application gets it: text ends with a 0.
pub fn to_bytes(format: AddrFormat, addr: &NativeAddr) -> Vec<u8> {
    match format {
        AddrFormat::STR => {
            let mut text = addr.to_string().into_bytes();
            text.push(0);
            text
        }
        _ => addr.to_bytes().to_vec(),
    }
}

fn invalid(why: &str) -> Error {
    Error::new(Errno::EINVAL, "insert", "address").mend(why)
}
