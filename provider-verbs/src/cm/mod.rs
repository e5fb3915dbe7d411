//! The connection manager finds endpoints by socket address, and paths.
//!
//! Endpoints by socket address: the connection manager's service ID resolution (SIDR, IBTA 1.5
//! §12.11, rdma_cm(7)). An endpoint listens at an IP address and a port of the datagram port space;
//! a peer sends a request there and gets the endpoint's native address. This makes no connection,
//! and messages do not pass through it.

mod channel;
mod listener;
mod path_record;
mod resolver;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_contracts::error::{Errno, Error, Result};

use crate::device::GidScope;
use crate::port::LocalPort;
use channel::EventChannel;

pub(crate) use listener::ListenerThread;
pub(crate) use path_record::known_path;
pub(crate) use resolver::SidrResolver;

/// The IP address that a port sends from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortHost {
    ip: IpAddr,
    /// The interface of the address, which link-local addresses need.
    interface: u32,
}

impl PortHost {
    /// The IP address of a port; `None` where its GID is no IP address.
    fn of(port: &LocalPort) -> Option<Self> {
        let usable = !matches!(port.gid.scope(), GidScope::Unusable);
        (usable && port.gid_kind != GidKind::Ib).then(|| Self {
            ip: IpAddr::from(port.gid.0).to_canonical(),
            interface: port.interface,
        })
    }

    /// A socket address of this host.
    fn socket(&self, port: u16) -> SocketAddr {
        self.scoped(SocketAddr::new(self.ip, port))
    }

    /// The socket address to send a request to, for the peer at `at`: the address of this port
    /// stands for the loopback and the unspecified address; a link-local address without an
    /// interface is on this port's interface.
    fn reach(&self, at: SocketAddr) -> SocketAddr {
        if at.ip().is_loopback() || at.ip().is_unspecified() {
            return self.socket(at.port());
        }
        match at.ip().to_canonical() {
            IpAddr::V4(ip) => SocketAddr::new(ip.into(), at.port()),
            IpAddr::V6(_) => self.scoped(at),
        }
    }

    fn scoped(&self, at: SocketAddr) -> SocketAddr {
        match at {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
                SocketAddrV6::new(*v6.ip(), v6.port(), 0, self.interface).into()
            }
            at => at,
        }
    }
}

/// The IP address at which peers find the endpoints of a port.
///
/// # Errors
///
/// The port has no IP address, librdmacm is missing or too old, or the kernel has no connection
/// manager for users.
pub(crate) fn host(port: &LocalPort) -> Result<PortHost> {
    let host = PortHost::of(port).ok_or_else(|| {
        Error::new(
            Errno::EADDRNOTAVAIL,
            "find endpoints by socket address at",
            format!("GID {}", port.gid),
        )
        .mend("it is no IP address: give the port's interface one")
    })?;
    EventChannel::open().map(|_| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(ip: &str) -> PortHost {
        PortHost {
            ip: ip.parse().unwrap(),
            interface: 7,
        }
    }

    fn reached(from: &str, at: &str) -> String {
        host(from).reach(at.parse().unwrap()).to_string()
    }

    #[test]
    fn what_stands_for_this_host_is_its_own_address() {
        for this in ["127.0.0.1:5", "0.0.0.0:5", "[::1]:5", "[::]:5"] {
            assert_eq!(reached("10.1.0.1", this), "10.1.0.1:5");
            assert_eq!(reached("fe80::1", this), "[fe80::1%7]:5");
        }
        assert_eq!(reached("10.1.0.1", "10.1.0.2:5"), "10.1.0.2:5");
        assert_eq!(reached("10.1.0.1", "[::ffff:10.1.0.2]:5"), "10.1.0.2:5");
    }

    #[test]
    fn link_local_addresses_are_on_the_ports_interface_unless_they_say_another() {
        assert_eq!(host("fe80::1").socket(9).to_string(), "[fe80::1%7]:9");
        assert_eq!(reached("fe80::1", "[fe80::2]:5"), "[fe80::2%7]:5");
        assert_eq!(reached("fe80::1", "[fe80::2%3]:5"), "[fe80::2%3]:5");
        assert_eq!(reached("2001:db8::1", "[2001:db8::2]:5"), "[2001:db8::2]:5");
    }
}
