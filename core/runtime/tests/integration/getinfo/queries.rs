//! Node, service and flags.

use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::sync::Arc;

use ferrofabric_contracts::addr::{
    AddrFormat, AddrFormats, Address, IbUdAddr, NativeAddr, SockaddrIb,
};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info, Resolver, SystemResolver};
use ferrofabric_runtime::discovery::{DiscoveryQuery, DiscoveryResult, QueryFlags, explain, find};
use ferrofabric_runtime::fabric::{Discovery, Domain, Provider};

use crate::getinfo::candidates::{addr, anywhere, datagrams, local, queue_pair, with};

/// Offers the tests' candidates, with every format of addresses.
struct TestMachine(Vec<Info>);

impl TestMachine {
    /// Shared memory, messages and datagrams of a port that has an IPv4 address.
    fn new() -> Self {
        let at = |mut info: Info| {
            if let Some(Address::Native(own)) = &mut info.src_addr {
                if let Some(verbs) = &mut own.verbs {
                    verbs.gid = gid("::ffff:10.1.0.1");
                }
            }
            info
        };
        let (mut local, mut rdm, mut dgram) = (local(), at(anywhere()), at(datagrams()));
        local.addr_formats = AddrFormats::NATIVE | AddrFormats::STR;
        rdm.addr_formats = local.addr_formats | AddrFormats::SOCKADDR;
        dgram.addr_formats = AddrFormats::all();
        Self(vec![rdm, dgram, local])
    }

    fn with_ip(ip: &str) -> Self {
        let mut machine = Self::new();
        for info in &mut machine.0 {
            if let Some(Address::Native(own)) = &mut info.src_addr {
                if let Some(verbs) = &mut own.verbs {
                    verbs.gid = gid(ip);
                }
            }
        }
        machine
    }

    fn find(&self, query: &DiscoveryQuery<'_>) -> Result<Vec<Info>> {
        find(&[self], query, &UncallableResolver, &settings()).map(|found| found.infos)
    }

    fn explain(&self, query: &DiscoveryQuery<'_>) -> DiscoveryResult {
        explain(&[self], query, &UncallableResolver, &settings()).unwrap()
    }

    fn errno(&self, query: &DiscoveryQuery<'_>) -> Errno {
        match self.find(query) {
            Err(error) => error.errno(),
            Ok(infos) => panic!("{query:?} finds {infos:?}"),
        }
    }
}

impl Provider for TestMachine {
    fn name(&self) -> &'static str {
        "ferro"
    }

    fn discover(&self, _settings: &Settings) -> Discovery {
        Discovery {
            candidates: self.0.clone(),
            ..Discovery::default()
        }
    }

    fn open(&self, _info: &Info, _settings: &Settings) -> Result<Arc<dyn Domain>> {
        Err(Error::new(Errno::ENOSYS, "open", "a domain"))
    }

    unsafe fn open_serialized(&self, info: &Info, settings: &Settings) -> Result<Arc<dyn Domain>> {
        self.open(info, settings)
    }
}

fn settings() -> Settings {
    Settings::read(|_| None).unwrap()
}

fn gid(ip: &str) -> [u8; 16] {
    ip.parse::<std::net::Ipv6Addr>().unwrap().octets()
}

/// A resolver that must not be called.
struct UncallableResolver;

impl Resolver for UncallableResolver {
    fn host(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        panic!("a call of the resolver for node {name}")
    }

    fn service(&self, name: &str) -> Option<u16> {
        panic!("a call of the resolver for service {name}")
    }
}

/// A resolver with one host and one service.
struct OneHostResolver;

impl Resolver for OneHostResolver {
    fn host(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        match name {
            // As getaddrinfo(3) answers: once for each kind of socket.
            "peer" => Ok(["[2001:db8::2]:0", "10.1.0.2:0", "10.1.0.2:0"]
                .map(|text| text.parse().unwrap())
                .to_vec()),
            _ => Err(io::Error::other("nobody knows it")),
        }
    }

    fn service(&self, name: &str) -> Option<u16> {
        (name == "mpi").then_some(7471)
    }
}

fn v4(ip: &str, port: u16) -> Address {
    Address::In(SocketAddrV4::new(ip.parse().unwrap(), port))
}

fn asking<'a>(
    node: Option<&'a str>,
    service: Option<&'a str>,
    flags: QueryFlags,
) -> DiscoveryQuery<'a> {
    DiscoveryQuery {
        node,
        service,
        flags,
        ..DiscoveryQuery::default()
    }
}

const NUMERIC: QueryFlags = QueryFlags::NUMERICHOST;
const SOURCE: QueryFlags = QueryFlags::SOURCE;

/// Covers: GI-6
#[test]
fn numbers_ask_no_resolver_and_become_the_destination() {
    let machine = TestMachine::new();
    for flags in [QueryFlags::empty(), NUMERIC] {
        let infos = machine
            .find(&asking(Some("10.1.0.2"), Some("7471"), flags))
            .unwrap();
        // Shared memory reaches no IP address.
        assert_eq!(infos.len(), 2, "{infos:?}");
        for info in &infos {
            assert_eq!(info.addr_format, AddrFormat::SOCKADDR_IN);
            assert_eq!(info.dest_addr, Some(v4("10.1.0.2", 7471)));
            assert_eq!(info.src_addr, Some(v4("10.1.0.1", 0)));
        }
    }
    // A name is no number.
    let name = asking(Some("peer"), None, NUMERIC);
    assert_eq!(machine.errno(&name), Errno::ENODATA);
    // This host is the domain's own address.
    for node in [Some("127.0.0.1"), Some("0.0.0.0"), None] {
        let infos = machine.find(&asking(node, Some("5"), NUMERIC)).unwrap();
        assert_eq!(infos[0].dest_addr, Some(v4("10.1.0.1", 5)), "{node:?}");
    }
}

/// Covers: GI-6
#[test]
fn names_are_resolved_each_address_once_and_in_the_format_that_is_asked_for() {
    let machine = TestMachine::new();
    let named = asking(Some("peer"), Some("mpi"), QueryFlags::empty());
    let found = |query: &DiscoveryQuery<'_>| {
        explain(&[&machine], query, &OneHostResolver, &settings()).unwrap()
    };
    let infos = found(&named).infos;
    // The port has an IPv4 address only.
    assert!(!infos.is_empty());
    assert!(
        infos
            .iter()
            .all(|info| info.dest_addr == Some(v4("10.1.0.2", 7471)))
    );
    assert_eq!(infos.len(), 2);
    let hints = with(|hints| hints.addr_format = AddrFormat::SOCKADDR_IB);
    let query = DiscoveryQuery {
        hints: Some(&hints),
        ..named
    };
    let infos = found(&query).infos;
    let peer: SocketAddr = "10.1.0.2:7471".parse().unwrap();
    let peer = Address::Ib(SockaddrIb::of_socket(&peer));
    assert!(
        infos.iter().any(|info| info.dest_addr == Some(peer)),
        "{infos:?}"
    );
    assert!(
        infos
            .iter()
            .all(|info| info.addr_format == AddrFormat::SOCKADDR_IB)
    );

    let six = TestMachine::with_ip("2001:db8::1");
    let infos = explain(&[&six], &named, &OneHostResolver, &settings())
        .unwrap()
        .infos;
    let peer = SocketAddrV6::new("2001:db8::2".parse().unwrap(), 7471, 0, 0);
    assert!(!infos.is_empty());
    assert!(
        infos
            .iter()
            .all(|info| info.dest_addr == Some(Address::In6(peer)))
    );

    let nobody = asking(Some("nobody"), None, QueryFlags::empty());
    let error = explain(&[&machine], &nobody, &OneHostResolver, &settings()).unwrap_err();
    assert_eq!(error.errno(), Errno::ENODATA);
    assert!(error.to_string().contains("nobody knows it"), "{error}");
    for service in ["none", "65536", "-1", "7x"] {
        let query = asking(Some("peer"), Some(service), QueryFlags::empty());
        let error = explain(&[&machine], &query, &OneHostResolver, &settings()).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{service}");
    }
}

/// The system's resolver, with a name that it always resolves. Covers: GI-6
#[test]
fn the_system_resolves_this_host() {
    let machine = TestMachine::new();
    let here = asking(Some("localhost"), Some("5"), QueryFlags::empty());
    let infos = find(&[&machine], &here, &SystemResolver, &settings())
        .unwrap()
        .infos;
    assert_eq!(infos[0].dest_addr, Some(v4("10.1.0.1", 5)));
}

/// Covers: GI-6
#[test]
fn a_source_is_this_side_and_needs_a_name() {
    let machine = TestMachine::new();
    assert_eq!(machine.errno(&asking(None, None, SOURCE)), Errno::EINVAL);
    for (node, service, own) in [
        (Some("10.1.0.1"), Some("7471"), v4("10.1.0.1", 7471)),
        (None, Some("7471"), v4("10.1.0.1", 7471)),
        (Some("0.0.0.0"), Some("1"), v4("10.1.0.1", 1)),
    ] {
        let infos = machine
            .find(&asking(node, service, SOURCE | NUMERIC))
            .unwrap();
        assert_eq!(infos.len(), 2);
        for info in infos {
            assert_eq!((info.src_addr, info.dest_addr), (Some(own), None));
        }
    }
    let other = machine.explain(&asking(Some("10.1.0.7"), Some("1"), SOURCE));
    assert!(other.infos.is_empty());
    let fields: Vec<_> = other.ruled_out.iter().map(|(_, why)| why.field).collect();
    assert_eq!(fields, ["src_addr", "src_addr", "addr_format"]);
}

/// The name of a host selects an interface, and addresses stay native, with or without addresses of
/// sockets.
///
/// Covers: GI-6, GI-14
#[test]
fn a_source_without_a_service_names_an_interface() {
    let with_sockets = TestMachine::new();
    let mut machine = TestMachine::new();
    for info in &mut machine.0 {
        info.addr_formats = AddrFormats::NATIVE;
    }
    for machine in [&with_sockets, &machine] {
        for node in ["10.1.0.1", "0.0.0.0", "127.0.0.1"] {
            let found = machine.explain(&asking(Some(node), None, SOURCE | NUMERIC));
            let own: Vec<_> = found.infos.iter().map(|info| info.src_addr).collect();
            assert_eq!(
                own,
                [machine.0[0].src_addr, machine.0[1].src_addr],
                "{node}"
            );
            assert!(
                found
                    .infos
                    .iter()
                    .all(|info| info.addr_format == AddrFormat::UNSPEC)
            );
        }
    }
    // Without addresses of sockets, three queries are refused: another host, a port, and a format
    // of sockets.
    let hints = with(|hints| hints.addr_format = AddrFormat::SOCKADDR_IN);
    for query in [
        asking(Some("10.1.0.7"), None, SOURCE | NUMERIC),
        asking(Some("10.1.0.1"), Some("7"), SOURCE | NUMERIC),
        DiscoveryQuery {
            hints: Some(&hints),
            ..asking(Some("10.1.0.1"), None, SOURCE | NUMERIC)
        },
    ] {
        assert_eq!(machine.errno(&query), Errno::ENODATA, "{query:?}");
    }
}

/// Covers: GI-6
#[test]
fn addresses_of_the_hints_count_where_nothing_else_says_so() {
    let machine = TestMachine::new();
    let far = addr(
        2,
        false,
        Some(queue_pair(2, ferrofabric_contracts::addr::GidKind::RoceV2)),
    );
    let hints = with(|hints| {
        hints.src_addr = Some(v4("10.9.9.9", 1));
        hints.dest_addr = Some(v4("10.1.0.3", 2));
    });
    let asked = |node, flags| {
        let query = DiscoveryQuery {
            hints: Some(&hints),
            ..asking(node, None, flags)
        };
        machine.explain(&query)
    };
    // No node or service: both addresses count, and this source is not here.
    assert!(asked(None, QueryFlags::empty()).infos.is_empty());
    // A destination: the hints' destination does not count, their source does.
    assert!(asked(Some("10.1.0.2"), NUMERIC).infos.is_empty());
    // A source: the hints' source does not count, their destination does.
    let infos = asked(Some("10.1.0.1"), SOURCE | NUMERIC).infos;
    assert_eq!(infos.len(), 2);
    for info in infos {
        assert_eq!(info.src_addr, Some(v4("10.1.0.1", 0)));
        assert_eq!(info.dest_addr, Some(v4("10.1.0.3", 2)));
    }
    // If formats contradict, the hints must name one.
    let mixed = with(|hints| {
        hints.src_addr = Some(v4("10.1.0.1", 1));
        hints.dest_addr = Some(far);
    });
    let query = DiscoveryQuery {
        hints: Some(&mixed),
        ..DiscoveryQuery::default()
    };
    assert!(machine.explain(&query).infos.is_empty());
    let text = Info {
        addr_format: AddrFormat::STR,
        ..mixed
    };
    let query = DiscoveryQuery {
        hints: Some(&text),
        ..DiscoveryQuery::default()
    };
    let infos = machine.explain(&query).infos;
    assert_eq!(infos.len(), 2);
    assert!(infos.iter().all(|info| info.dest_addr == Some(far)));

    for (node, flags, src, dest) in [
        (None, QueryFlags::empty(), true, true),
        (Some("x"), QueryFlags::empty(), true, false),
        (Some("x"), SOURCE, false, true),
    ] {
        let query = asking(node, None, flags);
        assert_eq!((query.uses_src_addr(), query.uses_dest_addr()), (src, dest));
    }
}

/// Covers: GI-5, GI-6, GI-7
#[test]
fn an_address_as_text_is_a_node_without_a_service() {
    let machine = TestMachine::new();
    let Address::Native(peer) = addr(
        2,
        false,
        Some(queue_pair(2, ferrofabric_contracts::addr::GidKind::RoceV2)),
    ) else {
        panic!("a native address")
    };
    let peer = NativeAddr {
        incarnation: 7,
        ..peer
    };
    let text = peer.to_string();
    let infos = machine.find(&asking(Some(&text), None, NUMERIC)).unwrap();
    assert_eq!(infos.len(), 2);
    assert!(infos.iter().all(|info| info.dest_addr == Some(peer.into())));
    assert!(
        infos
            .iter()
            .all(|info| info.addr_format == AddrFormat::UNSPEC)
    );
    let with_service = asking(Some(&text), Some("1"), NUMERIC);
    assert_eq!(machine.errno(&with_service), Errno::EINVAL);
    for wrong in ["ferro://", "fi_sockaddr_in://host:1", "x://y"] {
        assert_eq!(
            machine.errno(&asking(Some(wrong), None, NUMERIC)),
            Errno::EINVAL,
            "{wrong}"
        );
    }

    let infos = machine
        .find(&asking(
            Some("fi_sockaddr://10.1.0.2:7?qos=3"),
            None,
            NUMERIC,
        ))
        .unwrap();
    assert!(
        infos
            .iter()
            .all(|info| info.dest_addr == Some(v4("10.1.0.2", 7)))
    );
    // Only a datagram domain reaches a datagram queue pair.
    let far = "fi_addr_ib_ud://::ffff:10.1.0.2:11/0/ffff/0/";
    let infos = machine.find(&asking(Some(far), None, NUMERIC)).unwrap();
    assert_eq!(infos.len(), 1);
    assert_eq!(
        (infos[0].ep.ep_type, infos[0].addr_format),
        (EpType::Dgram, AddrFormat::IB_UD)
    );
    // In a format that can express it.
    let hints = with(|hints| hints.addr_format = AddrFormat::SOCKADDR_IN6);
    let query = DiscoveryQuery {
        hints: Some(&hints),
        ..asking(Some(far), None, NUMERIC)
    };
    assert!(machine.explain(&query).infos.is_empty());
}

/// Every format of a domain, with both of its addresses in that format. Covers: GI-5, GI-6
#[test]
fn an_offer_has_its_addresses_in_the_format_that_is_asked_for() {
    let machine = TestMachine::new();
    let own = "::ffff:10.1.0.1";
    for (format, offers, src) in [
        (AddrFormat::UNSPEC, 3, None),
        (AddrFormat::STR, 3, None),
        (AddrFormat::SOCKADDR, 2, Some(v4("10.1.0.1", 0))),
        (AddrFormat::SOCKADDR_IP, 2, Some(v4("10.1.0.1", 0))),
        (AddrFormat::SOCKADDR_IN, 2, Some(v4("10.1.0.1", 0))),
        (AddrFormat::SOCKADDR_IN6, 0, None),
        (
            AddrFormat::SOCKADDR_IB,
            2,
            Some(Address::Ib(SockaddrIb::new(gid(own), 0xffff, 0x111, 0))),
        ),
        (
            AddrFormat::IB_UD,
            1,
            Some(Address::IbUd(IbUdAddr {
                gid: gid(own),
                qpn: 0,
                lid: 0,
                pkey: 0xffff,
                service: 0,
                sl: 0,
            })),
        ),
        (AddrFormat(12), 0, None),
    ] {
        let hints = with(|hints| hints.addr_format = format);
        let query = DiscoveryQuery {
            hints: Some(&hints),
            ..DiscoveryQuery::default()
        };
        let found = machine.explain(&query);
        assert_eq!(found.infos.len(), offers, "{format}");
        assert!(
            found
                .ruled_out
                .iter()
                .all(|(_, why)| why.field == "addr_format")
        );
        for info in &found.infos {
            assert_eq!(info.addr_format, format);
            let addr = info.src_addr.unwrap();
            assert!(addr.to_bytes(format).is_ok(), "{addr}");
            assert!(src.is_none_or(|src| src == addr), "{addr}");
            // Used as hints, the offer yields itself again.
            let query = DiscoveryQuery {
                hints: Some(info),
                ..DiscoveryQuery::default()
            };
            assert!(machine.find(&query).unwrap().contains(info), "{info:?}");
        }
    }
    let six = TestMachine::with_ip("2001:db8::1");
    let hints = with(|hints| hints.addr_format = AddrFormat::SOCKADDR_IN6);
    let query = DiscoveryQuery {
        hints: Some(&hints),
        ..DiscoveryQuery::default()
    };
    assert_eq!(six.find(&query).unwrap().len(), 2);
}

/// Covers: GI-8
#[test]
fn flags_that_are_none_are_refused_and_libfabrics_own_pass() {
    let machine = TestMachine::new();
    for bit in 0..64 {
        let flags = QueryFlags::from_bits_retain(1 << bit);
        let known = [35, 54, 55, 57].contains(&bit) || bit >= 58;
        let query = asking(None, (bit == 57).then_some("1"), flags);
        match known {
            true => assert!(!machine.find(&query).unwrap().is_empty(), "bit {bit}"),
            false => assert_eq!(machine.errno(&query), Errno::EBADFLAGS, "bit {bit}"),
        }
    }
}

/// Covers: GI-9
#[test]
fn versions_of_the_interface() {
    let machine = TestMachine::new();
    let at = |version| DiscoveryQuery {
        version,
        ..DiscoveryQuery::default()
    };
    for version in [0, 1 << 16, (1 << 16) | 4, 2 << 16, (2 << 16) | 99] {
        let infos = machine.find(&at(version)).unwrap();
        assert_eq!(infos.len(), 3);
        assert!(infos.iter().all(|info| info.fabric.api_version == version));
    }
    assert_eq!(machine.errno(&at(3 << 16)), Errno::ENOSYS);
}

/// Covers: GI-6
#[test]
fn attributes_alone_are_one_entry_of_each_provider_usable_or_not() {
    let (machine, nothing) = (TestMachine::new(), TestMachine(Vec::new()));
    for providers in [vec![&machine, &nothing], vec![&nothing]] {
        let providers: Vec<&dyn Provider> =
            providers.iter().map(|one| *one as &dyn Provider).collect();
        // The hints do not matter.
        let hints = with(|hints| hints.caps = Flags::HMEM);
        let query = DiscoveryQuery {
            hints: Some(&hints),
            ..asking(None, None, QueryFlags::PROV_ATTR_ONLY)
        };
        let infos = find(&providers, &query, &UncallableResolver, &settings())
            .unwrap()
            .infos;
        assert_eq!(infos.len(), 1);
        assert_eq!(infos[0].fabric.provider, "ferro");
        assert_ne!(infos[0].fabric.provider_version, 0);
        let rest = Info {
            fabric: Info::default().fabric,
            ..infos[0].clone()
        };
        assert_eq!(rest, Info::default());
    }
}

/// Covers: GI-1
#[test]
fn no_candidate_is_no_data() {
    let nothing = TestMachine(Vec::new());
    assert_eq!(nothing.errno(&DiscoveryQuery::default()), Errno::ENODATA);
    assert_eq!(
        TestMachine::new()
            .find(&DiscoveryQuery::default())
            .unwrap()
            .len(),
        3
    );
}

/// Covers: GI-2
#[test]
fn every_candidate_is_explained() {
    let machine = TestMachine::new();
    let hints = with(|hints| {
        hints.caps = Flags::TAGGED | Flags::REMOTE_COMM;
        hints.ep.max_msg_size = 1 << 50;
    });
    let query = DiscoveryQuery {
        hints: Some(&hints),
        ..DiscoveryQuery::default()
    };
    let found = machine.explain(&query);
    let why: Vec<_> = found
        .ruled_out
        .iter()
        .map(|(info, why)| (info.ep.ep_type, why.field, why.mend.as_str()))
        .collect();
    assert_eq!(
        why,
        [
            (
                EpType::Rdm,
                "ep_attr->max_msg_size",
                "ask for at most 1024G"
            ),
            (EpType::Dgram, "caps", "do without FI_TAGGED"),
            (EpType::Rdm, "caps", "do without FI_REMOTE_COMM"),
        ]
    );
    let error = machine.find(&query).unwrap_err().to_string();
    for (info, why) in &found.ruled_out {
        assert!(
            error.contains(&format!("{}: {why}", info.domain.name)),
            "{error}"
        );
    }
}
