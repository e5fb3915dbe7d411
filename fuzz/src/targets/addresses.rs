//! Addresses, as bytes of a format and as text.

use std::net::{SocketAddrV4, SocketAddrV6};

use ferrofabric_contracts::addr::{
    AddrError, AddrFormat, Address, GidKind, IbUdAddr, NativeAddr, SockaddrIb, Uri, VerbsAddr,
};

use super::seed;
use crate::{FuzzTarget, saw};

/// The format's number, then an address.
pub(super) const BYTES: FuzzTarget = FuzzTarget {
    name: "address_bytes",
    take: take_bytes,
    seeds: byte_seeds,
    words: &["ferro://", "\x02\x00", "\x0a\x00", "\x1b\x00"],
};

/// An address as text.
pub(super) const TEXT: FuzzTarget = FuzzTarget {
    name: "address_text",
    take: take_text,
    seeds: text_seeds,
    words: &[
        "ferro://",
        "fi_sockaddr://",
        "fi_sockaddr_in://",
        "fi_sockaddr_in6://",
        "fi_sockaddr_ib://",
        "fi_addr_ib_ud://",
        "[",
        "]",
        ":",
        "/",
        "?",
        "&",
        "=",
        "%",
        "::ffff:",
        "fe80::",
        "type=roce2",
        "inc=",
        "node=",
        "shm=",
        "qkey=",
        "scope=",
        "flow=",
        "mask=",
        "service=",
        "0x",
        "+",
        "-",
    ],
};

fn take_bytes(bytes: &[u8]) -> u64 {
    let Some((format, bytes)) = bytes.split_first() else {
        return 0;
    };
    let format = AddrFormat(u32::from(*format));
    match Address::from_bytes(format, bytes) {
        Ok(addr) => {
            assert!(addr.has_format(format));
            let again = addr.to_bytes(format).expect("it came in that format");
            assert_eq!(Address::from_bytes(format, &again), Ok(addr));
            check(&addr);
            saw((format, addr.format()))
        }
        Err(why) => saw((format, kind(why))),
    }
}

fn take_text(bytes: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return 0;
    };
    let mut form = None;
    if let Ok(uri) = Uri::parse(text) {
        let colons = |text: &str| text.matches(':').count().min(8);
        form = Some((
            uri.keys.len().min(16),
            uri.fields.len().min(8),
            (colons(uri.node), colons(uri.service)),
            uri.node.contains('%'),
        ));
        let printed = uri.to_string();
        let again = Uri::parse(&printed);
        assert!(
            again.is_ok(),
            "{text:?} is printed as {printed:?}: {again:?}"
        );
    }
    match text.parse::<Address>() {
        Ok(addr) => {
            check(&addr);
            let shape = match addr {
                Address::Native(addr) => (addr.verbs.is_some(), addr.shm.is_some()),
                _ => (false, false),
            };
            saw((addr.format(), shape, form))
        }
        Err(why) => saw((kind(why), form)),
    }
}

/// Text gives the address back, and every format that it has does.
fn check(addr: &Address) {
    let text = addr.to_string();
    assert_eq!(text.parse::<Address>(), Ok(*addr), "{text}");
    for &format in AddrFormat::KNOWN {
        match addr.to_bytes(format) {
            Ok(bytes) => assert_eq!(Address::from_bytes(format, &bytes), Ok(*addr), "{format}"),
            Err(why) => assert_eq!(why, AddrError::Format(format)),
        }
    }
    let _ = (addr.socket(), addr.native(&native()));
}

/// The reason without its numbers.
fn kind(why: AddrError) -> String {
    match why {
        AddrError::Field(field) => field.to_owned(),
        why => format!("{why:?}")
            .chars()
            .take_while(|c| c.is_alphabetic())
            .collect(),
    }
}

fn native() -> NativeAddr {
    NativeAddr {
        incarnation: 0x1234_5678_9abc_def0,
        node: 0x11,
        shm: Some(7),
        verbs: Some(VerbsAddr {
            gid: std::net::Ipv4Addr::new(10, 1, 0, 1)
                .to_ipv6_mapped()
                .octets(),
            gid_kind: GidKind::RoceV2,
            qpn: 17,
            qkey: 0x1111_1111,
            lid: 0,
            pkey: 0xffff,
            sl: 0,
            port: 1,
            mtu_bytes: 1024,
        }),
    }
}

pub(super) fn addresses() -> Vec<(&'static str, Address)> {
    let gid = native().verbs.map_or([0; 16], |verbs| verbs.gid);
    let ud = IbUdAddr::of(&native()).map(Address::IbUd);
    let mut all = vec![
        ("native", Address::Native(native())),
        (
            "native_shm",
            Address::Native(NativeAddr {
                verbs: None,
                ..native()
            }),
        ),
        (
            "native_verbs",
            Address::Native(NativeAddr {
                shm: None,
                ..native()
            }),
        ),
        (
            "in",
            Address::In(SocketAddrV4::new([10, 1, 0, 1].into(), 7471)),
        ),
        (
            "in6",
            Address::In6(SocketAddrV6::new(
                ((0xfe80u128 << 112) | 1).into(),
                7471,
                0,
                2,
            )),
        ),
        ("ib", Address::Ib(SockaddrIb::new(gid, 0xffff, 0x111, 7471))),
    ];
    all.extend(ud.map(|ud| ("ib_ud", ud)));
    all
}

/// Addresses with each kind of GID.
fn of_gid_kinds() -> impl Iterator<Item = (String, Address)> {
    GidKind::ALL.iter().map(|&gid_kind| {
        let mut addr = native();
        addr.verbs = addr.verbs.map(|verbs| VerbsAddr {
            gid_kind,
            // Without a LID there is no path to an InfiniBand address.
            lid: 1,
            ..verbs
        });
        let name = format!("gid_{}", gid_kind as u8);
        (name, Address::Native(addr))
    })
}

fn byte_seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let named = addresses().into_iter();
    let named = named.map(|(name, addr)| (name.to_owned(), addr));
    for (name, addr) in named.chain(of_gid_kinds()) {
        let own = addr.to_bytes(addr.format()).unwrap_or_default();
        for &format in AddrFormat::KNOWN {
            // Where the address has no such form, its bytes say that they are of that one.
            let bytes = addr.to_bytes(format).unwrap_or_else(|_| own.clone());
            all.push(seed(
                &format!("{name}_{}", format.0),
                [&[format.0 as u8], &bytes[..]].concat(),
            ));
        }
    }
    all
}

fn text_seeds() -> Vec<(String, Vec<u8>)> {
    let named = addresses()
        .into_iter()
        .map(|(name, addr)| seed(name, addr.to_string()));
    let gids = of_gid_kinds().map(|(name, addr)| seed(&name, addr.to_string()));
    named
        .chain(gids)
        .chain([seed("keys", "fi_sockaddr://10.31.6.12:7471?qos=3")])
        .collect()
}
