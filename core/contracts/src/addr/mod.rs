//! Addresses of endpoints, in every format (fi_getinfo(3), "addressing formats"). The native one is what `fi_getname` returns
//! and what address vectors store, unless the domain's format is another.

mod address;
mod auth_key;
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
pub use format::{AddrFormat, AddrFormats};
pub use ib_ud::{IB_UD_LEN, IbUdAddr};
pub use keyed::{KeySlots, KeyedAddr, MAX_EP_AUTH_KEYS};
pub use native::NativeWords;
pub use native::{AddrError, GidKind, NATIVE_FAMILY, NATIVE_LEN, NativeAddr, VerbsAddr};
pub use number::{NUMBER_BITS, join, split};
pub(crate) use sockaddr_ib::UDP_PORT_SPACE;
pub use sockaddr_ib::{SOCKADDR_IB_LEN, SockaddrIb};
pub use socket::{SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN};
pub use uri::Uri;

/// Bytes of an endpoint's address in whatever format, at most.
pub const MAX_ADDR_BYTES: usize = 256;
