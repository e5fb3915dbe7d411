//! Admission and insertion of an address, for synchronous and asynchronous calls alike: an endpoint
//! is inserted at once, a socket address gets an entry that is resolved in the background
//! (`docs/adr/0042`).
//!
//! Admission makes no query to the network: it only refuses addresses that can never be resolved.

use std::net::SocketAddr;

use super::format::{AddrTarget, ParsedAddr};
use super::service::{Nodes, Resolve};
use super::table::{Insertion, Placed, Reserved};
use ferrofabric_contracts::error::{Errno, Error, Result};

/// Refuses an address that can never be resolved. Sends nothing to the network.
///
/// # Errors
///
/// `ENOSYS`: the domain does not find endpoints by socket address. `EHOSTUNREACH`: there is no
/// route.
pub fn admit(sought: ParsedAddr, resolver: Option<&dyn Resolve>) -> Result<ParsedAddr> {
    if let AddrTarget::Socket(at) = sought.target {
        route(at, resolver)?;
    }
    Ok(sought)
}

/// The same of the nodes of a range.
pub fn admit_nodes(nodes: &mut Nodes, resolver: &dyn Resolve) {
    for host in &mut nodes.hosts {
        if let Ok(at) = host {
            if let Err(error) = resolver.route(*at) {
                *host = Err(error);
            }
        }
    }
}

fn route(at: SocketAddr, resolver: Option<&dyn Resolve>) -> Result<()> {
    match resolver {
        Some(resolver) => resolver.route(at),
        None => Err(
            Error::new(Errno::ENOSYS, "resolve", format!("socket address {at}"))
                .mend("this domain knows its peers by their native addresses alone"),
        ),
    }
}

impl Insertion<'_> {
    /// Puts in what an address names, as [`place`](Self::place) does, in an entry that was reserved
    /// or in any.
    ///
    /// # Errors
    ///
    /// The error in `sought`; `ENOMEM`, `ENOSPC`: the table can not grow.
    pub fn enter(
        &mut self,
        sought: Result<ParsedAddr>,
        reserved: Option<Reserved>,
    ) -> Result<Placed> {
        let bytes = match &sought {
            Ok(ParsedAddr {
                target: AddrTarget::Socket(at),
                key,
                ..
            }) => return self.enter_socket(at, *key, reserved),
            Ok(ParsedAddr {
                target: AddrTarget::Endpoint(name),
                ..
            }) => Ok(name.to_bytes()),
            Err(error) => Err(error.clone()),
        };
        let placed = match (bytes, reserved) {
            (Ok(name), Some(reserved)) => self.place_reserved(name, reserved)?,
            (Err(error), Some(reserved)) => {
                self.skip(reserved);
                return Err(error);
            }
            (bytes, None) => self.place(bytes)?,
        };
        let keyed = sought.ok().and_then(|sought| sought.keyed);
        if let (Some(keyed), Some(keys)) = (keyed, self.table.auth_keys()) {
            keys.remember(placed.addr, keyed);
        }
        Ok(placed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Naming;
    use crate::{AvAttr, AvTable};
    use ferrofabric_contracts::addr::{AddrFormat, NativeAddr};
    use ferrofabric_contracts::types::{AvType, FiAddr};

    /// Has a route to even ports, and resolves nothing.
    #[derive(Debug)]
    struct Even;

    impl Resolve for Even {
        fn resolve(&self, at: SocketAddr) -> Result<NativeAddr> {
            panic!("{at} was resolved at insertion")
        }

        fn route(&self, at: SocketAddr) -> Result<()> {
            match at.port() % 2 {
                0 => Ok(()),
                _ => Err(Error::new(Errno::EHOSTUNREACH, "resolve", at.to_string())),
            }
        }
    }

    fn insert(
        format: AddrFormat,
        resolver: Option<&dyn Resolve>,
        all: &[&str],
    ) -> Vec<Result<FiAddr, Errno>> {
        let attr = AvAttr {
            av_type: Some(AvType::Table),
            ..AvAttr::default()
        };
        let table = AvTable::new(&attr).unwrap();
        let naming = Naming {
            format,
            ..Naming::default()
        };
        let mut insertion = table.insertion().unwrap();
        let mut insert = |at: &str| {
            let at: SocketAddr = at.parse().unwrap();
            let sought = naming.target(&at.into()).map(ParsedAddr::from);
            let placed = insertion.enter(sought.and_then(|one| admit(one, resolver)), None);
            placed.map(|p| p.addr).map_err(|e| e.errno())
        };
        all.iter().map(|at| insert(at)).collect()
    }

    /// Covers: AV-10, AV-11, AV-23
    #[test]
    fn only_addresses_that_can_never_be_resolved_are_refused() {
        let all = [
            "10.1.0.1:2",
            "0.0.0.0:2",
            "10.1.0.1:0",
            "224.0.0.1:2",
            "255.255.255.255:2",
            "10.1.0.1:3",
            "10.1.0.1:2",
            "[::]:2",
            "[ff02::1]:2",
            "[::ffff:0.0.0.0]:2",
            "[fe80::1]:2",
        ];
        let (bad, unreachable) = (Err(Errno::EINVAL), Err(Errno::EHOSTUNREACH));
        let expected = [
            Ok(FiAddr(0)),
            bad,
            bad,
            bad,
            bad,
            unreachable,
            Ok(FiAddr(0)),
            bad,
            bad,
            bad,
            Ok(FiAddr(9)),
        ];
        for format in [AddrFormat::SOCKADDR, AddrFormat::STR, AddrFormat::UNSPEC] {
            assert_eq!(insert(format, Some(&Even), &all), expected, "{format}");
        }
    }

    #[test]
    fn without_a_resolver_nobody_is_found() {
        let found = insert(AddrFormat::SOCKADDR_IN, None, &["10.1.0.1:2"]);
        assert_eq!(found, [Err(Errno::ENOSYS)]);
    }
}
