//! The structures that `fi_info` points to: attributes of endpoints, domains, fabrics and devices,
//! field by field as libfabric has them.

use super::models::{EpType, Progress, ResourceMgmt, Threading};
use crate::addr::AuthKey;
use crate::flags::{Flags, Mode, MrMode, Order};
use crate::types::AvType;

/// Transmit attributes (`fi_tx_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct TxAttr {
    /// Capabilities; in hints, none stands for those of the endpoint that apply to sends.
    pub caps: Flags,
    /// The application's duties; in hints, nothing stands for [`Info::mode`](super::Info::mode).
    pub mode: Mode,
    /// Flags of operations that come without any. A candidate lists the flags that it knows, an
    /// offer those of the hints.
    pub op_flags: Flags,
    /// Orders kept.
    pub msg_order: Order,
    /// Order of completions, an old field: none.
    pub comp_order: Order,
    /// Largest inject, in bytes.
    pub inject_size: usize,
    /// Sends that may be under way.
    pub size: usize,
    /// Buffers in a list.
    pub iov_limit: usize,
    /// Remote buffers in a list.
    pub rma_iov_limit: usize,
    /// [Traffic class](super::traffic_class); in hints, none stands for the domain's.
    pub tclass: u32,
}

/// Receive attributes (`fi_rx_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RxAttr {
    /// Capabilities; in hints, none stands for those of the endpoint that apply to receives.
    pub caps: Flags,
    /// The application's duties; in hints, nothing stands for [`Info::mode`](super::Info::mode).
    pub mode: Mode,
    /// Flags of operations that come without any. A candidate lists the flags that it knows, an
    /// offer those of the hints.
    pub op_flags: Flags,
    /// Orders kept.
    pub msg_order: Order,
    /// Order of completions, an old field: none.
    pub comp_order: Order,
    /// Bytes of unexpected messages that are kept, an old field: 0.
    pub total_buffered_recv: usize,
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
    /// [The protocol](super::protocol) of the endpoint.
    pub protocol: u32,
    /// In which version.
    pub protocol_version: u32,
    /// Largest message in bytes.
    pub max_msg_size: usize,
    /// Bytes that buffers have in front for the provider.
    pub msg_prefix_size: usize,
    /// Reads after writes are in order up to this many bytes.
    pub max_order_raw_size: usize,
    /// Writes after reads are in order up to this many bytes.
    pub max_order_war_size: usize,
    /// Writes after writes are in order up to this many bytes.
    pub max_order_waw_size: usize,
    /// [How tags are made up](super::tag_format).
    pub mem_tag_format: u64,
    /// Transmit contexts, or [`SHARED_CONTEXT`](super::SHARED_CONTEXT).
    pub tx_ctx_cnt: usize,
    /// Receive contexts, or [`SHARED_CONTEXT`](super::SHARED_CONTEXT).
    pub rx_ctx_cnt: usize,
    /// Bytes of the authorization key; 0 for the domain's.
    pub auth_key_size: usize,
    /// The key.
    pub auth_key: Option<AuthKey>,
}

/// Domain attributes (`fi_domain_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct DomainAttr {
    /// Name: `ferro-shm`, or device and port.
    pub name: String,
    /// Serialization of calls.
    pub threading: Threading,
    /// The side that moves operations on that transfer no data: addresses, registrations.
    pub control_progress: Progress,
    /// The side that moves data on.
    pub data_progress: Progress,
    /// Whether resources are guarded.
    pub resource_mgmt: ResourceMgmt,
    /// Type of address vectors; `None` in hints for any, in a candidate for both.
    pub av_type: Option<AvType>,
    /// The application's duties in registration (in hints: those that it can take on). `BASIC` in a
    /// candidate says that it serves virtual addresses and keys of its own to an application that
    /// requests them by that name; it is no duty.
    pub mr_mode: MrMode,
    /// Bytes of a key.
    pub mr_key_size: usize,
    /// Bytes of CQ data.
    pub cq_data_size: usize,
    /// Completion queues.
    pub cq_cnt: usize,
    /// Endpoints.
    pub ep_cnt: usize,
    /// Transmit contexts.
    pub tx_ctx_cnt: usize,
    /// Receive contexts.
    pub rx_ctx_cnt: usize,
    /// Transmit contexts of an endpoint.
    pub max_ep_tx_ctx: usize,
    /// Receive contexts of an endpoint.
    pub max_ep_rx_ctx: usize,
    /// Endpoints that may share a transmit context.
    pub max_ep_stx_ctx: usize,
    /// Endpoints that may share a receive context.
    pub max_ep_srx_ctx: usize,
    /// Counters.
    pub cntr_cnt: usize,
    /// Buffers in the list of one registration.
    pub mr_iov_limit: usize,
    /// Capabilities of the domain: `LOCAL_COMM`, `REMOTE_COMM`, `SHARED_AV`, ….
    pub caps: Flags,
    /// The application's duties (in hints: those that it can take on).
    pub mode: Mode,
    /// Bytes of the authorization key, or [`AV_AUTH_KEY`](super::AV_AUTH_KEY).
    pub auth_key_size: usize,
    /// The key of endpoints that have none of their own.
    pub auth_key: Option<AuthKey>,
    /// Bytes of data with an error.
    pub max_err_data: usize,
    /// Memory regions.
    pub mr_cnt: usize,
    /// [Traffic class](super::traffic_class) of endpoints that have none of their own.
    pub tclass: u32,
    /// Authorization keys of an endpoint.
    pub max_ep_auth_key: usize,
    /// Highest number of a group of peers.
    pub max_group_id: u32,
    /// Highest value of a counter.
    pub max_cntr_value: u64,
    /// Highest value of a counter of errors.
    pub max_err_cntr_value: u64,
}

/// Fabric attributes (`fi_fabric_attr`).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FabricAttr {
    /// The network.
    pub name: String,
    /// The provider's name.
    pub provider: String,
    /// Its version, `major << 16 | minor`.
    pub provider_version: u32,
    /// The interface's version that the application asked for, `major << 16 | minor`; 0: the
    /// newest.
    pub api_version: u32,
}

/// The device behind a domain (`fid_nic`, fi_nic(3)).
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct NicAttr {
    /// Device name.
    pub device: String,
    /// The vendor's number for this model.
    pub device_id: String,
    /// Version of the hardware.
    pub device_version: String,
    /// The vendor's number.
    pub vendor_id: String,
    /// Firmware.
    pub firmware: String,
    /// Kernel driver.
    pub driver: String,
    /// Its place on the PCI bus; `None` for software devices.
    pub pci: Option<PciAddr>,
    /// The memory node that it is nearest to; `None` where the machine does not say.
    pub numa_node: Option<u32>,
    /// The GID that endpoints speak from, as text.
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

/// A place on the PCI bus (`fi_pci_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddr {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl PciAddr {
    /// Reads text such as `0000:3b:00.0`.
    pub fn parse(text: &str) -> Option<Self> {
        let (domain, rest) = text.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        Some(Self {
            domain: u16::from_str_radix(domain, 16).ok()?,
            bus: u8::from_str_radix(bus, 16).ok()?,
            device: u8::from_str_radix(device, 16).ok()?,
            function: u8::from_str_radix(function, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: GI-12
    #[test]
    fn a_place_on_the_bus_is_read_as_the_kernel_writes_it() {
        let place = PciAddr {
            domain: 0x10,
            bus: 0x3b,
            device: 0x1f,
            function: 7,
        };
        assert_eq!(PciAddr::parse("0010:3b:1f.7"), Some(place));
        for wrong in ["", "3b:1f.7", "0010:3b:1f", "0010:3b:1f.x", "0010:3bb:1f.7"] {
            assert_eq!(PciAddr::parse(wrong), None, "{wrong}");
        }
    }
}
