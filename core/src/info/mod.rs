//! Discovery (fi_getinfo(3)): what an application asks for, what providers offer, and the pure function between them.

mod filter;

pub use filter::{Mismatch, filter};

use crate::addr::NativeAddr;
use crate::error::{Errno, Error, Result};
use crate::fabric::{Discovery, Provider};
use crate::flags::{Flags, Mode, MrMode, Order};
use crate::serial::Threading;

/// What an endpoint is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum EpType {
    /// Whatever there is.
    #[default]
    Unspec,
    /// Reliable, unconnected.
    Rdm,
    /// Unreliable datagrams.
    Dgram,
    /// Connected.
    Msg,
}

/// Who moves operations on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Progress {
    /// Whatever there is.
    #[default]
    Unspec,
    /// Nobody needs to call.
    Auto,
    /// The application, by reading queues and counters.
    Manual,
}

/// How addresses look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AddrFormat {
    /// Whatever there is; our native one is not among libfabric's.
    #[default]
    Unspec,
    /// [`NativeAddr`] as bytes.
    Native,
}

/// Transmit attributes (`fi_tx_attr`); in hints, 0 asks for nothing.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxAttr {
    /// Orders kept.
    pub msg_order: Order,
    /// Largest inject, in bytes.
    pub inject_size: usize,
    /// Sends that may be under way.
    pub size: usize,
    /// Buffers in a list.
    pub iov_limit: usize,
}

/// Receive attributes (`fi_rx_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RxAttr {
    /// Orders kept.
    pub msg_order: Order,
    /// Receives that may be posted.
    pub size: usize,
    /// Buffers in a list.
    pub iov_limit: usize,
}

/// Endpoint attributes (`fi_ep_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct EpAttr {
    /// Type.
    pub ep_type: EpType,
    /// Largest message in bytes.
    pub max_msg_size: usize,
}

/// Domain attributes (`fi_domain_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DomainAttr {
    /// Name: `shm`, or device and port.
    pub name: String,
    /// Serialization of calls.
    pub threading: Threading,
    /// Who moves operations on.
    pub progress: Progress,
    /// What registration asks of the application (in hints: what it can do).
    pub mr_mode: MrMode,
    /// Bytes of CQ data.
    pub cq_data_size: usize,
}

/// Fabric attributes (`fi_fabric_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricAttr {
    /// What network it is.
    pub name: String,
    /// Which provider.
    pub provider: String,
}

/// The device behind a domain (`fid_nic`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NicAttr {
    /// Device name.
    pub device: String,
    /// Vendor and part ID.
    pub id: String,
    /// Firmware.
    pub firmware: String,
    /// Kernel driver.
    pub driver: String,
    /// The port's GID as text.
    pub address: String,
    /// Bits a second.
    pub speed_bps: u64,
    /// Largest packet payload in bytes.
    pub mtu_bytes: usize,
    /// Whether the port is up.
    pub up: bool,
    /// `Ethernet` or `InfiniBand`.
    pub network: String,
}

/// An offer, or as hints a request in which zero and empty stand for anything (`fi_info`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Capabilities.
    pub caps: Flags,
    /// What the application must do (in hints: what it can).
    pub mode: Mode,
    /// How addresses look.
    pub addr_format: AddrFormat,
    /// Own address, once there is one.
    pub src_addr: Option<NativeAddr>,
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
pub fn getinfo(
    providers: &[&dyn Provider],
    hints: Option<&Info>,
    settings: &crate::config::Settings,
) -> Result<Found> {
    let mut found = Found::default();
    for provider in providers {
        let Discovery {
            candidates,
            notices,
        } = provider.discover(settings);
        found.notices.extend(notices);
        for candidate in candidates {
            match hints.map_or(Ok(candidate.clone()), |h| filter(h, &candidate)) {
                Ok(info) => found.infos.push(info),
                Err(mismatch) => found.ruled_out.push((candidate, mismatch)),
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
