//! The addresses that are measured.

use ferrofabric_contracts::addr::{GidKind, NativeAddr, VerbsAddr};

use crate::workload::vectors::NODES;

/// The address with index `i`, of one of the nodes.
pub(super) fn name(i: usize) -> NativeAddr {
    let (node, endpoint) = (i % NODES, i / NODES);
    let mut gid = [0; 16];
    gid[8..].copy_from_slice(&(node as u64 + 1).to_be_bytes());
    let verbs = VerbsAddr {
        gid,
        gid_kind: GidKind::RoceV2,
        qpn: endpoint as u32 + 17,
        qkey: 0x1ee7,
        lid: 0,
        pkey: 0xffff,
        sl: 0,
        port: 1,
        mtu_bytes: 4096,
    };
    NativeAddr::of_new(node as u64, Some(verbs), true, i as u64)
}
