//! Discovery (fi_getinfo(3)): the hints of an application, the offers of providers, and the pure
//! function between them.
//!
//! A *candidate* is all that a domain can do, an *offer* is the part that an application gets.

mod attributes;
mod caps;
mod dgram;
mod filter;
mod keys;
mod linked;
mod mismatch;
mod models;
mod mr_mode;
mod orders;
mod rdm;
mod reach;
mod resolve;
pub mod traffic_class;

pub use attributes::{DomainAttr, EpAttr, FabricAttr, NicAttr, PciAddr, RxAttr, TxAttr};
pub use caps::{ALL_CAPS, RX_CAPS, TX_CAPS};
pub use dgram::{dgram_messages, with_prefix};
pub use filter::filter;
pub use keys::{AV_AUTH_KEY, with_address_vector_keys};
pub use mismatch::Mismatch;
pub use models::{
    AddrFormat, EpType, Progress, ResourceMgmt, SHARED_CONTEXT, Threading, protocol, tag_format,
};
pub use orders::{ORDERS_ON_REQUEST, with_all_orders};
pub use rdm::{rdm_endpoints, rdm_messages};
pub use resolve::{Resolver, SystemResolver, port, sockets};

use crate::addr::{AddrFormats, Address};
use crate::flags::{Flags, Mode, MrMode};

/// An offer, or as hints a request in which zero and empty stand for anything (`fi_info`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Info {
    /// Capabilities.
    pub caps: Flags,
    /// The application's duties (in hints: those that it can take on).
    pub mode: Mode,
    /// How addresses look.
    pub addr_format: AddrFormat,
    /// How they may look. Ignored in hints.
    pub addr_formats: AddrFormats,
    /// Where endpoints are: port and node. Fields that only an open endpoint has (queue pair,
    /// incarnation, a port that the hints do not name) are 0.
    pub src_addr: Option<Address>,
    /// A peer to reach.
    pub dest_addr: Option<Address>,
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
    /// The meaning of NULL hints: anything, from an application that supports every mode there is.
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
