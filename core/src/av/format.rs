//! Addresses as an application has them, in the format of its domain.

use std::net::{IpAddr, SocketAddr};

use crate::addr::{AddrFormats, Address, NativeAddr, VerbsAddr};
use crate::error::{Errno, Error, Result};
use crate::info::AddrFormat;

/// Bytes of an endpoint's address in whatever format, at most.
pub const MAX_BYTES: usize = 256;

/// How a domain's addresses look, and what they leave out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Naming {
    pub(crate) format: AddrFormat,
    /// What all queue pairs that its endpoints talk to have in common with its own, where addresses do not say it.
    pub(crate) common: Option<VerbsAddr>,
    /// The IP address that its endpoints speak from: of a node's addresses one of that family is taken.
    pub(crate) host: Option<IpAddr>,
}

/// Whom an address names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// This endpoint.
    Endpoint(NativeAddr),
    /// Who listens there.
    Socket(SocketAddr),
}

impl Target {
    pub(super) fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Endpoint(_) => None,
            Self::Socket(at) => Some(*at),
        }
    }

    /// The endpoint, in formats whose addresses name no sockets.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is a socket.
    pub(crate) fn endpoint(self) -> Result<NativeAddr> {
        match self {
            Self::Endpoint(name) => Ok(name),
            Self::Socket(at) => Err(invalid(&format!("{at} is no endpoint"))),
        }
    }
}

impl Naming {
    /// Whom the bytes name; text where the format is text.
    ///
    /// # Errors
    ///
    /// `EINVAL`, with the reason.
    pub(crate) fn parse(&self, bytes: &[u8]) -> Result<Target> {
        self.target(&parse(self.format, bytes)?)
    }

    /// Whom an address names.
    ///
    /// # Errors
    ///
    /// `EINVAL`, with the reason.
    pub(crate) fn target(&self, addr: &Address) -> Result<Target> {
        let own = NativeAddr {
            incarnation: 0,
            node: 0,
            shm: None,
            verbs: self.common,
        };
        if let Some(name) = addr.native(&own) {
            return Ok(Target::Endpoint(name));
        }
        match addr.socket() {
            Some(at) if at.port() != 0 => Ok(Target::Socket(at)),
            Some(_) => Err(invalid("nobody listens at port 0")),
            None => Err(invalid(match addr {
                Address::Keyed(_) => {
                    "it is that of an endpoint with authorization keys: open the domain with FI_AV_AUTH_KEY, and say which key"
                }
                _ => "endpoints of this domain are not found by such addresses",
            })),
        }
    }

    /// Whether addresses of its format may name sockets.
    pub(crate) fn names_sockets(&self) -> bool {
        self.format == AddrFormat::STR || self.keeps_sockets()
    }

    /// Whether its address vectors tell of endpoints by socket address.
    pub(super) fn keeps_sockets(&self) -> bool {
        AddrFormats::SOCKADDR.has(self.format)
    }

    /// The one of a node's addresses to ask: in a family that the format has, the domain's own if need be.
    pub(super) fn choose(&self, all: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
        let told: Vec<_> = all
            .filter(|at| !self.keeps_sockets() || Address::of_socket(*at, self.format).is_some())
            .collect();
        let same = |at: &&SocketAddr| self.host.is_some_and(|host| host.is_ipv4() == at.is_ipv4());
        told.iter().find(same).or(told.first()).copied()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::GidKind;

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
            let bytes = to_bytes(format, &longest);
            assert!(bytes.len() <= MAX_BYTES, "{format}: {}", bytes.len());
        }
    }
}
