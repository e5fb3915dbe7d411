//! Whether an endpoint on this node takes messages through a provider: a socket on an abstract name
//! made of the provider's and the endpoint's.
//!
//! The name is there from before the endpoint's address is known to anybody until the endpoint
//! closes or its process ends, in whatever way that happens. A provider written in C reports
//! neither. An endpoint with another setting has no such socket, nor has one in another network
//! namespace.

use std::fs::OpenOptions;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;

use ferrofabric_contracts::error::{Error, Result};
use ferrofabric_system::forked::Birth;

use super::name_of;

/// The presence of an endpoint of this process.
pub(super) struct Presence(
    #[expect(dead_code, reason = "its name is there while it is open")] UnixDatagram,
);

/// Looks for the presence of others.
pub(super) struct PresenceProbe {
    provider: &'static str,
    socket: UnixDatagram,
    birth: Birth,
}

/// The provider that has a file in /dev/shm for each endpoint.
const SHM: &str = "shm";

/// Where its files are.
pub(super) const SHM_FILES: &str = "/dev/shm";

fn may_open(number: u64) -> bool {
    let path = Path::new(SHM_FILES).join(name_of(number));
    OpenOptions::new().read(true).write(true).open(path).is_ok()
}

fn address(provider: &str, number: u64) -> std::io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ferrofabric.{number:016x}.{provider}"))
}

impl Presence {
    /// Shows that the endpoint with this number takes messages through a provider.
    ///
    /// # Errors
    ///
    /// `EADDRINUSE`: another endpoint has the number.
    pub(super) fn show(provider: &str, number: u64) -> Result<Self> {
        address(provider, number)
            .and_then(|name| UnixDatagram::bind_addr(&name))
            .map(Self)
            .map_err(|e| {
                Error::from_io(&e, "bind", format!("presence of {provider} {number:016x}"))
            })
    }
}

impl PresenceProbe {
    /// For endpoints that take messages through a provider.
    ///
    /// # Errors
    ///
    /// When there is no descriptor.
    pub(super) fn new(provider: &'static str) -> Result<Self> {
        let socket = UnixDatagram::unbound()
            .map_err(|e| Error::from_io(&e, "create", "socket that looks for local endpoints"))?;
        Ok(Self {
            provider,
            socket,
            birth: Birth::here(),
        })
    }

    /// Whether the endpoint with this number is there, and this process may open its memory.
    /// `false` if that can not be found out.
    pub(super) fn finds(&self, number: u64) -> bool {
        let is_there = self.birth.is_this_process()
            && address(self.provider, number)
                .and_then(|name| self.socket.connect_addr(&name))
                .is_ok();
        is_there && (self.provider != SHM || may_open(number))
    }

    /// Whether the endpoint with this number is gone. `false` if that can not be found out.
    pub(super) fn misses(&self, number: u64) -> bool {
        let refused = |e: std::io::Error| e.kind() == std::io::ErrorKind::ConnectionRefused;
        address(self.provider, number)
            .and_then(|name| self.socket.connect_addr(&name))
            .is_err_and(refused)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_by_its_provider_and_number_while_it_is_there() {
        let number = 0x7700_0000_0000_0000 | (u64::from(std::process::id()) << 8);
        let probe = PresenceProbe::new("near").unwrap();
        assert!(!probe.finds(number) && probe.misses(number));
        let presence = Presence::show("near", number).unwrap();
        for _ in 0..2 {
            assert!(probe.finds(number) && !probe.misses(number));
            assert!(!probe.finds(number | 1) && probe.misses(number | 1));
        }
        let other = PresenceProbe::new("other").unwrap();
        assert!(!other.finds(number));
        let again = Presence::show("near", number).err().unwrap();
        assert_eq!(
            again.errno(),
            ferrofabric_contracts::error::Errno::EADDRINUSE
        );
        drop(presence);
        assert!(!probe.finds(number) && probe.misses(number));
    }
}
