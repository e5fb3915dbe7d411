//! The attributes that every domain of ours offers, over any transport.

use super::caps::{ONE_SIDED, RX_CAPS, TX_CAPS};
use super::models::{EpType, Progress, ResourceMgmt, Threading, tag_format};
use super::{DomainAttr, EpAttr, FabricAttr, Info, RxAttr, TxAttr, traffic_class};
use crate::addr::MAX_ADDR_BYTES;
use crate::flags::{Flags, MrMode, Order};

/// Objects of which a domain can have any number, within its memory.
const MANY: usize = 1 << 16;

/// Messages over reliable, unconnected endpoints, as the runtime's domain has them. Providers add
/// where it goes (names, addresses, `LOCAL_COMM`, `REMOTE_COMM`), what they speak, and the limits
/// of their transports, which are 0 here.
pub fn rdm_messages() -> Info {
    let caps = Flags::MSG
        | Flags::TAGGED
        | Flags::SEND
        | Flags::RECV
        | Flags::DIRECTED_RECV
        | Flags::MULTI_RECV
        | Flags::SOURCE
        | Flags::SOURCE_ERR
        | Flags::SHARED_AV
        | Flags::AV_USER_ID
        | Flags::PEER;
    Info {
        caps,
        tx: TxAttr {
            caps: caps & TX_CAPS,
            // A send completes when the peer has the message, which is more than `INJECT_COMPLETE`
            // needs.
            op_flags: Flags::COMPLETION
                | Flags::INJECT
                | Flags::INJECT_COMPLETE
                | Flags::TRANSMIT_COMPLETE,
            msg_order: Order::SAS,
            tclass: traffic_class::BEST_EFFORT,
            ..TxAttr::default()
        },
        rx: RxAttr {
            caps: caps & RX_CAPS,
            op_flags: Flags::COMPLETION | Flags::MULTI_RECV,
            msg_order: Order::SAS,
            ..RxAttr::default()
        },
        ep: EpAttr {
            ep_type: EpType::Rdm,
            mem_tag_format: tag_format::GENERIC,
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            ..EpAttr::default()
        },
        domain: DomainAttr {
            caps: Flags::SHARED_AV | Flags::AV_USER_ID | Flags::PEER,
            threading: Threading::Safe,
            // Insertion and registration are done at return.
            control_progress: Progress::Auto,
            data_progress: Progress::Manual,
            resource_mgmt: ResourceMgmt::Enabled,
            mr_key_size: size_of::<u64>(),
            cq_data_size: size_of::<u64>(),
            cq_cnt: MANY,
            ep_cnt: MANY,
            tx_ctx_cnt: MANY,
            rx_ctx_cnt: MANY,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            cntr_cnt: MANY,
            mr_iov_limit: 1,
            // Of errors that name a sender.
            max_err_data: MAX_ADDR_BYTES,
            mr_cnt: MANY,
            tclass: traffic_class::BEST_EFFORT,
            max_cntr_value: u64::MAX,
            max_err_cntr_value: u64::MAX,
            ..DomainAttr::default()
        },
        ..Info::default()
    }
}

/// As [`rdm_messages`], with the additions of all our reliable transports: one-sided operations,
/// fences, completion at the peer, and limits of the runtime. `reach` is `LOCAL_COMM`,
/// `REMOTE_COMM` or both: the peers that the transport carries messages to.
///
/// The orders of one-sided operations come with the longest message
/// ([`with_all_orders`](super::with_all_orders)).
pub fn rdm_endpoints(reach: Flags) -> Info {
    let all = rdm_messages();
    let caps = all.caps | ONE_SIDED | Flags::FENCE;
    Info {
        caps: caps | reach,
        tx: TxAttr {
            iov_limit: IOV_LIMIT,
            rma_iov_limit: 1,
            caps: caps & TX_CAPS,
            op_flags: all.tx.op_flags | Flags::DELIVERY_COMPLETE | Flags::MATCH_COMPLETE,
            ..all.tx
        },
        rx: RxAttr {
            caps: caps & RX_CAPS,
            size: POSTED_RECEIVES,
            iov_limit: IOV_LIMIT,
            ..all.rx
        },
        domain: DomainAttr {
            caps: all.domain.caps | reach,
            mr_mode: MrMode::BASIC,
            mr_iov_limit: IOV_LIMIT,
            ..all.domain
        },
        fabric: FabricAttr {
            provider: "ferro".to_owned(),
            provider_version: crate::VERSION,
            ..all.fabric
        },
        ..all
    }
}

/// Buffers of an operation, and of a region: so a part of any region is one list.
const IOV_LIMIT: usize = 4;

/// Receives that wait for messages. The runtime keeps them, in memory that grows.
const POSTED_RECEIVES: usize = 1 << 20;
