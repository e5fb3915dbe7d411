//! Addresses by name: a node and a service, or a range of both (`fi_av_insertsvc`,
//! `fi_av_insertsym`, fi_av(3)); and [`Resolve`], by which a provider finds the endpoint at a
//! socket address.

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
use ferrofabric_system::wait::WakeBell;

/// A resolver: finds the endpoint that listens at a socket address.
pub trait Resolve: Debug + Send + Sync {
    /// Its native address. May take as long as a network takes.
    ///
    /// # Errors
    ///
    /// `ECONNREFUSED`: nobody listens there. `EHOSTUNREACH`: there is no way to it. `ETIMEDOUT`: it
    /// does not answer.
    fn resolve(&self, at: SocketAddr) -> Result<NativeAddr>;

    /// Those of many: reports the outcome of each request, by its number, as soon as it is known. A
    /// request that is not done when the address vector closes is cancelled. A resolver that can
    /// works at them side by side.
    fn resolve_all(
        &self,
        all: &[ResolveRequest],
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

    /// Whether there is a route to a socket address. Returns at once, and sends nothing to the
    /// network.
    ///
    /// # Errors
    ///
    /// `EHOSTUNREACH`: there is none.
    fn route(&self, _at: SocketAddr) -> Result<()> {
        Ok(())
    }

    /// The time after which the resolution of an endpoint has failed.
    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

/// A request to resolve an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolveRequest {
    /// Where it listens.
    pub at: SocketAddr,
    /// When the answer comes too late. An attempt that begins later is short.
    pub until: Instant,
}

/// Says whether an address vector is being closed: by a flag, and by a descriptor that is readable
/// then.
#[derive(Debug)]
pub struct Closing {
    closing: AtomicBool,
    bell: WakeBell,
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
            bell: WakeBell::new()?,
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

/// Endpoints by the names of their nodes and services: all services of a node come before the next
/// node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Services(Names);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// An address as text.
    Address(Address),
    Range {
        node: NodeName,
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
enum NodeName {
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
    /// `EINVAL`: a number of zero; more than one node and a name without a number at its end, or
    /// beyond the last address; a service that is neither a port number nor a known name, or ports
    /// beyond 65535.
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
        let Some(first) = NodeName::parse(node, nodes > 1) else {
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

    /// Node and port of an endpoint, by its number; `None` beyond the last, and of an address as
    /// text.
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

    /// The nodes of a range, each looked up once. A look-up that has not begun when it is `stopped`
    /// is cancelled.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: no address vector takes as many addresses. `ENOMEM`: there is no memory for the
    /// nodes. `EINVAL`: it is no range.
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

    /// The addresses of all of them, in order. The system's resolver finds each node, by one query.
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

impl NodeName {
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

    /// The node `n` places after this one.
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
mod tests;
