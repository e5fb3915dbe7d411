//! Every format, there and back.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::super::format::FAMILIES;
use super::super::keyed::tests::any_keyed;
use super::super::native::tests::any_addr;
use super::super::{AddrError, AddrFormat, IbUdAddr, SockaddrIb, Uri};
use super::*;

fn any_ip6() -> impl Strategy<Value = Ipv6Addr> {
    prop_oneof![
        any::<[u8; 16]>().prop_map(Ipv6Addr::from),
        any::<[u8; 4]>().prop_map(|v4| Ipv4Addr::from(v4).to_ipv6_mapped()),
        any::<u16>().prop_map(|low| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, low)),
    ]
}

/// Often the usual value.
fn mostly<T: Clone + std::fmt::Debug + Arbitrary + 'static>(usual: T) -> impl Strategy<Value = T> {
    prop_oneof![Just(usual), any::<T>()]
}

fn any_address() -> impl Strategy<Value = Address> {
    let gid = || any_ip6().prop_map(|ip| ip.octets());
    let in6 = (any_ip6(), any::<u16>(), mostly(0u32), mostly(0u32));
    let ib = (gid(), any::<u16>(), any::<u16>(), mostly(0x111u64));
    let more = (mostly(0u32), mostly(u64::MAX), mostly(0u64));
    let ud = (
        gid(),
        0u32..1 << 24,
        any::<(u16, u16)>(),
        mostly(0u16),
        0u8..16,
    );
    prop_oneof![
        any_addr().prop_map(Address::Native),
        any_keyed().prop_map(Address::Keyed),
        any::<([u8; 4], u16)>()
            .prop_map(|(ip, port)| Address::In(SocketAddrV4::new(ip.into(), port))),
        in6.prop_map(|(ip, port, flow, scope)| {
            Address::In6(SocketAddrV6::new(ip, port, flow, scope))
        }),
        (ib, more).prop_map(|((gid, pkey, port, space), (flow, sid_mask, scope))| {
            let addr = SockaddrIb::new(gid, pkey, space & 0xffff_ffff_ffff, port);
            Address::Ib(SockaddrIb {
                flow,
                sid_mask,
                scope,
                ..addr
            })
        }),
        ud.prop_filter("no group", |(gid, ..)| gid[0] != 0xff)
            .prop_map(|(gid, qpn, (lid, pkey), service, sl)| {
                Address::IbUd(IbUdAddr {
                    gid,
                    qpn,
                    lid,
                    pkey,
                    service,
                    sl,
                })
            }),
    ]
}

proptest! {
    /// Covers: GI-5
    #[test]
    fn text_gives_every_address_back(addr in any_address()) {
        let text = addr.to_string();
        prop_assert_eq!(text.parse::<Address>(), Ok(addr), "{}", text);
        // The same bytes as an application has them, with and without the 0.
        let bytes = addr.to_bytes(AddrFormat::STR).unwrap();
        prop_assert_eq!(Address::from_bytes(AddrFormat::STR, &bytes), Ok(addr));
        prop_assert_eq!(Address::from_bytes(AddrFormat::STR, text.as_bytes()), Ok(addr));
    }

    /// Covers: GI-5
    #[test]
    fn bytes_give_every_address_back_in_its_formats_and_in_no_other(addr in any_address()) {
        let formats = AddrFormat::KNOWN.iter().copied().filter(|format| *format != AddrFormat::STR);
        for format in formats {
            match addr.to_bytes(format) {
                Ok(bytes) => {
                    prop_assert!(addr.has_format(format));
                    prop_assert_eq!(Address::from_bytes(format, &bytes), Ok(addr));
                    prop_assert!(format.fixed_len().is_none_or(|len| len == bytes.len()));
                    for wrong in [&bytes[..bytes.len() - 1], &[&bytes[..], &[0]].concat()] {
                        prop_assert!(Address::from_bytes(format, wrong).is_err(), "{} bytes", wrong.len());
                    }
                }
                Err(why) => {
                    prop_assert_eq!(why, AddrError::Format(format));
                    let bytes = addr.to_bytes(addr.format()).unwrap();
                    let read = Address::from_bytes(format, &bytes);
                    prop_assert!(read.is_err(), "{} as {}: {:?}", addr, format, read);
                }
            }
        }
    }

    /// Covers: GI-5, GI-8
    #[test]
    fn bytes_of_others_are_refused_or_an_address(
        format in prop_oneof![
            8 => prop::sample::select(AddrFormat::KNOWN),
            1 => any::<u32>().prop_map(AddrFormat),
        ],
        bytes in prop::collection::vec(any::<u8>(), 0..80),
        family in prop::option::of(prop::sample::select(FAMILIES)),
    ) {
        let mut bytes = bytes;
        if let (Some(family), true) = (family, bytes.len() >= 2) {
            bytes[..2].copy_from_slice(&family.to_ne_bytes());
        }
        if let Ok(addr) = Address::from_bytes(format, &bytes) {
            prop_assert!(addr.has_format(format));
            let text = addr.to_string();
            prop_assert_eq!(text.parse::<Address>(), Ok(addr));
        }
    }

    /// Covers: GI-5, GI-8
    #[test]
    fn text_of_others_is_refused_or_an_address(
        scheme in "(fi_sockaddr(_in|_in6|_ib)?|fi_addr_ib_ud|ferro|[a-z]{0,4})",
        rest in "[0-9a-fx:./\\[\\]?&=%-]{0,60}",
    ) {
        for text in [format!("{scheme}://{rest}"), format!("{scheme}{rest}")] {
            if let Ok(addr) = text.parse::<Address>() {
                prop_assert_eq!(addr.to_string().parse::<Address>(), Ok(addr), "{}", text);
            }
        }
    }

    /// Covers: GI-5
    #[test]
    fn the_form_of_text_addresses_gives_itself_back(
        scheme in "[a-z_]{1,12}", node in "[0-9a-f.:]{0,20}", service in "[0-9a-z]{0,8}",
        fields in prop::collection::vec("[0-9a-z]{0,4}", 0..4),
        keys in prop::collection::btree_map("[a-z]{1,4}", "[0-9a-z:]{0,6}", 0..4),
    ) {
        let uri = Uri {
            scheme: &scheme,
            node: &node,
            service: &service,
            fields: fields.iter().map(String::as_str).collect(),
            keys: keys.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        };
        let text = uri.to_string();
        prop_assert_eq!(Uri::parse(&text), Ok(uri.clone()), "{}", text);
    }
}

/// The examples of fi_getinfo(3), and libfabric's own forms. Covers: GI-5
#[test]
fn text_as_others_write_it() {
    let read = |text: &str| text.parse::<Address>();
    let host = SocketAddrV4::new([10, 31, 6, 12].into(), 7471);
    assert_eq!(read("fi_sockaddr://10.31.6.12:7471"), Ok(Address::In(host)));
    assert_eq!(
        read("fi_sockaddr_in://10.31.6.12:7471"),
        Ok(Address::In(host))
    );
    assert_eq!(
        read("fi_sockaddr://10.31.6.12:7471?qos=3"),
        Ok(Address::In(host))
    );
    let local = SocketAddrV6::new("fe80::6:12".parse().unwrap(), 7471, 0, 0);
    assert_eq!(
        read("fi_sockaddr_in6://[fe80::6:12]:7471"),
        Ok(Address::In6(local))
    );
    assert_eq!(
        read("fi_sockaddr://[fe80::6:12]:7471"),
        Ok(Address::In6(local))
    );
    let scoped = SocketAddrV6::new(*local.ip(), 7471, 0, 3);
    assert_eq!(
        read("fi_sockaddr_in6://[fe80::6:12%3]:7471"),
        Ok(Address::In6(scoped))
    );
    let anywhere = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 7471);
    assert_eq!(read("fi_sockaddr_in://:7471"), Ok(Address::In(anywhere)));

    let gid = "fe80::1".parse::<Ipv6Addr>().unwrap().octets();
    let ib = SockaddrIb::new(gid, 0xffff, 0x111, 7);
    assert_eq!(ib.sid_mask, u64::MAX);
    assert_eq!(
        read("fi_sockaddr_ib://[fe80::1]:0xffff:0x111:0x0:0x7"),
        Ok(Address::Ib(ib))
    );
    let no_port = SockaddrIb {
        sid: 0x111 << 16,
        sid_mask: 0,
        ..ib
    };
    assert_eq!(
        read("fi_sockaddr_ib://[fe80::1]:0xffff:0x111:0x0"),
        Ok(Address::Ib(no_port))
    );
    let ud = IbUdAddr {
        gid,
        qpn: 0x1f,
        lid: 2,
        pkey: 0xffff,
        service: 0,
        sl: 3,
    };
    assert_eq!(
        read("fi_addr_ib_ud://fe80::1:1f/2/ffff/3/"),
        Ok(Address::IbUd(ud))
    );
    assert_eq!(
        Address::IbUd(ud).to_string(),
        "fi_addr_ib_ud://fe80::1:1f/2/ffff/3/"
    );

    for wrong in [
        "",
        "://",
        "fi_sockaddr_in://host:1",
        "fi_sockaddr_in://10.0.0.1:65536",
        "fi_sockaddr_in://10.0.0.1:+5x",
        "fi_sockaddr_in://[::1]:5",
        "fi_sockaddr_in://10.0.0.1:5/6",
        "fi_sockaddr_in6://[fe80::1%2]:5?scope=2",
        "fi_sockaddr_in6://[fe80::1:5",
        "fi_sockaddr_in6://[fe80::1]5",
        "fi_sockaddr://10.0.0.1:5?qos",
        "fi_sockaddr://10.0.0.1:5?qos=1&qos=2",
        "fi_sockaddr_ib://[fe80::1]:0x1ffff:0x111:0x0:0x7",
        "fi_addr_ib_ud://fe80::1:1f/2/ffff/10/",
        "fi_addr_ib_ud://ff02::1:1f/2/ffff/1/",
        "fi_addr_efa://[fe80::1]:1:2",
    ] {
        assert!(read(wrong).is_err(), "{wrong}: {:?}", read(wrong));
    }
}

/// Covers: GI-5
#[test]
fn wrong_lengths_and_families_are_named() {
    let v4 = Address::In(SocketAddrV4::new([10, 1, 0, 1].into(), 5));
    let bytes = v4.to_bytes(AddrFormat::SOCKADDR_IN).unwrap();
    let read = |format, bytes: &[u8]| Address::from_bytes(format, bytes).unwrap_err();
    assert_eq!(read(AddrFormat::SOCKADDR_IN6, &bytes), AddrError::Family(2));
    assert_eq!(read(AddrFormat::SOCKADDR_IB, &bytes), AddrError::Family(2));
    assert_eq!(
        read(AddrFormat::SOCKADDR, &[1, 0, 0, 0]),
        AddrError::Family(1)
    );
    assert_eq!(read(AddrFormat::SOCKADDR, &[2]), AddrError::Short(1));
    assert_eq!(
        read(AddrFormat(5), &bytes),
        AddrError::Format(AddrFormat(5))
    );
    let long = [&bytes[..], &[0; 12]].concat();
    let why = read(AddrFormat::SOCKADDR_IN, &long);
    assert_eq!(
        why.to_string(),
        "an address in FI_SOCKADDR_IN has 16 bytes, this has 28"
    );
    assert_eq!(
        read(AddrFormat::IB_UD, &bytes).to_string(),
        "an address in FI_ADDR_IB_UD has 32 bytes, this has 16"
    );
}

/// Covers: GI-5
#[test]
fn a_datagram_queue_pair_has_the_rest_in_common_with_ours() {
    let own = "ferro://[::ffff:10.1.0.1]:0?type=roce2&qkey=11111111&lid=0&pkey=ffff&sl=0&port=1&mtu=1024&inc=0&node=5";
    let own: NativeAddr = own.parse().unwrap();
    let peer = IbUdAddr {
        gid: [1; 16],
        qpn: 7,
        lid: 2,
        pkey: 0x8001,
        service: 3,
        sl: 1,
    };
    let native = Address::IbUd(peer).native(&own).unwrap();
    let verbs = native.verbs.unwrap();
    assert_eq!(
        (verbs.qkey, verbs.mtu_bytes, verbs.gid_kind),
        (0x1111_1111, 1024, own.verbs.unwrap().gid_kind)
    );
    assert_eq!(IbUdAddr::of(&native), Some(IbUdAddr { service: 0, ..peer }));
    assert_eq!(
        Address::IbUd(peer).native(&NativeAddr {
            verbs: None,
            shm: Some(1),
            ..own
        }),
        None
    );
}
