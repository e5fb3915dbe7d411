//! The formats by libfabric's numbers, and the marks that distinguish their addresses: lengths,
//! families, and the first bytes of a native address.

use std::fmt;

use bitflags::bitflags;

use crate::listed_constants;

/// Size of a native address in bytes.
pub const NATIVE_LEN: usize = 64;
/// Size of a `sockaddr_in` in bytes.
pub const SOCKADDR_IN_LEN: usize = 16;
/// Size of a `sockaddr_in6` in bytes.
pub const SOCKADDR_IN6_LEN: usize = 28;
/// Size of a `sockaddr_ib` in bytes.
pub const SOCKADDR_IB_LEN: usize = 48;
/// Size of an address in [`AddrFormat::IB_UD`] in bytes.
pub const IB_UD_LEN: usize = 32;

listed_constants! {
    /// The families of addresses that are known.
    pub(super) const FAMILIES: [u16];
    pub(super) const AF_INET = 2;
    pub(super) const AF_INET6 = 10;
    pub(super) const AF_IB = 27;
}

/// The first two bytes of a native address.
pub(super) const NATIVE_MAGIC: u16 = 0xfe0f;

/// The first bytes of a native address, as the family of a `sockaddr`. No socket has this family,
/// so a native address and a socket's can stand in the same place.
pub const NATIVE_FAMILY: u16 = u16::from_ne_bytes(NATIVE_MAGIC.to_le_bytes());
/// The version that native addresses of this library have.
pub(super) const NATIVE_VERSION: u8 = 1;

/// How addresses look (fi_getinfo(3), "addressing formats"); the list grows, so any of libfabric's
/// numbers may come.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct AddrFormat(pub u32);

/// The formats that are known, and the list of them.
macro_rules! formats {
    ($($(#[$meta:meta])* $name:ident = $number:literal;)+) => {
        impl AddrFormat {
            $($(#[$meta])* pub const $name: Self = Self($number);)+

            /// Those that addresses can be read and printed in.
            pub const KNOWN: &'static [Self] = &[$(Self::$name),+];
        }
    };
}

formats! {
    /// The provider's own format, for us [`NativeAddr`](super::NativeAddr) as bytes; in hints: any.
    UNSPEC = 0;
    /// Any `sockaddr`, told by its family.
    SOCKADDR = 1;
    /// `sockaddr_in`.
    SOCKADDR_IN = 2;
    /// `sockaddr_in6`.
    SOCKADDR_IN6 = 3;
    /// `sockaddr_ib`.
    SOCKADDR_IB = 4;
    /// Text, a [`Uri`](super::Uri).
    STR = 9;
    /// [GID, queue pair number and path](super::IbUdAddr) of a datagram queue pair.
    IB_UD = 11;
    /// `sockaddr_in` or `sockaddr_in6`.
    SOCKADDR_IP = 17;
}

impl AddrFormat {
    /// Bytes of each address of the format. `None` where they differ: text, a `sockaddr` of any
    /// family, and formats that are not known.
    pub const fn fixed_len(self) -> Option<usize> {
        match self {
            Self::UNSPEC => Some(NATIVE_LEN),
            Self::SOCKADDR_IN => Some(SOCKADDR_IN_LEN),
            Self::SOCKADDR_IN6 => Some(SOCKADDR_IN6_LEN),
            Self::SOCKADDR_IB => Some(SOCKADDR_IB_LEN),
            Self::IB_UD => Some(IB_UD_LEN),
            _ => None,
        }
    }

    /// Whether addresses of the format are a `sockaddr`, and which families it may have.
    pub(super) const fn takes_family(self, family: u16) -> bool {
        match self {
            Self::SOCKADDR => matches!(family, AF_INET | AF_INET6 | AF_IB),
            Self::SOCKADDR_IP => matches!(family, AF_INET | AF_INET6),
            Self::SOCKADDR_IN => family == AF_INET,
            Self::SOCKADDR_IN6 => family == AF_INET6,
            Self::SOCKADDR_IB => family == AF_IB,
            _ => false,
        }
    }
}

bitflags! {
    /// A set of formats, each a kind of addresses.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct AddrFormats: u32 {
        /// [`AddrFormat::UNSPEC`].
        const NATIVE = 1 << AddrFormat::UNSPEC.0;
        /// Those that are a `sockaddr`.
        const SOCKADDR = 1 << AddrFormat::SOCKADDR.0;
        /// [`AddrFormat::STR`].
        const STR = 1 << AddrFormat::STR.0;
        /// [`AddrFormat::IB_UD`].
        const IB_UD = 1 << AddrFormat::IB_UD.0;
    }
}

impl AddrFormats {
    /// Whether the format is of one of these kinds.
    pub fn has(self, format: AddrFormat) -> bool {
        self.contains(match format {
            AddrFormat::UNSPEC => Self::NATIVE,
            AddrFormat::STR => Self::STR,
            AddrFormat::IB_UD => Self::IB_UD,
            AddrFormat::SOCKADDR
            | AddrFormat::SOCKADDR_IN
            | AddrFormat::SOCKADDR_IN6
            | AddrFormat::SOCKADDR_IB
            | AddrFormat::SOCKADDR_IP => Self::SOCKADDR,
            _ => return false,
        })
    }
}

impl fmt::Display for AddrFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UNSPEC => f.write_str("FI_FORMAT_UNSPEC"),
            Self::SOCKADDR => f.write_str("FI_SOCKADDR"),
            Self::SOCKADDR_IN => f.write_str("FI_SOCKADDR_IN"),
            Self::SOCKADDR_IN6 => f.write_str("FI_SOCKADDR_IN6"),
            Self::SOCKADDR_IB => f.write_str("FI_SOCKADDR_IB"),
            Self::STR => f.write_str("FI_ADDR_STR"),
            Self::IB_UD => f.write_str("FI_ADDR_IB_UD"),
            Self::SOCKADDR_IP => f.write_str("FI_SOCKADDR_IP"),
            Self(number) => write!(f, "address format {number}"),
        }
    }
}

impl fmt::Debug for AddrFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
