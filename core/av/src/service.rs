//! Addresses by name: a node and a service, or a range of both (`fi_av_insertsvc`, `fi_av_insertsym`, fi_av(3)).

use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::format::Naming;
use super::symmetric;
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::info::{Resolver, SystemResolver, port};
use ferrofabric_system::wait::Bell;

/// What finds the endpoint that listens at a socket address.
pub trait Resolve: Debug + Send + Sync {
    /// Its native address. May take as long as a network takes.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`: nobody listens there. `EHOSTUNREACH`: there is no way to it. `ETIMEDOUT`: it does not answer.
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr>;

    /// Those of many: reports the outcome of each question, by its number, as soon as it is known. What is not done when the address
    /// vector closes is cancelled. A resolver that can asks for them side by side.
    fn resolve_all(
        &self,
        all: &[Question],
        closing: &Closing,
        report: &mut dyn FnMut(usize, Result<NativeAddr>),
    ) {
        for (number, question) in all.iter().enumerate() {
            let at = question.at;
            report(
                number,
                match closing.is_closing() {
                    true => Err(cancelled(&at)),
                    false => self.resolve(at),
                },
            );
        }
    }

    /// Whether there is a route to a socket address. Says so at once, and asks nobody on the network.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: there is none.
    fn route(&self, _at: SocketAddr) -> Result<()> {
        Ok(())
    }

    /// How long an endpoint is asked for until its resolution has failed.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// An endpoint that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Question {
    /// Where it listens.
    pub at: SocketAddr,
    /// When the answer comes too late. An attempt that begins later is short.
    pub until: Instant,
}

/// Says whether an address vector is being closed: by a flag, and by a descriptor that is readable then.
#[derive(Debug)]
pub struct Closing {
    closing: AtomicBool,
    bell: Bell,
}

impl Closing {
    /// It is not.
    ///
    /// # Errors
    ///
    /// When no descriptor can be had.
    pub fn new() -> Result<Self> {
        Ok(Self {
            closing: AtomicBool::new(false),
            bell: Bell::new()?,
        })
    }

    /// Whether it is.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// It is from now on.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Release);
        self.bell.ring();
    }
}

impl AsFd for Closing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The address vector is closed before a socket address is resolved.
pub fn cancelled(at: &SocketAddr) -> Error {
    Error::new(Errno::ECANCELED, "resolve", format!("socket address {at}"))
        .mend("the address vector is being closed")
}

/// Endpoints by the names of their nodes and services: all services of a node come before the next node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services(Names);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// An address as text.
    Address(Address),
    Range {
        node: Node,
        nodes: usize,
        first_port: u16,
        ports: usize,
    },
}

/// Where the nodes of a range are, and their ports.
pub struct Nodes {
    pub(super) hosts: Vec<Result<SocketAddr>>,
    pub(super) first_port: u16,
    pub(super) ports: usize,
}

/// The first of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Node {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
    Name(Box<str>),
    /// A name that ends in a number, which may start with zeros.
    Numbered {
        stem: Box<str>,
        number: u64,
        digits: usize,
    },
}

/// Where the text of an address of ours starts with what it is.
const SCHEME_END: &str = "://";

impl Services {
    /// One endpoint: `service` of `node`, or (without a service) the address whose text `node` is.
    ///
    /// # Errors
    ///
    /// `EINVAL`: both the text of an address and a service; a service that is neither a port number
    /// nor a known name; an address that is none.
    pub fn one(node: &str, service: Option<&str>) -> Result<Self> {
        match (node.contains(SCHEME_END), service) {
            (true, None) => match node.parse() {
                Ok(addr) => Ok(Self(Names::Address(addr))),
                Err(why) => Err(invalid(node, "").mend(format!("{why}"))),
            },
            (true, Some(service)) => Err(invalid(node, service)
                .mend("an address as text says which service it is: give none")),
            (false, None) => Err(invalid(node, "").mend("a service is missing")),
            (false, Some(service)) => Self::range(node, 1, service, 1),
        }
    }

    /// `nodes` nodes from `node` on, and of each `services` services from `service` on, which is a
    /// port number or a name of services(5).
    ///
    /// # Errors
    ///
    /// `EINVAL`: a number of zero; more than one node and a name without a number at its end, or beyond the last address; a
    /// service that is neither a port number nor a known name, or ports beyond 65535.
    pub fn range(node: &str, nodes: usize, service: &str, services: usize) -> Result<Self> {
        Self::range_by(&SystemResolver, node, nodes, service, services)
    }

    fn range_by(
        resolver: &dyn Resolver,
        node: &str,
        nodes: usize,
        service: &str,
        services: usize,
    ) -> Result<Self> {
        let refuse = |why: &str| Err(invalid(node, service).mend(why));
        if nodes == 0 || services == 0 {
            return refuse("there is to be one node and one service at least");
        }
        if service.is_empty() {
            return refuse("a service is missing");
        }
        let first_port = port(service, resolver)?;
        if usize::from(first_port).saturating_add(services - 1) > u16::MAX.into() {
            return refuse("the last port is beyond 65535");
        }
        let Some(first) = Node::parse(node, nodes > 1) else {
            return refuse("a name that stands for several nodes ends in a number");
        };
        if nodes.checked_mul(services).is_none() || first.nth(nodes - 1).is_none() {
            return refuse("the last node is beyond the last address");
        }
        Ok(Self(Names::Range {
            node: first,
            nodes,
            first_port,
            ports: services,
        }))
    }

    /// Number of endpoints.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        match &self.0 {
            Names::Address(_) => 1,
            Names::Range { nodes, ports, .. } => nodes * ports,
        }
    }

    /// Node and port of an endpoint, by its number; `None` beyond the last, and of an address as text.
    pub fn nth(&self, number: usize) -> Option<(String, u16)> {
        let Names::Range {
            node,
            nodes,
            first_port,
            ports,
        } = &self.0
        else {
            return None;
        };
        let (at, port) = (number / ports, number % ports);
        let node = node.nth(at).filter(|_| at < *nodes)?;
        Some((node, first_port.checked_add(u16::try_from(port).ok()?)?))
    }

    /// Whether they are more than one.
    pub fn is_range(&self) -> bool {
        self.len() > 1
    }

    /// The nodes of a range, each looked up once. What has not begun when it is `stopped` is cancelled.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: no address vector takes as many addresses. `ENOMEM`: there is no memory for the nodes. `EINVAL`: it is no range.
    pub fn nodes(&self, naming: &Naming, stopped: &dyn Fn() -> bool) -> Result<Nodes> {
        let refuse = |errno| Error::new(errno, "insert", format!("{} addresses", self.len()));
        let Names::Range {
            node,
            nodes,
            first_port,
            ports,
        } = &self.0
        else {
            return Err(refuse(Errno::EINVAL));
        };
        if self.len() > symmetric::MOST {
            let most = format!("an address vector takes {} at most", symmetric::MOST);
            return Err(refuse(Errno::ENOSPC).mend(most));
        }
        let lookup = |number| {
            let name = node.nth(number);
            let unknown = || Error::new(Errno::EINVAL, "resolve", format!("node {number}"));
            let name = name.ok_or_else(unknown)?;
            match stopped() {
                true => Err(
                    Error::new(Errno::ECANCELED, "resolve", format!("node {name}"))
                        .mend("the address vector is being closed"),
                ),
                false => host(&name, naming),
            }
        };
        let mut hosts = Vec::new();
        if hosts.try_reserve_exact(*nodes).is_err() {
            return Err(refuse(Errno::ENOMEM));
        }
        hosts.extend((0..*nodes).map(lookup));
        Ok(Nodes {
            hosts,
            first_port: *first_port,
            ports: *ports,
        })
    }

    /// The addresses of all of them, in order. Where a node is, the system's resolver says, which is asked once for each.
    pub fn addresses(&self, naming: Naming) -> impl Iterator<Item = Result<Address>> + '_ {
        let mut last: Option<(String, Result<SocketAddr>)> = None;
        (0..self.len()).map(move |number| {
            if let Names::Address(addr) = &self.0 {
                return Ok(*addr);
            }
            let (node, port) = self.nth(number).ok_or_else(|| {
                Error::new(Errno::EINVAL, "resolve", format!("endpoint {number}"))
            })?;
            let host = match last.take() {
                Some((same, host)) if same == node => host,
                _ => host(&node, &naming),
            };
            let (_, host) = last.insert((node, host));
            let mut at = host.clone()?;
            at.set_port(port);
            Ok(at.into())
        })
    }
}

/// Where a node is.
fn host(node: &str, naming: &Naming) -> Result<SocketAddr> {
    let unknown =
        |why: &str| Err(Error::new(Errno::ENOENT, "resolve", format!("node {node}")).mend(why));
    let Ok(all) = (node, 0).to_socket_addrs() else {
        return unknown("the system's resolver does not know it");
    };
    match naming.choose(all) {
        Some(host) => Ok(host),
        None => unknown(&format!("it has no address in {}", naming.format)),
    }
}

fn invalid(node: &str, service: &str) -> Error {
    Error::new(
        Errno::EINVAL,
        "insert",
        format!("node \"{node}\" service \"{service}\""),
    )
}

impl Node {
    fn parse(text: &str, numbered: bool) -> Option<Self> {
        if text.is_empty() {
            return None;
        }
        if let Ok(addr) = text.parse() {
            return Some(match addr {
                IpAddr::V4(addr) => Self::V4(addr),
                IpAddr::V6(addr) => Self::V6(addr),
            });
        }
        if !numbered {
            return Some(Self::Name(text.into()));
        }
        let stem = text.trim_end_matches(|c: char| c.is_ascii_digit());
        let suffix = &text[stem.len()..];
        Some(Self::Numbered {
            stem: stem.into(),
            number: suffix.parse().ok()?,
            digits: suffix.len(),
        })
    }

    /// The node so many after this one.
    fn nth(&self, n: usize) -> Option<String> {
        Some(match self {
            Self::V4(first) => {
                let addr = first.to_bits().checked_add(u32::try_from(n).ok()?)?;
                Ipv4Addr::from_bits(addr).to_string()
            }
            Self::V6(first) => {
                let addr = first.to_bits().checked_add(n as u128)?;
                Ipv6Addr::from_bits(addr).to_string()
            }
            Self::Name(name) => (n == 0).then(|| name.to_string())?,
            Self::Numbered {
                stem,
                number,
                digits,
            } => {
                let number = number.checked_add(n as u64)?;
                format!("{stem}{number:0digits$}")
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::Target;
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
    fn what_is_no_range_is_refused() {
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
        assert_eq!(targets(&one), [Ok(Target::Endpoint(addr))]);
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

    fn targets_as(services: &Services, naming: Naming) -> Vec<Result<Target>> {
        let addresses = services.addresses(naming);
        addresses.map(|addr| naming.target(&addr?)).collect()
    }

    fn targets(services: &Services) -> Vec<Result<Target>> {
        targets_as(services, Naming::default())
    }

    fn at(text: &str) -> Target {
        Target::Socket(text.parse().unwrap())
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
}
