//! Domains whose addresses are those of sockets, for tests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use ferrofabric_av::{AvAttr, Services};
use ferrofabric_contracts::addr::{AddrFormat, Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Result};
use ferrofabric_contracts::info::{EpType, Info, SystemResolver};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_runtime::discovery::{DiscoveryQuery, QueryFlags, find};
use ferrofabric_runtime::fabric::{Av, CqAttr, Domain, Endpoint, EndpointConfig, Provider};
use ferrofabric_runtime::owning::OwningEndpoint;
use ferrofabric_verbs::VerbsProvider;

use crate::dgram::PATIENCE;
use crate::offers::settings;

/// Types of endpoints that there are.
pub const TYPES: [EpType; 2] = [EpType::Rdm, EpType::Dgram];

/// Hints for endpoints of a type with addresses in a format.
pub fn hints(ep_type: EpType, format: AddrFormat) -> Info {
    let mut hints = Info {
        addr_format: format,
        ..Info::default()
    };
    hints.ep.ep_type = ep_type;
    hints
}

/// The best offer of a device.
///
/// # Errors
///
/// Why there is none.
pub fn offer(hints: &Info, overrides: &[(&str, &str)]) -> Result<Info> {
    let query = DiscoveryQuery {
        hints: Some(hints),
        ..DiscoveryQuery::default()
    };
    let mut found = find(
        &[&VerbsProvider::new()],
        &query,
        &SystemResolver,
        &settings(overrides),
    )?;
    Ok(found.infos.remove(0))
}

/// A domain of endpoints of a type with addresses in a format.
pub fn domain(ep_type: EpType, format: AddrFormat, overrides: &[(&str, &str)]) -> Arc<dyn Domain> {
    let info = offer(&hints(ep_type, format), overrides).unwrap();
    VerbsProvider::new()
        .open(&info, &settings(overrides))
        .unwrap()
}

/// A domain for a service of this side's; its addresses are of the format of the node's.
pub fn domain_at(ep_type: EpType, node: &str, service: &str) -> Arc<dyn Domain> {
    let hints = hints(ep_type, AddrFormat::UNSPEC);
    let query = DiscoveryQuery {
        node: Some(node),
        service: Some(service),
        flags: QueryFlags::SOURCE,
        hints: Some(&hints),
        ..DiscoveryQuery::default()
    };
    let found = find(
        &[&VerbsProvider::new()],
        &query,
        &SystemResolver,
        &settings(&[]),
    );
    VerbsProvider::new()
        .open(&found.unwrap().infos[0], &settings(&[]))
        .unwrap()
}

/// An endpoint at any port that is free.
pub fn endpoint(domain: &dyn Domain) -> OwningEndpoint {
    OwningEndpoint::open(domain, &AvAttr::default()).unwrap()
}

/// An endpoint that nobody sends to, at a port.
///
/// # Errors
///
/// When the port is taken.
pub fn at_port(domain: &dyn Domain, port: u16) -> Result<Arc<dyn Endpoint>> {
    let av = domain.open_av(&AvAttr::default())?;
    let cq = domain.open_cq(&CqAttr::default())?;
    let mut source = own(domain);
    source.set_port(port);
    domain.open_endpoint(EndpointConfig {
        source: Some(source),
        ..EndpointConfig::new(&av, &cq)
    })
}

/// Where endpoints of a domain are.
pub fn own(domain: &dyn Domain) -> SocketAddr {
    let source = domain.info().src_addr;
    source.as_ref().and_then(Address::socket).unwrap()
}

/// An endpoint's address as applications have it.
pub fn name(domain: &dyn Domain, endpoint: &OwningEndpoint) -> Vec<u8> {
    endpoint
        .address()
        .to_bytes(domain.info().addr_format)
        .unwrap()
}

/// The endpoint of an address once its resolution is over, or why that has failed.
///
/// # Errors
///
/// The result of the look-up once it is no longer `EAGAIN`.
pub fn resolved(av: &Arc<dyn Av>, addr: FiAddr) -> std::result::Result<NativeAddr, Errno> {
    let until = Instant::now() + PATIENCE;
    loop {
        match av.lookup(addr).map_err(|error| error.errno()) {
            Err(Errno::EAGAIN) => assert!(Instant::now() < until, "not resolved"),
            over => return over,
        }
        std::thread::yield_now();
    }
}

/// Inserts those of the services that exist; returns the result of each, in order.
pub fn insert_services(
    av: &Arc<dyn Av>,
    services: &Services,
) -> Vec<std::result::Result<FiAddr, Errno>> {
    let mut inserted = Vec::new();
    let count = av.insert_services(services, &mut |_, one| {
        println!("{one:?}");
        inserted.push(one.map_err(|error| error.errno()));
    });
    count.unwrap();
    inserted
}
