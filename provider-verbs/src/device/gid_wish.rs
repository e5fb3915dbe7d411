//! The GID that an application's hints ask for.
//!
//! A port may have an IPv4 and an IPv6 address, and several of each; each is a GID. An application
//! that names a source sends from exactly that GID. An application that names a peer, or an address
//! format, sends from a GID of the same family.

use std::net::{IpAddr, Ipv6Addr};

use ferrofabric_contracts::addr::{AddrFormat, Address, GidKind};
use ferrofabric_contracts::info::Info;

use super::gid::{Gid, GidEntry, GidScope};
use super::gid_choice::{GidRequest, choose_gid};
use super::port::LinkLayer;

/// A preference for a GID. If the port has no such GID, that is no failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GidWish {
    /// The best.
    Any,
    /// This one, in this encapsulation if the wish names one.
    This(Gid, Option<GidKind>),
    /// The best of the GIDs that are IPv4 addresses, or of those that are not.
    Ipv4(bool),
}

impl GidWish {
    /// The wish expressed by hints, or by an offer.
    pub(crate) fn of(info: &Info) -> Self {
        if let Some(wish) = info.src_addr.as_ref().and_then(of_source) {
            return wish;
        }
        let family = match info.dest_addr {
            Some(Address::In(_)) => Some(true),
            Some(Address::In6(_)) => Some(false),
            Some(Address::Native(peer)) => peer.verbs.map(|verbs| is_ipv4(Gid(verbs.gid))),
            Some(Address::Keyed(peer)) => Some(is_ipv4(Gid(peer.gid()))),
            Some(Address::IbUd(peer)) => Some(is_ipv4(Gid(peer.gid))),
            Some(Address::Ib(peer)) => Some(is_ipv4(Gid(peer.gid))),
            None => match info.addr_format {
                AddrFormat::SOCKADDR_IN => Some(true),
                AddrFormat::SOCKADDR_IN6 => Some(false),
                _ => None,
            },
        };
        family.map_or(Self::Any, Self::Ipv4)
    }

    /// The request to the port's table that fulfills this wish.
    pub(crate) fn request(self, table: &[GidEntry], link: LinkLayer) -> GidRequest {
        // On InfiniBand a GID's form has no meaning, and the first is the port's own.
        let granted = |entry: &GidEntry| match self {
            Self::Any => false,
            Self::This(gid, kind) => entry.gid == gid && kind.is_none_or(|kind| entry.kind == kind),
            Self::Ipv4(wanted) => entry.kind != GidKind::Ib && is_ipv4(entry.gid) == wanted,
        };
        let granted: Vec<GidEntry> = table.iter().copied().filter(granted).collect();
        match choose_gid(&granted, link, GidRequest::Best) {
            Ok(selection) => GidRequest::Index(selection.chosen.index),
            Err(_) => GidRequest::Best,
        }
    }
}

fn of_source(source: &Address) -> Option<GidWish> {
    let this = |gid| Some(GidWish::This(Gid(gid), None));
    match source {
        Address::Native(own) => own
            .verbs
            .map(|verbs| GidWish::This(Gid(verbs.gid), Some(verbs.gid_kind))),
        Address::IbUd(own) => this(own.gid),
        socket => match socket.socket()?.ip() {
            // Any of this host's: of this family.
            host if host.is_unspecified() || host.is_loopback() => {
                Some(GidWish::Ipv4(host.is_ipv4()))
            }
            IpAddr::V4(host) => this(host.to_ipv6_mapped().octets()),
            IpAddr::V6(host) => this(host.octets()),
        },
    }
}

fn is_ipv4(gid: Gid) -> bool {
    match gid.scope() {
        GidScope::Ipv4(_) | GidScope::Ipv4Local(_) => true,
        _ => Ipv6Addr::from(gid.0).to_ipv4_mapped().is_some(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        Gid(text.parse::<Ipv6Addr>().expect("an address").octets())
    }

    /// As a port with two addresses of each family has it.
    fn table() -> Vec<GidEntry> {
        let gids = [
            ("fe80::1", GidKind::RoceV1),
            ("fe80::1", GidKind::RoceV2),
            ("::ffff:10.1.0.1", GidKind::RoceV1),
            ("::ffff:10.1.0.1", GidKind::RoceV2),
            ("::ffff:10.9.0.1", GidKind::RoceV2),
            ("2001:db8::1", GidKind::RoceV2),
            ("2001:db8::2", GidKind::RoceV2),
        ];
        let entry = |(index, (text, kind)): (u32, (&str, GidKind))| GidEntry {
            index,
            gid: gid(text),
            kind,
            interface: None,
            is_elsewhere: false,
        };
        (0..).zip(gids).map(entry).collect()
    }

    fn chosen(wanted: &Info) -> u32 {
        let table = table();
        let request = GidWish::of(wanted).request(&table, LinkLayer::Ethernet);
        let selection = choose_gid(&table, LinkLayer::Ethernet, request).expect("one is usable");
        selection.chosen.index
    }

    /// Covers: GI-14
    #[test]
    fn the_gid_is_that_of_the_source_or_of_the_peers_family() {
        let source = |text: &str| Info {
            src_addr: Some(text.parse().expect("an address")),
            ..Info::default()
        };
        let peer = |text: &str| Info {
            dest_addr: Some(text.parse().expect("an address")),
            ..Info::default()
        };
        let format = |addr_format| Info {
            addr_format,
            ..Info::default()
        };
        let native = |ip: &str, kind: &str| {
            format!(
                "ferro://[{ip}]:0?type={kind}&qkey=1&lid=0&pkey=ffff&sl=0&port=1&mtu=1024&inc=0&node=5"
            )
        };
        for (wanted, index) in [
            (Info::default(), 3),
            (source("fi_sockaddr_in://10.9.0.1:0"), 4),
            (source("fi_sockaddr_in6://[2001:db8::2]:7"), 6),
            (source("fi_sockaddr_in6://[::]:7"), 5),
            (source("fi_sockaddr_in6://[::1]:7"), 5),
            (source("fi_sockaddr_in://127.0.0.1:7"), 3),
            // Not here: the best, which is then refused by its address.
            (source("fi_sockaddr_in://10.9.0.2:0"), 3),
            (source("fi_addr_ib_ud://2001:db8::1:0/0/ffff/0/"), 5),
            (source(&native("::ffff:10.1.0.1", "roce1")), 2),
            (source(&native("fe80::1", "roce2")), 1),
            (peer("fi_sockaddr_in://10.2.0.7:1"), 3),
            (peer("fi_sockaddr_in6://[2001:db8::7]:1"), 5),
            (peer(&native("fe80::9", "roce2")), 5),
            (peer(&native("::ffff:10.3.0.1", "roce2")), 3),
            (format(AddrFormat::SOCKADDR_IN6), 5),
            (format(AddrFormat::SOCKADDR_IN), 3),
            (format(AddrFormat::STR), 3),
        ] {
            assert_eq!(chosen(&wanted), index, "{wanted:?}");
        }
    }

    /// Covers: GI-14
    #[test]
    fn infiniband_has_no_families() {
        let own = GidEntry {
            index: 0,
            gid: gid("fe80::2:c903:1:2"),
            kind: GidKind::Ib,
            interface: None,
            is_elsewhere: false,
        };
        let other = GidEntry {
            index: 1,
            gid: gid("::ffff:10.1.0.1"),
            ..own
        };
        let request = |wish: GidWish| wish.request(&[own, other], LinkLayer::InfiniBand);
        assert_eq!(request(GidWish::Ipv4(true)), GidRequest::Best);
        assert_eq!(
            request(GidWish::This(other.gid, None)),
            GidRequest::Index(1)
        );
    }
}
