//! The question (the arguments of fi_getinfo(3)), and the answer.

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
    /// Flags of a question, with libfabric's numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
    pub struct QueryFlags: u64 {
        /// Looks at the machine anew, which is what we always do (`FI_RESCAN`).
        const RESCAN = 1 << 35;
        /// Which providers there are, usable or not (`FI_PROV_ATTR_ONLY`).
        const PROV_ATTR_ONLY = 1 << 54;
        /// The node is a number, so no resolver is asked (`FI_NUMERICHOST`).
        const NUMERICHOST = 1 << 55;
        /// Node and service are this side's (`FI_SOURCE`).
        const SOURCE = 1 << 57;
    }
}

/// What is asked. The default asks for all that there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Query<'a> {
    /// The interface's version that the application was written for, `major << 16 | minor`; 0: the
    /// newest.
    pub version: u32,
    /// A host's name or number, or an address as text.
    pub node: Option<&'a str>,
    /// A port, or the name of a service.
    pub service: Option<&'a str>,
    /// How node and service are meant.
    pub flags: QueryFlags,
    /// What the application wants; `None`: anything, with every mode.
    pub hints: Option<&'a Info>,
}

impl Query<'_> {
    /// Whether the source address of the hints counts. One that does not may be anything.
    pub fn uses_src_addr(&self) -> bool {
        !self.flags.contains(QueryFlags::SOURCE)
    }

    /// Whether the destination address of the hints counts. One that does not may be anything.
    pub fn uses_dest_addr(&self) -> bool {
        self.flags.contains(QueryFlags::SOURCE) || self.node.is_none() && self.service.is_none()
    }
}

/// What discovery gives: the offers that fit, best first; and for everything else why not.
#[derive(Debug, Default)]
pub struct Found {
    /// What fits.
    pub infos: Vec<Info>,
    /// What was ruled out, by which field.
    pub ruled_out: Vec<(Info, Mismatch)>,
    /// What providers miss.
    pub notices: Vec<Error>,
}

/// Asks all providers, and keeps what fits the hints.
///
/// # Errors
///
/// As [`find`].
pub fn getinfo(
    providers: &[&dyn Provider],
    hints: Option<&Info>,
    settings: &Settings,
) -> Result<Found> {
    let query = Query {
        hints,
        ..Query::default()
    };
    find(providers, &query, &SystemResolver, settings)
}

/// Asks all providers, and keeps what fits the question.
///
/// # Errors
///
/// `ENODATA` when nothing fits; the error names, for each candidate, the field that ruled it out,
/// and what is missing. Else as [`explain`].
pub fn find(
    providers: &[&dyn Provider],
    query: &Query<'_>,
    resolver: &dyn Resolver,
    settings: &Settings,
) -> Result<Found> {
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

/// As [`find`], and finding nothing is an answer, too.
///
/// # Errors
///
/// `EBADFLAGS` for flags that are none, and for a bit among the capabilities of the hints that is
/// no capability. `ENOSYS` for a newer major version of the interface. `EINVAL` for a source that
/// is not named, an address as text that is none or has a service beside it, a service that is
/// none. `ENODATA` for a node that nobody knows.
pub fn explain(
    providers: &[&dyn Provider],
    query: &Query<'_>,
    resolver: &dyn Resolver,
    settings: &Settings,
) -> Result<Found> {
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
    let mut found = Found::default();
    for (i, wanted) in questions(query, hints, resolver)?.iter().enumerate() {
        for provider in providers {
            let Discovery {
                candidates,
                notices,
            } = provider.discover_for(wanted, settings);
            if i == 0 {
                found.notices.extend(notices);
            }
            for candidate in candidates {
                found.judge(wanted, candidate);
            }
        }
    }
    Ok(found)
}

impl Found {
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

/// The hints with what node and service say in them, once for each address that they stand for. It
/// takes the place of the address there that does not count.
fn questions(query: &Query<'_>, hints: Info, resolver: &dyn Resolver) -> Result<Vec<Info>> {
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
fn targets(query: &Query<'_>, format: AddrFormat, resolver: &dyn Resolver) -> Result<Vec<Address>> {
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
fn attributes_only(providers: &[&dyn Provider]) -> Found {
    let mut found = Found::default();
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

/// Flags that libfabric's core and its providers keep among themselves, as far as they do not mean
/// something to all.
const INTERNAL: u64 = 0b11_1111 << 58;

/// Bits that providers, and libfabric itself, may use for themselves.
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
