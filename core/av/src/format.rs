//! Addresses as an application has them, in the format of its domain: parsing for insertion, and
//! printing for look-ups.
//!
//! An address names either an endpoint, with all that a send to it needs, or a socket address that
//! is resolved later.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use ferrofabric_contracts::addr::{
    AddrFormats, Address, AuthKey, KeyedAddr, NATIVE_FAMILY, NATIVE_LEN, NativeAddr, VerbsAddr,
};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::AddrFormat;

/// The format of a domain's addresses, and the fields that it leaves out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Naming {
    /// Their format.
    pub format: AddrFormat,
    /// The fields that all queue pairs in reach of its endpoints have in common, where addresses
    /// leave them out.
    pub common: Option<VerbsAddr>,
    /// The IP address that its endpoints speak from: of a node's addresses one of that family is
    /// taken.
    pub host: Option<IpAddr>,
}

/// The endpoint that an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddrTarget {
    /// This endpoint.
    Endpoint(NativeAddr),
    /// The endpoint that listens there.
    Socket(SocketAddr),
}

impl AddrTarget {
    /// The endpoint, where it is known.
    pub fn endpoint(&self) -> Option<&NativeAddr> {
        match self {
            Self::Endpoint(name) => Some(name),
            Self::Socket(_) => None,
        }
    }
}

/// The endpoint that an address names, and the way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedAddr {
    /// The endpoint.
    pub target: AddrTarget,
    /// With this authorization key, where each address needs one.
    pub(super) key: Option<AuthKey>,
    /// The rest of the address of an endpoint with several keys, beyond the way to it with this
    /// one.
    pub(super) keyed: Option<KeyedAddr>,
}

impl From<AddrTarget> for ParsedAddr {
    fn from(target: AddrTarget) -> Self {
        Self {
            target,
            key: None,
            keyed: None,
        }
    }
}

impl Naming {
    /// The endpoint that the bytes name; text where the format is text.
    ///
    /// # Errors
    ///
    /// `EINVAL`, with the reason.
    pub fn parse(&self, bytes: &[u8]) -> Result<AddrTarget> {
        self.target(&parse(self.format, bytes)?)
    }

    /// The endpoint that an address names.
    ///
    /// # Errors
    ///
    /// `EINVAL`, with the reason.
    pub fn target(&self, addr: &Address) -> Result<AddrTarget> {
        let own = NativeAddr {
            incarnation: 0,
            node: 0,
            shm: None,
            verbs: self.common,
        };
        if let Some(name) = addr.native(&own) {
            return Ok(AddrTarget::Endpoint(name));
        }
        match addr.socket() {
            Some(at) => match no_endpoint(&at) {
                None => Ok(AddrTarget::Socket(at)),
                Some(why) => Err(invalid(why)),
            },
            None => Err(invalid(match addr {
                Address::Keyed(_) => {
                    "it is that of an endpoint with authorization keys: open the domain with FI_AV_AUTH_KEY, and say which key"
                }
                _ => "endpoints of this domain are not found by such addresses",
            })),
        }
    }

    /// The endpoint that an address names, to be reached with a key.
    ///
    /// # Errors
    ///
    /// As [`target`](Self::target).
    pub fn with_key(&self, addr: &Address, key: AuthKey) -> Result<ParsedAddr> {
        let (target, keyed) = match addr {
            Address::Keyed(name) => (AddrTarget::Endpoint(name.with_key(key)), Some(*name)),
            plain => match self.target(plain)? {
                AddrTarget::Endpoint(name) => {
                    (AddrTarget::Endpoint(reached_with(name, key)?), None)
                }
                socket => (socket, None),
            },
        };
        Ok(ParsedAddr {
            target,
            key: Some(key),
            keyed,
        })
    }

    /// Whether its address vectors tell of endpoints by socket address.
    pub fn keeps_sockets(&self) -> bool {
        AddrFormats::SOCKADDR.has(self.format)
    }

    /// The address of a node to use: in a family that the format has, the domain's own if need be.
    pub(super) fn choose(&self, all: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
        let candidates: Vec<_> = all
            .filter(|at| !self.keeps_sockets() || Address::of_socket(*at, self.format).is_some())
            .collect();
        let same = |at: &&SocketAddr| self.host.is_some_and(|host| host.is_ipv4() == at.is_ipv4());
        candidates.iter().find(same).or(candidates.first()).copied()
    }
}

/// How an endpoint with a key of its own is reached with that.
///
/// # Errors
///
/// `EINVAL`: it has no queue pair.
pub(super) fn reached_with(name: NativeAddr, key: AuthKey) -> Result<NativeAddr> {
    match name.verbs {
        Some(_) => Ok(name.with_auth_key(key)),
        None => Err(invalid("it is that of an endpoint without queue pairs")),
    }
}

/// The address in these bytes; text where the format is text. Where it is one of sockets'
/// addresses, a native address is taken too: not every endpoint has a socket.
///
/// # Errors
///
/// `EINVAL`, with the reason.
pub fn parse(format: AddrFormat, bytes: &[u8]) -> Result<Address> {
    let read = match bytes.first_chunk() {
        Some(family) if is_native(format, u16::from_ne_bytes(*family)) => {
            NativeAddr::from_bytes(bytes).map(Address::Native)
        }
        _ => Address::from_bytes(format, bytes),
    };
    read.map_err(|why| invalid(&why.to_string()))
}

/// Whether an address that starts as a `sockaddr` of this family is a native one in place of a
/// socket's.
fn is_native(format: AddrFormat, family: u16) -> bool {
    family == NATIVE_FAMILY && AddrFormats::SOCKADDR.has(format)
}

/// Bytes of an address that starts with this family, where the format is one of sockets' addresses;
/// `None` for a family that is not known, and for text.
pub fn len(format: AddrFormat, family: u16) -> Option<usize> {
    match is_native(format, family) {
        true => Some(NATIVE_LEN),
        false => format.fixed_len().or_else(|| Address::sockaddr_len(family)),
    }
}

/// An address as the application gets it: text ends with a 0. Native where the format cannot
/// express it.
pub fn to_bytes(format: AddrFormat, addr: &Address) -> Vec<u8> {
    addr.to_bytes(format)
        .or_else(|_| addr.to_bytes(addr.format()))
        .unwrap_or_default()
}

/// An endpoint's address as the application gets it.
pub fn endpoint_to_bytes(format: AddrFormat, name: &NativeAddr) -> Vec<u8> {
    let addr = Address::of_endpoint(*name, format).unwrap_or(Address::Native(*name));
    to_bytes(format, &addr)
}

/// Why no endpoint can be at a socket address; `None`: one can.
pub(super) fn no_endpoint(at: &SocketAddr) -> Option<&'static str> {
    let ip = at.ip().to_canonical();
    if at.port() == 0 {
        Some("nobody listens at port 0")
    } else if ip.is_unspecified() {
        Some("the unspecified address stands for no host")
    } else if ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some("it is an address of many hosts")
    } else {
        None
    }
}

fn invalid(why: &str) -> Error {
    Error::new(Errno::EINVAL, "insert", "address").mend(why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferrofabric_contracts::addr::{GidKind, MAX_ADDR_BYTES, SOCKADDR_IN_LEN};

    /// Covers: AV-10, AV-18, AV-25
    #[test]
    fn an_endpoint_without_a_socket_has_its_native_address() {
        let name = NativeAddr {
            incarnation: 7,
            node: 1,
            shm: Some(7),
            verbs: None,
        };
        for &format in AddrFormat::KNOWN {
            let bytes = endpoint_to_bytes(format, &name);
            let naming = Naming {
                format,
                ..Naming::default()
            };
            let read = naming.parse(&bytes).map_err(|error| error.errno());
            match format {
                // Its endpoints all have queue pairs.
                AddrFormat::IB_UD => assert_eq!(read, Err(Errno::EINVAL)),
                _ => assert_eq!(read, Ok(AddrTarget::Endpoint(name)), "{format}"),
            }
            if AddrFormats::SOCKADDR.has(format) {
                assert_eq!(len(format, NATIVE_FAMILY), Some(bytes.len()));
                for end in [0, 1, 2, SOCKADDR_IN_LEN, bytes.len() - 1] {
                    assert!(naming.parse(&bytes[..end]).is_err(), "{format}: {end}");
                }
            }
        }
        let inet = 2;
        assert_eq!(len(AddrFormat::SOCKADDR, inet), Some(SOCKADDR_IN_LEN));
        assert_eq!(len(AddrFormat::SOCKADDR, 77), None);
        // The format decides the length, even where the family is wrong.
        assert_eq!(len(AddrFormat::SOCKADDR_IN, 10), Some(SOCKADDR_IN_LEN));
        assert_eq!(len(AddrFormat::IB_UD, NATIVE_FAMILY), Some(32));
    }

    #[test]
    fn the_longest_address_is_as_long_as_said() {
        let longest = NativeAddr {
            incarnation: u64::MAX,
            node: u64::MAX,
            shm: Some(u64::MAX),
            verbs: Some(VerbsAddr {
                gid: [0xfe; 16],
                gid_kind: GidKind::RoceV2,
                qpn: 0xff_ffff,
                qkey: u32::MAX,
                lid: u16::MAX,
                pkey: u16::MAX,
                sl: 15,
                port: u8::MAX,
                mtu_bytes: 4096,
            }),
        };
        for format in [AddrFormat::UNSPEC, AddrFormat::STR, AddrFormat::IB_UD] {
            let bytes = endpoint_to_bytes(format, &longest);
            assert!(bytes.len() <= MAX_ADDR_BYTES, "{format}: {}", bytes.len());
        }
    }
}
