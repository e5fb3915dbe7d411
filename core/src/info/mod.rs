//! Discovery (fi_getinfo(3)): what an application asks for, what providers offer, and the pure function between them.
//!
//! A *candidate* is all that a domain can do, an *offer* is what an application gets of it.

mod attributes;
mod caps;
mod dgram;
mod filter;
mod mismatch;
mod models;
mod mr_mode;
mod rdm;
mod reach;

pub use attributes::{DomainAttr, EpAttr, FabricAttr, NicAttr, PciAddr, RxAttr, TxAttr};
pub use caps::{RX_CAPS, TX_CAPS};
pub use dgram::{dgram_messages, with_prefix};
pub use filter::filter;
pub use mismatch::Mismatch;
pub use models::{
    AddrFormat, EpType, Progress, ResourceMgmt, SHARED_CONTEXT, Threading, protocol, tag_format,
    traffic_class,
};
pub use rdm::rdm_messages;

use crate::addr::NativeAddr;
use crate::error::{Errno, Error, Result};
use crate::fabric::{Discovery, Provider};
use crate::flags::{Flags, Mode, MrMode};

/// An offer, or as hints a request in which zero and empty stand for anything (`fi_info`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Capabilities.
    pub caps: Flags,
    /// What the application must do (in hints: what it can).
    pub mode: Mode,
    /// How addresses look.
    pub addr_format: AddrFormat,
    /// Where endpoints are: port and node; what only an open endpoint has (queue pair, incarnation) is 0.
    pub src_addr: Option<NativeAddr>,
    /// A peer to reach.
    pub dest_addr: Option<NativeAddr>,
    /// Transmit side.
    pub tx: TxAttr,
    /// Receive side.
    pub rx: RxAttr,
    /// Endpoint.
    pub ep: EpAttr,
    /// Domain.
    pub domain: DomainAttr,
    /// Fabric.
    pub fabric: FabricAttr,
    /// Device; `None` for shared memory. Ignored in hints.
    pub nic: Option<NicAttr>,
}

impl Info {
    /// What NULL hints stand for: anything, from an application that supports every mode there is.
    pub fn null_hints() -> Self {
        Self {
            mode: Mode::all(),
            domain: DomainAttr {
                mode: Mode::all(),
                mr_mode: MrMode::all() - MrMode::BASIC - MrMode::SCALABLE,
                ..DomainAttr::default()
            },
            ..Self::default()
        }
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
/// `ENODATA` when nothing fits; the error names, for each candidate, the field that ruled it out, and what is missing.
/// `EBADFLAGS` when a bit among the capabilities of the hints is no capability.
pub fn getinfo(
    providers: &[&dyn Provider],
    hints: Option<&Info>,
    settings: &crate::config::Settings,
) -> Result<Found> {
    let null_hints;
    let hints = match hints {
        Some(hints) => hints,
        None => {
            null_hints = Info::null_hints();
            &null_hints
        }
    };
    check_caps(hints)?;
    let mut found = Found::default();
    for provider in providers {
        let Discovery {
            candidates,
            notices,
        } = provider.discover(settings);
        found.notices.extend(notices);
        for candidate in candidates {
            match filter(hints, &candidate) {
                Ok(info) => found.infos.push(info),
                Err(mismatch) => {
                    tracing::debug!("no offer from {}: {mismatch}", candidate.domain.name);
                    found.ruled_out.push((candidate, mismatch));
                }
            }
        }
    }
    if found.infos.is_empty() {
        let reasons: Vec<String> = found
            .ruled_out
            .iter()
            .map(|(info, why)| format!("{}: {why}", info.domain.name))
            .chain(found.notices.iter().map(ToString::to_string))
            .collect();
        return Err(
            Error::new(Errno::ENODATA, "find", "a domain for these hints").mend(reasons.join("; ")),
        );
    }
    Ok(found)
}

/// Bits that providers, and libfabric itself, may use for themselves.
const PRIVATE: Flags = Flags::from_bits_retain(0xf << 60);

fn check_caps(hints: &Info) -> Result<()> {
    for (field, asked) in [
        ("caps", hints.caps),
        ("tx_attr->caps", hints.tx.caps),
        ("rx_attr->caps", hints.rx.caps),
        ("domain_attr->caps", hints.domain.caps),
    ] {
        let unknown = asked - caps::ALL - PRIVATE;
        if !unknown.is_empty() {
            let error = Error::new(Errno::EBADFLAGS, "find", "a domain for these hints");
            return Err(error.mend(format!("{field} has {:#x}", unknown.bits())));
        }
    }
    Ok(())
}
