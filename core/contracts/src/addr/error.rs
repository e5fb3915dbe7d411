//! Why bytes or text are not an address. Every other module of the folder but `format` imports this
//! one.

use super::format::{AddrFormat, NATIVE_LEN, NATIVE_MAGIC, NATIVE_VERSION};

/// Why bytes or text are not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddrError {
    /// Too few or too many bytes.
    #[error("a native address has {NATIVE_LEN} bytes, this has {0}")]
    Length(usize),
    /// Too few or too many bytes for another format than the native one.
    #[error("an address in {format} has {wanted} bytes, this has {found}")]
    LengthOf {
        /// The format.
        format: AddrFormat,
        /// Its length in bytes.
        wanted: usize,
        /// The length that was found.
        found: usize,
    },
    /// Not even a family.
    #[error("an address of {0} bytes")]
    Short(usize),
    /// A `sockaddr` of a family that the format does not have.
    #[error("address family {0} where another is wanted")]
    Family(u16),
    /// A format that is unknown, or cannot express the address.
    #[error("no address of that kind in {0}")]
    Format(AddrFormat),
    /// Not an address of ours.
    #[error("not a native address: it starts with {0:#06x} in place of {NATIVE_MAGIC:#06x}")]
    Magic(u16),
    /// From a version that this one does not know.
    #[error("native address of version {0}, this library knows version {NATIVE_VERSION}")]
    Version(u8),
    /// A field holds what it can not.
    #[error("address with an impossible {0}")]
    Field(&'static str),
}
