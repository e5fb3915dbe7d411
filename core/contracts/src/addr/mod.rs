//! Addresses of endpoints, in every format (fi_getinfo(3), "addressing formats"). `fi_getname`
//! returns the native one and address vectors store it, unless the domain's format is another.

mod address;
mod auth_key;
mod error;
mod format;
mod ib_ud;
mod keyed;
mod native;
mod native_text;
mod number;
mod sockaddr_ib;
mod socket;
mod text;
mod uri;

pub use address::Address;
pub use auth_key::{AUTH_KEY_LEN, AuthKey, AuthKeyError};
pub use error::AddrError;
pub use format::{AddrFormat, AddrFormats};
pub use format::{IB_UD_LEN, NATIVE_FAMILY, NATIVE_LEN};
pub use format::{SOCKADDR_IB_LEN, SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN};
pub use ib_ud::IbUdAddr;
pub use keyed::{KeySlots, KeyedAddr, MAX_EP_AUTH_KEYS};
pub use native::{GidKind, NativeAddr, NativeWords, VerbsAddr};
pub use number::{DRAWN_QKEY, NUMBER_BITS, join, split};
pub use sockaddr_ib::SockaddrIb;
pub(crate) use sockaddr_ib::UDP_PORT_SPACE;
pub use uri::Uri;

/// Bytes of an endpoint's address in whatever format, at most.
pub const MAX_ADDR_BYTES: usize = 256;
