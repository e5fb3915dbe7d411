//! A device's limits and abilities.

use std::ffi::CStr;

use ferrofabric_verbs_sys::{
    ibv_atomic_cap, ibv_device_attr_ex, ibv_device_cap_flags, ibv_odp_caps, ibv_odp_general_caps,
    ibv_odp_transport_cap_bits,
};

/// The limits of a device (`ibv_query_device_ex(3)`). Counts are those that the device states, not
/// those that are free now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// PCI vendor; a software device has a number of its own (Soft-RoCE: 0xffffff).
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// Hardware revision.
    pub hardware_version: u32,
    /// Firmware version, as the driver writes it.
    pub firmware: String,
    /// Ports, numbered from 1.
    pub ports: u8,
    /// Longest registration, in bytes.
    pub region_bytes: u64,
    /// Registrations.
    pub regions: u32,
    /// Memory windows; 0 when there are none.
    pub windows: u32,
    /// Type 2 windows can be bound by a posted request and invalidated remotely.
    pub windows_type_2: bool,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Requests of one queue pair's send or receive queue.
    pub queue_depth: u32,
    /// Scatter/gather entries of one request.
    pub entries: u32,
    /// Scatter/gather entries of one RDMA read.
    pub read_entries: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of one completion queue.
    pub completion_depth: u32,
    /// Shared receive queues; 0 when there are none.
    pub shared_receive_queues: u32,
    /// Requests of one shared receive queue.
    pub shared_receive_depth: u32,
    /// Scatter/gather entries of one shared receive request.
    pub shared_receive_entries: u32,
    /// Reads and atomics that a queue pair may have in flight as initiator.
    pub reads_as_initiator: u8,
    /// Reads and atomics that a queue pair takes at once as target.
    pub reads_as_target: u8,
    /// Address handles.
    pub address_handles: u32,
    /// Protection domains.
    pub protection_domains: u32,
    /// 64-bit compare-and-swap and fetch-and-add are there.
    pub atomics: bool,
    /// Its atomics hold against the CPU's and other devices' too.
    pub atomics_global: bool,
    /// Peers' reads and writes over connections reach memory that is not pinned (on-demand paging).
    pub on_demand_paging: bool,
    /// Entries of the P_Key table.
    pub pkeys: u16,
    /// Completion vectors (interrupts) to spread queues over.
    pub completion_vectors: u32,
}

impl DeviceLimits {
    pub(super) fn from_raw(raw: &ibv_device_attr_ex, completion_vectors: i32) -> Self {
        let basic = &raw.orig_attr;
        let has = |flag: ibv_device_cap_flags| basic.device_cap_flags & flag.0 != 0;
        Self {
            vendor_id: basic.vendor_id,
            vendor_part_id: basic.vendor_part_id,
            hardware_version: basic.hw_ver,
            firmware: text(&basic.fw_ver),
            ports: basic.phys_port_cnt,
            region_bytes: basic.max_mr_size,
            regions: count(basic.max_mr),
            windows: count(basic.max_mw),
            windows_type_2: has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2A)
                || has(ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B),
            queue_pairs: count(basic.max_qp),
            queue_depth: count(basic.max_qp_wr),
            entries: count(basic.max_sge),
            read_entries: count(basic.max_sge_rd),
            completion_queues: count(basic.max_cq),
            completion_depth: count(basic.max_cqe),
            shared_receive_queues: count(basic.max_srq),
            shared_receive_depth: count(basic.max_srq_wr),
            shared_receive_entries: count(basic.max_srq_sge),
            reads_as_initiator: reads(basic.max_qp_init_rd_atom),
            reads_as_target: reads(basic.max_qp_rd_atom),
            address_handles: count(basic.max_ah),
            protection_domains: count(basic.max_pd),
            atomics: basic.atomic_cap != ibv_atomic_cap::IBV_ATOMIC_NONE,
            atomics_global: basic.atomic_cap == ibv_atomic_cap::IBV_ATOMIC_GLOB,
            on_demand_paging: has_on_demand_paging(&raw.odp_caps),
            pkeys: basic.max_pkeys,
            completion_vectors: count(completion_vectors),
        }
    }
}

/// Whether peers' reads and writes over connections reach memory that is not pinned.
fn has_on_demand_paging(caps: &ibv_odp_caps) -> bool {
    let needed = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ
        | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE;
    let general = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
    caps.general_caps & general != 0 && caps.per_transport_caps.rc_odp_caps & needed.0 == needed.0
}

/// A C count: negative means none.
fn count(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// Queue pair attributes carry this number in 8 bits.
fn reads(value: i32) -> u8 {
    u8::try_from(value.clamp(0, 255)).unwrap_or(255)
}

fn text(raw: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> = raw.iter().map(|&c| c as u8).collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}
