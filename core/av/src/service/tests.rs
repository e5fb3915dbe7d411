use super::super::format::AddrTarget;
use super::*;
use ferrofabric_contracts::addr::AddrFormat;
use proptest::prelude::*;

fn all(node: &str, nodes: usize, service: &str, services: usize) -> Vec<String> {
    let range = Services::range(node, nodes, service, services).unwrap();
    assert_eq!(range.nth(range.len()), None);
    let one = |i| range.nth(i).map(|(node, port)| format!("{node}:{port}"));
    (0..range.len()).map(|i| one(i).unwrap()).collect()
}

/// Covers: AV-16
#[test]
fn all_services_of_a_node_come_before_the_next_node() {
    assert_eq!(
        all("10.1.1.1", 2, "5000", 2),
        [
            "10.1.1.1:5000",
            "10.1.1.1:5001",
            "10.1.1.2:5000",
            "10.1.1.2:5001"
        ]
    );
    assert_eq!(
        all("host10", 2, "5000", 2),
        ["host10:5000", "host10:5001", "host11:5000", "host11:5001"]
    );
}

/// Covers: AV-16
#[test]
fn addresses_carry_over_and_leading_zeros_stay() {
    assert_eq!(all("10.1.1.255", 2, "7", 1), ["10.1.1.255:7", "10.1.2.0:7"]);
    assert_eq!(
        all("fe80::ffff", 2, "7", 1),
        ["fe80::ffff:7", "fe80::1:0:7"]
    );
    assert_eq!(all("n008", 3, "1", 1), ["n008:1", "n009:1", "n010:1"]);
    assert_eq!(all("n99", 2, "65535", 1), ["n99:65535", "n100:65535"]);
    assert_eq!(all("rack2-a", 1, "1", 1), ["rack2-a:1"]);
    assert_eq!(
        all("42nodes007", 2, "1", 1),
        ["42nodes007:1", "42nodes008:1"]
    );
}

/// Covers: AV-16
#[test]
fn names_that_make_no_range_are_refused() {
    for (node, nodes, service, services, why) in [
        ("host", 2, "5000", 1, "ends in a number"),
        ("", 1, "5000", 1, "ends in a number"),
        ("host1", 0, "5000", 1, "at least"),
        ("host1", 1, "5000", 0, "at least"),
        ("host1", 1, "no-such-service", 1, "services(5)"),
        ("host1", 1, "", 1, "missing"),
        ("host1", 1, "+1", 1, "services(5)"),
        ("host1", 1, "65536", 1, "from 0 to 65535"),
        ("host1", 1, "65535", 2, "beyond 65535"),
        ("host1", 1, "1", usize::MAX, "beyond 65535"),
        ("255.255.255.255", 2, "1", 1, "last address"),
        (
            "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
            2,
            "1",
            1,
            "last address",
        ),
        ("host18446744073709551615", 2, "1", 1, "last address"),
        ("host1", usize::MAX, "1", 2, "last address"),
    ] {
        let error = Services::range(node, nodes, service, services).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// Knows one service.
struct Web;

impl Resolver for Web {
    fn host(&self, name: &str) -> std::io::Result<Vec<SocketAddr>> {
        panic!("{name} was looked up before its insertion")
    }

    fn service(&self, name: &str) -> Option<u16> {
        (name == "web").then_some(8080)
    }
}

/// As `fi_getinfo` does.
///
/// Covers: AV-15, AV-16
#[test]
fn a_service_may_have_a_name() {
    let range = Services::range_by(&Web, "10.1.1.1", 2, "web", 2).unwrap();
    let all: Vec<_> = (0..range.len()).filter_map(|i| range.nth(i)).collect();
    let expected = [
        ("10.1.1.1", 8080),
        ("10.1.1.1", 8081),
        ("10.1.1.2", 8080),
        ("10.1.1.2", 8081),
    ];
    assert_eq!(all, expected.map(|(node, port)| (node.to_owned(), port)));
    let numeric = Services::range_by(&Web, "10.1.1.1", 1, "77", 1).unwrap();
    assert_eq!(numeric.nth(0), Some(("10.1.1.1".to_owned(), 77)));
    for name in ["webs", "Web", "-1"] {
        let error = Services::range_by(&Web, "10.1.1.1", 1, name, 1).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    }
}

/// Covers: AV-15
#[test]
fn the_text_of_an_address_needs_no_service_and_no_resolver() {
    let addr = NativeAddr {
        incarnation: 1,
        node: 2,
        shm: Some(3),
        verbs: None,
    };
    let text = addr.to_string();
    let one = Services::one(&text, None).unwrap();
    assert_eq!(one.len(), 1);
    assert_eq!(targets(&one), [Ok(AddrTarget::Endpoint(addr))]);
    // Of a socket it is the address alone.
    let one = Services::one("fi_sockaddr_in://10.1.0.1:77", None).unwrap();
    assert_eq!(targets(&one), [Ok(at("10.1.0.1:77"))]);
    for (node, service) in [
        (text.as_str(), Some("1")),
        ("host1", None),
        ("ferro://x", None),
    ] {
        let error = Services::one(node, service).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL, "{error}");
    }
}

fn targets_as(services: &Services, naming: Naming) -> Vec<Result<AddrTarget>> {
    let addresses = services.addresses(naming);
    addresses.map(|addr| naming.target(&addr?)).collect()
}

fn targets(services: &Services) -> Vec<Result<AddrTarget>> {
    targets_as(services, Naming::default())
}

fn at(text: &str) -> AddrTarget {
    AddrTarget::Socket(text.parse().unwrap())
}

/// Covers: AV-15
#[test]
fn a_node_is_found_by_the_systems_resolver() {
    let one = Services::one("localhost", Some("77")).unwrap();
    for (format, host) in [
        (AddrFormat::SOCKADDR_IN, Some("127.0.0.1".parse().unwrap())),
        (AddrFormat::SOCKADDR, Some("127.0.0.1".parse().unwrap())),
        (AddrFormat::UNSPEC, Some("127.0.0.1".parse().unwrap())),
        (AddrFormat::SOCKADDR_IN, None),
    ] {
        let naming = Naming {
            format,
            host,
            ..Naming::default()
        };
        let found = targets_as(&one, naming);
        assert_eq!(found, [Ok(at("127.0.0.1:77"))], "{format}");
    }
    let none = Services::one("no-such-node.invalid", Some("77")).unwrap();
    let error = targets(&none).remove(0).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    // Nobody listens at port 0, which stands for any.
    let any = Services::range("10.1.0.1", 1, "0", 2).unwrap();
    let found = targets(&any);
    assert_eq!(found[0].as_ref().unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(found[1], Ok(at("10.1.0.1:1")));
}

/// Covers: AV-15
#[test]
fn a_node_without_an_address_in_the_format_is_not_known() {
    let naming = Naming {
        format: AddrFormat::SOCKADDR_IN6,
        ..Naming::default()
    };
    let one = Services::one("10.1.0.1", Some("77")).unwrap();
    let error = targets_as(&one, naming).remove(0).unwrap_err();
    assert_eq!(error.errno(), Errno::ENOENT);
    assert!(error.to_string().contains("FI_SOCKADDR_IN6"), "{error}");
}

proptest! {
    /// Covers: AV-16
    #[test]
    fn a_range_is_its_numbers_in_order(first in any::<u32>(), nodes in 1usize..50, port in 0u16.., ports in 1usize..20) {
        let node = Ipv4Addr::from_bits(first).to_string();
        let range = Services::range(&node, nodes, &port.to_string(), ports);
        let fits = u64::from(first) + nodes as u64 <= 1 << 32 && usize::from(port) + ports <= 1 << 16;
        prop_assert_eq!(range.is_ok(), fits);
        if let Ok(range) = range {
            for i in 0..nodes * ports {
                let node = Ipv4Addr::from_bits(first + (i / ports) as u32).to_string();
                prop_assert_eq!(range.nth(i), Some((node, port + (i % ports) as u16)));
            }
        }
    }

    #[test]
    fn hostile_names_never_panic(node in ".{0,30}", service in ".{0,8}", nodes in any::<usize>(), services in any::<usize>()) {
        let _ = Services::one(&node, Some(&service));
        if let Ok(range) = Services::range(&node, nodes, &service, services) {
            prop_assert!(range.nth(range.len() - 1).is_some());
        }
    }
}
