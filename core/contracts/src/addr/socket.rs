//! `sockaddr_in` and `sockaddr_in6` as bytes (ip(7), ipv6(7)).

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6};

use super::error::AddrError;
use super::format::{AF_INET, AF_INET6, SOCKADDR_IN_LEN, SOCKADDR_IN6_LEN};

/// The `N` bytes from `at` on, of an address that is long enough.
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], AddrError> {
    bytes
        .get(at..at + N)
        .and_then(|part| part.try_into().ok())
        .ok_or(AddrError::Short(bytes.len()))
}

/// The family of a `sockaddr`.
pub(super) fn family(bytes: &[u8]) -> Result<u16, AddrError> {
    part(bytes, 0).map(u16::from_ne_bytes)
}

/// The eight bytes at the end are padding that nobody has to clear (ip(7)).
pub(super) fn read_in(bytes: &[u8]) -> Result<SocketAddrV4, AddrError> {
    let ip = Ipv4Addr::from(part::<4>(bytes, 4)?);
    Ok(SocketAddrV4::new(ip, u16::from_be_bytes(part(bytes, 2)?)))
}

pub(super) fn write_in(addr: &SocketAddrV4) -> [u8; SOCKADDR_IN_LEN] {
    let mut bytes = [0; SOCKADDR_IN_LEN];
    bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&addr.ip().octets());
    bytes
}

pub(super) fn read_in6(bytes: &[u8]) -> Result<SocketAddrV6, AddrError> {
    Ok(SocketAddrV6::new(
        Ipv6Addr::from(part::<16>(bytes, 8)?),
        u16::from_be_bytes(part(bytes, 2)?),
        // As the standard library has it: the field's bytes as they are.
        u32::from_ne_bytes(part(bytes, 4)?),
        u32::from_ne_bytes(part(bytes, 24)?),
    ))
}

pub(super) fn write_in6(addr: &SocketAddrV6) -> [u8; SOCKADDR_IN6_LEN] {
    let mut bytes = [0; SOCKADDR_IN6_LEN];
    bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
    bytes[2..4].copy_from_slice(&addr.port().to_be_bytes());
    bytes[4..8].copy_from_slice(&addr.flowinfo().to_ne_bytes());
    bytes[8..24].copy_from_slice(&addr.ip().octets());
    bytes[24..].copy_from_slice(&addr.scope_id().to_ne_bytes());
    bytes
}
