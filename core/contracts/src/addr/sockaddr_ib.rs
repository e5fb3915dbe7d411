//! `sockaddr_ib` (the kernel's rdma/ib.h): a GID and a service ID, as the connection manager takes
//! them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::error::AddrError;
use super::format::{AF_IB, SOCKADDR_IB_LEN};
use super::socket::part;

/// Where service IDs of datagrams are (`RDMA_PS_UDP` of rdma_create_id(3)).
pub(crate) const UDP_PORT_SPACE: u64 = 0x111;

/// A `sockaddr_ib`, with its numbers in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SockaddrIb {
    /// Partition key; 0 for any.
    pub pkey: u16,
    /// Flow label.
    pub flow: u32,
    /// Global identifier.
    pub gid: [u8; 16],
    /// Service ID: [port space](Self::port_space) and [port](Self::port), or any 64 bits.
    pub sid: u64,
    /// The bits of the service ID that count.
    pub sid_mask: u64,
    /// Scope of a link-local GID.
    pub scope: u64,
}

impl SockaddrIb {
    /// An address with a port of a port space (rdma_create_id(3)); all bits of the service ID count
    /// where both are there, none where not.
    pub const fn new(gid: [u8; 16], pkey: u16, port_space: u64, port: u16) -> Self {
        Self {
            pkey,
            flow: 0,
            gid,
            sid: (port_space << 16) | port as u64,
            sid_mask: Self::usual_mask(port_space, port),
            scope: 0,
        }
    }

    /// The port of a datagram service at an IP address, which RoCE has its GID from.
    pub fn of_socket(socket: &SocketAddr) -> Self {
        let ip = match socket.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self::new(ip.octets(), 0xffff, UDP_PORT_SPACE, socket.port())
    }

    pub(super) const fn usual_mask(port_space: u64, port: u16) -> u64 {
        match port_space != 0 && port != 0 {
            true => u64::MAX,
            false => 0,
        }
    }

    /// The upper 48 bits of the service ID.
    pub const fn port_space(&self) -> u64 {
        self.sid >> 16
    }

    /// The lower 16 bits of the service ID.
    pub const fn port(&self) -> u16 {
        self.sid as u16
    }

    /// The GID as an IPv6 address, which RoCE has it from.
    pub const fn ip(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.gid))
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, AddrError> {
        Ok(Self {
            pkey: u16::from_be_bytes(part(bytes, 2)?),
            flow: u32::from_be_bytes(part(bytes, 4)?),
            gid: part(bytes, 8)?,
            sid: u64::from_be_bytes(part(bytes, 24)?),
            sid_mask: u64::from_be_bytes(part(bytes, 32)?),
            scope: u64::from_be_bytes(part(bytes, 40)?),
        })
    }

    /// The address as bytes.
    pub fn to_bytes(&self) -> [u8; SOCKADDR_IB_LEN] {
        let mut bytes = [0; SOCKADDR_IB_LEN];
        bytes[..2].copy_from_slice(&AF_IB.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.flow.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.gid);
        bytes[24..32].copy_from_slice(&self.sid.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.sid_mask.to_be_bytes());
        bytes[40..].copy_from_slice(&self.scope.to_be_bytes());
        bytes
    }
}
