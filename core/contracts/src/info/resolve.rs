//! From a node and a service to sockets' addresses.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6, ToSocketAddrs};

use crate::addr::AddrFormat;
use crate::error::{Errno, Error, Result};

/// A source of names and their addresses.
pub trait Resolver {
    /// The addresses of a host, best first.
    ///
    /// # Errors
    ///
    /// The system's answer, also about an unknown name.
    fn host(&self, name: &str) -> io::Result<Vec<SocketAddr>>;

    /// The port of a service that is no number.
    fn service(&self, name: &str) -> Option<u16>;
}

/// The resolver of the C library (getaddrinfo(3)), and services(5).
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn host(&self, name: &str) -> io::Result<Vec<SocketAddr>> {
        (name, 0).to_socket_addrs().map(Iterator::collect)
    }

    fn service(&self, name: &str) -> Option<u16> {
        service_in(&fs::read_to_string("/etc/services").ok()?, name)
    }
}

/// A line is `name port/protocol alias…`; a comment follows a `#`.
fn service_in(services: &str, name: &str) -> Option<u16> {
    services.lines().find_map(|line| {
        let mut words = line.split('#').next()?.split_whitespace();
        let (first, port) = (words.next()?, words.next()?);
        let named = first == name || words.any(|alias| alias == name);
        named
            .then(|| port.split('/').next()?.parse().ok())
            .flatten()
    })
}

/// The addresses that a node and a service stand for: any of this host's where there is no node,
/// port 0 where there is no service. Makes no query about a node that is a number, nor, if it must
/// be one (`FI_NUMERICHOST`), about any.
///
/// # Errors
///
/// `ENODATA` for a node that is not known, `EINVAL` for a service that is none.
pub fn sockets(
    node: Option<&str>,
    service: Option<&str>,
    numeric: bool,
    format: AddrFormat,
    resolver: &dyn Resolver,
) -> Result<Vec<SocketAddr>> {
    let port = match service {
        None | Some("") => 0,
        Some(service) => port(service, resolver)?,
    };
    let hosts = match node {
        None | Some("") => {
            let any = |ip: &str| ip.parse().map(|ip: IpAddr| SocketAddr::new(ip, 0)).ok();
            ["0.0.0.0", "::"].into_iter().filter_map(any).collect()
        }
        Some(node) => match number(node) {
            Some(host) => vec![host],
            None if numeric => return Err(unknown(node, "FI_NUMERICHOST wants an IP address")),
            None => resolver
                .host(node)
                .map_err(|error| unknown(node, &error.to_string()))?,
        },
    };
    let wanted = |host: &SocketAddr| match format {
        AddrFormat::SOCKADDR_IN => host.is_ipv4(),
        AddrFormat::SOCKADDR_IN6 => host.is_ipv6(),
        _ => true,
    };
    let mut sockets: Vec<SocketAddr> = Vec::new();
    for mut socket in hosts.into_iter().filter(wanted) {
        socket.set_port(port);
        // A resolver names a host once for each kind of socket.
        if !sockets.contains(&socket) {
            sockets.push(socket);
        }
    }
    match (sockets.is_empty(), node) {
        (true, Some(node)) => Err(unknown(node, &format!("it has no address in {format}"))),
        _ => Ok(sockets),
    }
}

/// An IP address, whose scope may follow behind a `%` as a number.
fn number(node: &str) -> Option<SocketAddr> {
    if let Ok(ip) = node.parse::<IpAddr>() {
        return Some(SocketAddr::new(ip, 0));
    }
    let (ip, scope) = node.split_once('%')?;
    let socket = SocketAddrV6::new(ip.parse().ok()?, 0, 0, scope.parse().ok()?);
    Some(SocketAddr::V6(socket))
}

/// The port of a service: a number, or a name that the resolver has to know.
///
/// # Errors
///
/// `EINVAL`: it is neither.
pub fn port(service: &str, resolver: &dyn Resolver) -> Result<u16> {
    let found = match service.chars().all(|c| c.is_ascii_digit()) {
        true => service.parse().ok(),
        false => resolver.service(service),
    };
    found.ok_or_else(|| {
        Error::new(Errno::EINVAL, "resolve", format!("service {service}"))
            .mend("a port from 0 to 65535, or a name of services(5) is wanted")
    })
}

fn unknown(node: &str, why: &str) -> Error {
    Error::new(Errno::ENODATA, "resolve", format!("node {node}")).mend(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_found_by_name_and_alias() {
        let table = "# comment\nssh\t22/tcp\t# Secure\nhttp 80/tcp www web # x\nbad\nworse x/tcp\n";
        assert_eq!(service_in(table, "ssh"), Some(22));
        assert_eq!(service_in(table, "web"), Some(80));
        for name in ["Secure", "x", "bad", "worse", "comment", ""] {
            assert_eq!(service_in(table, name), None, "{name}");
        }
    }
}
