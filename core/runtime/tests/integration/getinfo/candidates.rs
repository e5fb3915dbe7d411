//! The candidates of the providers, one candidate with all capabilities, and the filter's result.

use ferrofabric_contracts::addr::{Address, GidKind, NativeAddr, VerbsAddr};
use ferrofabric_contracts::flags::{Flags, MrMode, Order};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, FabricAttr, Info, RX_CAPS, RxAttr, TX_CAPS, TxAttr, dgram_messages, filter,
    protocol, rdm_endpoints, tag_format, with_all_orders,
};

pub(crate) const NODE: u64 = 0x11;

pub(crate) fn queue_pair(gid: u8, gid_kind: GidKind) -> VerbsAddr {
    VerbsAddr {
        gid: [gid; 16],
        gid_kind,
        qpn: 0,
        qkey: 0,
        lid: 0,
        pkey: 0xffff,
        sl: 0,
        port: 1,
        mtu_bytes: 1024,
    }
}

pub(crate) fn addr(node: u64, shm: bool, verbs: Option<VerbsAddr>) -> Address {
    Address::Native(NativeAddr {
        incarnation: 0,
        node,
        shm: shm.then_some(0),
        verbs,
    })
}

/// The candidate of the shared-memory provider.
pub(crate) fn local() -> Info {
    let all = rdm_endpoints(Flags::LOCAL_COMM);
    with_all_orders(Info {
        src_addr: Some(addr(NODE, true, None)),
        tx: TxAttr {
            inject_size: 4096,
            size: 4096,
            ..all.tx
        },
        rx: RxAttr {
            size: 1 << 20,
            iov_limit: 1,
            ..all.rx
        },
        ep: EpAttr {
            protocol: protocol::SHM,
            protocol_version: 1,
            max_msg_size: 1 << 40,
            ..all.ep
        },
        domain: DomainAttr {
            name: "ferro-shm".to_owned(),
            ..all.domain
        },
        fabric: FabricAttr {
            name: "ferro-shm".to_owned(),
            provider: "ferro".to_owned(),
            ..all.fabric
        },
        ..all
    })
}

/// The candidate of the verbs provider, with shared memory.
pub(crate) fn anywhere() -> Info {
    let mut info = local();
    info.caps |= Flags::REMOTE_COMM;
    info.src_addr = Some(addr(NODE, true, Some(queue_pair(1, GidKind::RoceV2))));
    info.ep.protocol = protocol::VERBS_RDM;
    info.domain.name = "rxe0:1".to_owned();
    info.domain.caps |= Flags::REMOTE_COMM;
    info.fabric.name = "RoCE".to_owned();
    info
}

/// Datagrams of a verbs device.
pub(crate) fn datagrams() -> Info {
    let all = dgram_messages();
    let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
    Info {
        caps: all.caps | reach,
        src_addr: Some(addr(NODE, false, Some(queue_pair(1, GidKind::RoceV2)))),
        tx: TxAttr {
            inject_size: 1024,
            size: 256,
            iov_limit: 4,
            ..all.tx
        },
        rx: RxAttr {
            size: 512,
            iov_limit: 4,
            ..all.rx
        },
        ep: EpAttr {
            protocol: protocol::IB_UD,
            protocol_version: 1,
            max_msg_size: 1024,
            ..all.ep
        },
        domain: DomainAttr {
            name: "rxe0:1".to_owned(),
            caps: reach,
            cq_data_size: 4,
            ..all.domain
        },
        fabric: FabricAttr {
            name: "RoCE".to_owned(),
            provider: "ferro".to_owned(),
            ..all.fabric
        },
        ..all
    }
}

/// A candidate with all future capabilities, and a limit to each number.
pub(crate) fn everything() -> Info {
    let mut info = anywhere();
    info.caps = Flags::from_bits_truncate(u64::MAX) & (TX_CAPS | RX_CAPS)
        | Flags::AV_USER_ID
        | Flags::PEER
        | Flags::SHARED_AV
        | Flags::LOCAL_COMM
        | Flags::REMOTE_COMM;
    info.tx.caps = info.caps & TX_CAPS;
    info.rx.caps = info.caps & RX_CAPS;
    info.tx.rma_iov_limit = 2;
    info.tx.msg_order = Order::all() - Order::DATA;
    info.rx.msg_order = info.tx.msg_order;
    info.rx.total_buffered_recv = 100;
    info.ep.msg_prefix_size = 40;
    info.ep.max_order_raw_size = 64;
    info.ep.max_order_war_size = 64;
    info.ep.max_order_waw_size = 64;
    info.ep.mem_tag_format = tag_format::GENERIC >> 8;
    info.ep.auth_key_size = 8;
    info.domain.caps |= Flags::SHARED_AV | Flags::AV_USER_ID | Flags::PEER | Flags::DIRECTED_RECV;
    info.domain.mr_mode = MrMode::VIRT_ADDR
        | MrMode::ALLOCATED
        | MrMode::PROV_KEY
        | MrMode::HMEM
        | MrMode::RMA_EVENT
        | MrMode::COLLECTIVE
        | MrMode::ENDPOINT;
    info.domain.max_ep_tx_ctx = 2;
    info.domain.max_ep_rx_ctx = 3;
    info.domain.max_ep_stx_ctx = 4;
    info.domain.max_ep_srx_ctx = 4;
    info.domain.max_err_data = 64;
    info.domain.auth_key_size = 8;
    info.domain.max_ep_auth_key = 2;
    info.domain.max_group_id = 3;
    info.domain.max_cntr_value = 1 << 32;
    info.domain.max_err_cntr_value = 1 << 16;
    info.fabric.provider_version = 3;
    info
}

/// Hints that support all modes, require nothing, and are changed by `change`.
pub(crate) fn with(change: impl FnOnce(&mut Info)) -> Info {
    let mut hints = Info::null_hints();
    change(&mut hints);
    hints
}

pub(crate) fn granted(hints: &Info, candidate: &Info) -> Info {
    filter(hints, candidate).unwrap_or_else(|why| panic!("{why}\nfor {hints:#?}"))
}

/// The field that rules the candidate out.
pub(crate) fn refused(hints: &Info, candidate: &Info) -> &'static str {
    match filter(hints, candidate) {
        Err(why) => why.field,
        Ok(offer) => panic!("granted {offer:#?}\nfor {hints:#?}"),
    }
}
