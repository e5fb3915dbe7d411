//! An address in any format, to and from the bytes that applications hand over.

use std::net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6};

use super::format::{AF_IB, AF_INET, AF_INET6};
use super::socket;
use super::{
    AddrError, AddrFormat, IB_UD_LEN, IbUdAddr, KeyedAddr, NativeAddr, SOCKADDR_IB_LEN,
    SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN, SockaddrIb,
};

/// An address in one of the formats. Text (`FI_ADDR_STR`) is a form that all of them have: see
/// [`Display`](std::fmt::Display) and [`FromStr`](std::str::FromStr).
///
/// ```
/// use ferrofabric_contracts::addr::{AddrError, Address};
///
/// let address: Address = "fi_sockaddr_in://10.1.0.1:7471".parse()?;
/// assert_eq!(address, Address::In("10.1.0.1:7471".parse().unwrap()));
/// assert_eq!(address.to_string(), "fi_sockaddr_in://10.1.0.1:7471");
/// # Ok::<(), AddrError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// All that is to know of an endpoint (`FI_FORMAT_UNSPEC`).
    Native(NativeAddr),
    /// All that is to know of one with authorization keys (`FI_FORMAT_UNSPEC`, too).
    Keyed(KeyedAddr),
    /// IPv4 address and port (`FI_SOCKADDR_IN`).
    In(SocketAddrV4),
    /// IPv6 address and port (`FI_SOCKADDR_IN6`).
    In6(SocketAddrV6),
    /// GID and service ID (`FI_SOCKADDR_IB`).
    Ib(SockaddrIb),
    /// Datagram queue pair (`FI_ADDR_IB_UD`).
    IbUd(IbUdAddr),
}

impl Address {
    /// Reads an address of a format. Text may end with a 0, and nothing counts after it.
    ///
    /// # Errors
    ///
    /// The fault of the address: its length, its family, a field; or of the format, which may be
    /// unknown.
    pub fn from_bytes(format: AddrFormat, bytes: &[u8]) -> Result<Self, AddrError> {
        match format {
            AddrFormat::UNSPEC if KeyedAddr::is_one(bytes) => {
                KeyedAddr::from_bytes(bytes).map(Self::Keyed)
            }
            AddrFormat::UNSPEC => NativeAddr::from_bytes(bytes).map(Self::Native),
            AddrFormat::IB_UD => {
                of_length(format, bytes, IB_UD_LEN)?;
                IbUdAddr::read(bytes).map(Self::IbUd)
            }
            AddrFormat::STR => {
                let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
                std::str::from_utf8(text)
                    .map_err(|_| AddrError::Field("text (UTF-8)"))?
                    .parse()
            }
            _ => sockaddr(format, bytes),
        }
    }

    /// The address as a format has it; text ends with a 0.
    ///
    /// # Errors
    ///
    /// [`AddrError::Format`]: the format cannot express it.
    pub fn to_bytes(&self, format: AddrFormat) -> Result<Vec<u8>, AddrError> {
        if format == AddrFormat::STR {
            let mut text = self.to_string().into_bytes();
            text.push(0);
            return Ok(text);
        }
        if !self.has_format(format) {
            return Err(AddrError::Format(format));
        }
        Ok(match self {
            Self::Native(addr) => addr.to_bytes().to_vec(),
            Self::Keyed(addr) => addr.to_bytes().to_vec(),
            Self::In(addr) => socket::write_in(addr).to_vec(),
            Self::In6(addr) => socket::write_in6(addr).to_vec(),
            Self::Ib(addr) => addr.to_bytes().to_vec(),
            Self::IbUd(addr) => addr.to_bytes().to_vec(),
        })
    }

    /// The narrowest format of the address, besides text.
    pub const fn format(&self) -> AddrFormat {
        match self {
            Self::Native(_) | Self::Keyed(_) => AddrFormat::UNSPEC,
            Self::In(_) => AddrFormat::SOCKADDR_IN,
            Self::In6(_) => AddrFormat::SOCKADDR_IN6,
            Self::Ib(_) => AddrFormat::SOCKADDR_IB,
            Self::IbUd(_) => AddrFormat::IB_UD,
        }
    }

    /// Whether the format can express it.
    pub fn has_format(&self, format: AddrFormat) -> bool {
        let family = match self {
            Self::Native(_) | Self::Keyed(_) | Self::IbUd(_) => None,
            Self::In(_) => Some(AF_INET),
            Self::In6(_) => Some(AF_INET6),
            Self::Ib(_) => Some(AF_IB),
        };
        format == AddrFormat::STR
            || format == self.format()
            || family.is_some_and(|family| format.takes_family(family))
    }

    /// The name of an open endpoint in its domain's format; `None` where that cannot express all
    /// endpoints.
    pub fn of_endpoint(name: NativeAddr, format: AddrFormat) -> Option<Self> {
        match format {
            AddrFormat::UNSPEC | AddrFormat::STR => Some(Self::Native(name)),
            AddrFormat::IB_UD => IbUdAddr::of(&name).map(Self::IbUd),
            _ => None,
        }
    }

    /// A socket's address as a format has it; `None` where that is not one of sockets' addresses,
    /// or of another family.
    pub fn of_socket(socket: SocketAddr, format: AddrFormat) -> Option<Self> {
        let addr = match format {
            AddrFormat::SOCKADDR_IB => Self::Ib(SockaddrIb::of_socket(&socket)),
            _ => Self::from(socket),
        };
        addr.has_format(format).then_some(addr)
    }

    /// IP address and port; `None` for addresses that have none. A `sockaddr_ib` has its GID for
    /// one, as on RoCE.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::In(addr) => Some(SocketAddr::V4(*addr)),
            Self::In6(addr) => Some(SocketAddr::V6(*addr)),
            Self::Ib(addr) => Some(SocketAddr::new(addr.ip().to_canonical(), addr.port())),
            Self::Native(_) | Self::Keyed(_) | Self::IbUd(_) => None,
        }
    }

    /// The IP address that a port's GID stands for, or a socket's own.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Native(addr) => Some(IpAddr::from(addr.verbs?.gid).to_canonical()),
            Self::Keyed(addr) => Some(IpAddr::from(addr.gid()).to_canonical()),
            Self::IbUd(addr) => Some(IpAddr::from(addr.gid).to_canonical()),
            socket => socket.socket().map(|socket| socket.ip()),
        }
    }

    /// The endpoint, for whose network a domain at `own` speaks; `None` where only the network can
    /// resolve it, or a key is missing.
    pub fn native(&self, own: &NativeAddr) -> Option<NativeAddr> {
        match self {
            Self::Native(addr) => Some(*addr),
            Self::IbUd(addr) => own.verbs.map(|verbs| addr.native(&verbs)),
            Self::Keyed(_) | Self::In(_) | Self::In6(_) | Self::Ib(_) => None,
        }
    }

    /// Bytes of a `sockaddr` of this family; `None` for one that is not known. For arrays of
    /// `FI_SOCKADDR`.
    pub const fn sockaddr_len(family: u16) -> Option<usize> {
        match family {
            AF_INET => Some(SOCKADDR_IN_LEN),
            AF_INET6 => Some(SOCKADDR_IN6_LEN),
            AF_IB => Some(SOCKADDR_IB_LEN),
            _ => None,
        }
    }
}

fn sockaddr(format: AddrFormat, bytes: &[u8]) -> Result<Address, AddrError> {
    if !AddrFormat::KNOWN.contains(&format) {
        return Err(AddrError::Format(format));
    }
    let family = socket::family(bytes)?;
    let len = match Address::sockaddr_len(family) {
        Some(len) if format.takes_family(family) => len,
        _ => return Err(AddrError::Family(family)),
    };
    of_length(format, bytes, len)?;
    match family {
        AF_INET => socket::read_in(bytes).map(Address::In),
        AF_INET6 => socket::read_in6(bytes).map(Address::In6),
        _ => SockaddrIb::read(bytes).map(Address::Ib),
    }
}

fn of_length(format: AddrFormat, bytes: &[u8], wanted: usize) -> Result<(), AddrError> {
    match bytes.len() == wanted {
        true => Ok(()),
        false => Err(AddrError::LengthOf {
            format,
            wanted,
            found: bytes.len(),
        }),
    }
}

impl From<NativeAddr> for Address {
    fn from(addr: NativeAddr) -> Self {
        Self::Native(addr)
    }
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        match addr {
            SocketAddr::V4(addr) => Self::In(addr),
            SocketAddr::V6(addr) => Self::In6(addr),
        }
    }
}

impl From<IbUdAddr> for Address {
    fn from(addr: IbUdAddr) -> Self {
        Self::IbUd(addr)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
