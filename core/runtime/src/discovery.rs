//! Discovery over all providers: the query (the arguments of fi_getinfo(3)), and the domains found.

use bitflags::bitflags;

use crate::fabric::{Discovery, Provider};
use ferrofabric_contracts::addr::{Address, Uri};
use ferrofabric_contracts::config::Settings;
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{
    ALL_CAPS, AddrFormat, FabricAttr, Info, Mismatch, Resolver, SystemResolver, filter, sockets,
};

bitflags! {
    /// Flags of a query, with libfabric's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QueryFlags: u64 {
        /// Scans the machine anew, as every query does (`FI_RESCAN`).
        const RESCAN = 1 << 35;
        /// Lists the providers, usable or not (`FI_PROV_ATTR_ONLY`).
        const PROV_ATTR_ONLY = 1 << 54;
        /// The node is a number, so the resolver is not called (`FI_NUMERICHOST`).
        const NUMERICHOST = 1 << 55;
        /// Node and service are this side's (`FI_SOURCE`).
        const SOURCE = 1 << 57;
    }
}

/// A query. The default matches every domain.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiscoveryQuery<'a> {
    /// The interface's version that the application was written for, `major << 16 | minor`; 0: the
    /// newest.
    pub version: u32,
    /// A host's name or number, or an address as text.
    pub node: Option<&'a str>,
    /// A port, or the name of a service.
    pub service: Option<&'a str>,
    /// The meaning of node and service.
    pub flags: QueryFlags,
    /// The application's requirements; `None`: any domain, with every mode.
    pub hints: Option<&'a Info>,
}

impl DiscoveryQuery<'_> {
    /// Whether the source address of the hints counts. Otherwise it may be anything.
    pub fn uses_src_addr(&self) -> bool {
        !self.flags.contains(QueryFlags::SOURCE)
    }

    /// Whether the destination address of the hints counts. Otherwise it may be anything.
    pub fn uses_dest_addr(&self) -> bool {
        self.flags.contains(QueryFlags::SOURCE) || self.node.is_none() && self.service.is_none()
    }
}

/// The result of discovery: the domains that match, best first, and the reasons why others do not.
#[derive(Debug, Default)]
pub struct DiscoveryResult {
    /// The domains that match the query.
    pub infos: Vec<Info>,
    /// The candidates that do not match, each with the field that rules it out.
    pub ruled_out: Vec<(Info, Mismatch)>,
    /// Resources that providers lack.
    pub notices: Vec<Error>,
    /// The order of equal domains: which comes first, and why.
    pub choices: Vec<String>,
}

/// Collects the candidates of all providers, and returns those that match the hints.
///
/// # Errors
///
/// As [`find`].
pub fn getinfo(
    providers: &[&dyn Provider],
    hints: Option<&Info>,
    settings: &Settings,
) -> Result<DiscoveryResult> {
    let query = DiscoveryQuery {
        hints,
        ..DiscoveryQuery::default()
    };
    find(providers, &query, &SystemResolver, settings)
}

/// Collects the candidates of all providers, and returns those that match the query.
///
/// # Errors
///
/// `ENODATA` if none matches; the error names the field that ruled out each candidate, and the
/// missing resources. Else as [`explain`].
pub fn find(
    providers: &[&dyn Provider],
    query: &DiscoveryQuery<'_>,
    resolver: &dyn Resolver,
    settings: &Settings,
) -> Result<DiscoveryResult> {
    let found = explain(providers, query, resolver, settings)?;
    if !found.infos.is_empty() {
        return Ok(found);
    }
    let reasons: Vec<String> = found
        .ruled_out
        .iter()
        .map(|(info, why)| format!("{}: {why}", info.domain.name))
        .chain(found.notices.iter().map(ToString::to_string))
        .collect();
    Err(Error::new(Errno::ENODATA, "find", "a domain for these hints").mend(reasons.join("; ")))
}

/// As [`find`], but returns an empty result, with reasons, if no domain matches.
///
/// # Errors
///
/// `EBADFLAGS` for unknown flags, and for a bit among the capabilities of the hints that is no
/// capability. `ENOSYS` for a newer major version of the interface. `EINVAL` for a source without
/// a name, an address as text that is invalid or comes with a service, an invalid service.
/// `ENODATA` for a node that the resolver does not find.
pub fn explain(
    providers: &[&dyn Provider],
    query: &DiscoveryQuery<'_>,
    resolver: &dyn Resolver,
    settings: &Settings,
) -> Result<DiscoveryResult> {
    if query.version >> 16 > ferrofabric_contracts::API_VERSION >> 16 {
        let newer = Error::new(
            Errno::ENOSYS,
            "serve",
            format!("version {}", shown(query.version)),
        );
        return Err(newer.mend(format!(
            "this is for {}",
            shown(ferrofabric_contracts::API_VERSION)
        )));
    }
    let unknown = query.flags - QueryFlags::all() - QueryFlags::from_bits_retain(INTERNAL);
    if !unknown.is_empty() {
        let error = Error::new(Errno::EBADFLAGS, "find", "a domain");
        return Err(error.mend(format!("flags has {:#x}", unknown.bits())));
    }
    if query.flags.contains(QueryFlags::PROV_ATTR_ONLY) {
        return Ok(attributes_only(providers));
    }
    let mut hints = query.hints.cloned().unwrap_or_else(Info::null_hints);
    if query.version != 0 {
        hints.fabric.api_version = query.version;
    }
    check_caps(&hints)?;
    let mut found = DiscoveryResult::default();
    for (i, wanted) in questions(query, hints, resolver)?.iter().enumerate() {
        for provider in providers {
            let Discovery {
                candidates,
                notices,
                choices,
            } = provider.discover_for(wanted, settings);
            if i == 0 {
                found.notices.extend(notices);
                found.choices.extend(choices);
            }
            for candidate in candidates {
                found.judge(wanted, candidate);
            }
        }
    }
    Ok(found)
}

impl DiscoveryResult {
    fn judge(&mut self, hints: &Info, candidate: Info) {
        match filter(hints, &candidate) {
            Ok(info) => self.infos.push(info),
            Err(mismatch) => {
                tracing::debug!("no offer from {}: {mismatch}", candidate.domain.name);
                self.ruled_out.push((candidate, mismatch));
            }
        }
    }
}

/// The hints, once for each address that node and service stand for. That address replaces the
/// address of the hints that does not count.
fn questions(
    query: &DiscoveryQuery<'_>,
    hints: Info,
    resolver: &dyn Resolver,
) -> Result<Vec<Info>> {
    let source = query.flags.contains(QueryFlags::SOURCE);
    if query.node.is_none() && query.service.is_none() {
        return match source {
            true => Err(Error::new(Errno::EINVAL, "find", "a source")
                .mend("FI_SOURCE needs a node or a service")),
            false => Ok(vec![hints]),
        };
    }
    let asking = |addr: Address| {
        let mut hints = hints.clone();
        match source {
            true => hints.src_addr = Some(addr),
            false => hints.dest_addr = Some(addr),
        }
        hints
    };
    Ok(targets(query, hints.addr_format, resolver)?
        .into_iter()
        .map(asking)
        .collect())
}

/// The addresses that node and service stand for.
fn targets(
    query: &DiscoveryQuery<'_>,
    format: AddrFormat,
    resolver: &dyn Resolver,
) -> Result<Vec<Address>> {
    if let Some(text) = query.node.filter(|node| Uri::is_one(node)) {
        let wrong =
            |why: String| Error::new(Errno::EINVAL, "read", format!("node {text}")).mend(why);
        if query.service.is_some() {
            return Err(wrong(
                "with an address as text there is no service".to_owned(),
            ));
        }
        let addr = text
            .parse()
            .map_err(|why: ferrofabric_contracts::addr::AddrError| wrong(why.to_string()))?;
        return Ok(vec![addr]);
    }
    let numeric = query.flags.contains(QueryFlags::NUMERICHOST);
    let sockets = sockets(query.node, query.service, numeric, format, resolver)?;
    Ok(sockets
        .into_iter()
        .map(|socket| Address::of_socket(socket, format).unwrap_or(Address::from(socket)))
        .collect())
}

/// One entry for each provider.
fn attributes_only(providers: &[&dyn Provider]) -> DiscoveryResult {
    let mut found = DiscoveryResult::default();
    for provider in providers {
        let named = |info: &Info| info.fabric.provider == provider.name();
        if !found.infos.iter().any(named) {
            found.infos.push(Info {
                fabric: FabricAttr {
                    provider: provider.name().to_owned(),
                    provider_version: ferrofabric_contracts::VERSION,
                    ..FabricAttr::default()
                },
                ..Info::default()
            });
        }
    }
    found
}

fn shown(version: u32) -> String {
    format!("{}.{}", version >> 16, version & 0xffff)
}

/// Flags that are internal to libfabric's core and its providers, except those with a public
/// meaning.
const INTERNAL: u64 = 0b11_1111 << 58;

/// Bits that providers, and libfabric itself, may use internally.
const PRIVATE: Flags = Flags::from_bits_retain(0xf << 60);

fn check_caps(hints: &Info) -> Result<()> {
    for (field, asked) in [
        ("caps", hints.caps),
        ("tx_attr->caps", hints.tx.caps),
        ("rx_attr->caps", hints.rx.caps),
        ("domain_attr->caps", hints.domain.caps),
    ] {
        let unknown = asked - ALL_CAPS - PRIVATE;
        if !unknown.is_empty() {
            let error = Error::new(Errno::EBADFLAGS, "find", "a domain for these hints");
            return Err(error.mend(format!("{field} has {:#x}", unknown.bits())));
        }
    }
    Ok(())
}
