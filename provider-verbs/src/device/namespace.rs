//! GIDs of other network namespaces: a container that shares its host's devices sees them all.

use std::collections::HashSet;
use std::net::IpAddr;

use ferrofabric_contracts::addr::GidKind;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;

use super::gid::{GidEntry, GidScope};

/// Marks the entries whose interfaces are in another network namespace. (The number of an interface
/// does not show that: each namespace counts from one.)
pub(super) fn mark(table: &mut [GidEntry]) {
    let may_be = |entry: &GidEntry| entry.interface.is_some() && entry.kind != GidKind::Ib;
    if !table.iter().any(may_be) {
        return;
    }
    let Ok(interfaces) = getifaddrs() else {
        return;
    };
    let addresses = interfaces.filter_map(|interface| ip_of(&interface.address?));
    let here: HashSet<IpAddr> = addresses.collect();
    for entry in table.iter_mut().filter(|entry| may_be(entry)) {
        entry.is_elsewhere = is_elsewhere(entry, &here);
    }
}

/// The IP address in a socket address, if it is of this family.
pub(crate) fn ip_of(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| v4.ip().into());
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
}

fn is_elsewhere(entry: &GidEntry, here: &HashSet<IpAddr>) -> bool {
    match entry.gid.scope() {
        GidScope::Ipv4(ip) | GidScope::Ipv4Local(ip) => !here.contains(&IpAddr::V4(ip)),
        GidScope::Ipv6Global => !here.contains(&IpAddr::from(entry.gid.0)),
        // A port has its link-local GID also where the interface has no such address.
        GidScope::Ipv6LinkLocal => entry.interface_name().is_none(),
        GidScope::Unusable => false,
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;
    use crate::device::Gid;

    #[test]
    fn an_address_that_no_interface_here_has_is_elsewhere() {
        let entry = |gid: &str, interface| GidEntry {
            index: 0,
            gid: Gid(gid.parse::<Ipv6Addr>().expect("an address").octets()),
            kind: GidKind::RoceV2,
            interface,
            is_elsewhere: false,
        };
        // Interface 1 is the loopback of each namespace; the others are of documentation.
        let mut table = [
            entry("::ffff:127.0.0.1", Some(1)),
            entry("::ffff:192.0.2.1", Some(1)),
            entry("2001:db8::1", Some(1)),
            entry("fe80::1", Some(1)),
            entry("fe80::1", Some(u32::MAX)),
            entry("::ffff:192.0.2.1", None),
        ];
        mark(&mut table);
        let marks = table.map(|entry| entry.is_elsewhere);
        assert_eq!(marks, [false, true, true, false, true, false]);
    }
}
