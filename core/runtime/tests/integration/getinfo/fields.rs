//! The limit of each field: a value just beyond it is refused, and the error names the field.

use ferrofabric_contracts::addr::GidKind;
use ferrofabric_contracts::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_contracts::info::{
    AddrFormat, EpType, Info, Progress, ResourceMgmt, SHARED_CONTEXT, filter, traffic_class,
};
use ferrofabric_contracts::types::AvType;

use crate::getinfo::candidates::{
    NODE, addr, everything, granted, local, queue_pair, refused, with,
};

type Change = fn(&mut Info, &Info);

/// A number: the candidate's value is granted, one more is not.
macro_rules! number {
    ($name:literal, $($field:ident).+) => {
        (
            $name,
            (|hints, there| hints.$($field).+ = there.$($field).+) as Change,
            (|hints, there| hints.$($field).+ = there.$($field).+ + 1) as Change,
        )
    };
}

/// Each field, with the largest value that `everything` grants, and the smallest that it refuses.
const FIELDS: &[(&str, Change, Change)] = &[
    number!("tx_attr->inject_size", tx.inject_size),
    number!("tx_attr->size", tx.size),
    number!("tx_attr->iov_limit", tx.iov_limit),
    number!("tx_attr->rma_iov_limit", tx.rma_iov_limit),
    (
        "tx_attr->tclass",
        |hints, _| hints.tx.tclass = traffic_class::NETWORK_CTRL,
        |hints, _| hints.tx.tclass = traffic_class::NETWORK_CTRL + 1,
    ),
    number!("rx_attr->total_buffered_recv", rx.total_buffered_recv),
    number!("rx_attr->size", rx.size),
    number!("rx_attr->iov_limit", rx.iov_limit),
    number!("ep_attr->protocol", ep.protocol),
    number!("ep_attr->protocol_version", ep.protocol_version),
    number!("ep_attr->max_msg_size", ep.max_msg_size),
    number!("ep_attr->msg_prefix_size", ep.msg_prefix_size),
    number!("ep_attr->max_order_raw_size", ep.max_order_raw_size),
    number!("ep_attr->max_order_war_size", ep.max_order_war_size),
    number!("ep_attr->max_order_waw_size", ep.max_order_waw_size),
    (
        "ep_attr->tx_ctx_cnt",
        |hints, there| hints.ep.tx_ctx_cnt = there.domain.max_ep_tx_ctx,
        |hints, there| hints.ep.tx_ctx_cnt = there.domain.max_ep_tx_ctx + 1,
    ),
    (
        "ep_attr->rx_ctx_cnt",
        |hints, there| hints.ep.rx_ctx_cnt = there.domain.max_ep_rx_ctx,
        |hints, there| hints.ep.rx_ctx_cnt = there.domain.max_ep_rx_ctx + 1,
    ),
    number!("ep_attr->auth_key_size", ep.auth_key_size),
    number!("domain_attr->mr_key_size", domain.mr_key_size),
    number!("domain_attr->cq_data_size", domain.cq_data_size),
    number!("domain_attr->cq_cnt", domain.cq_cnt),
    number!("domain_attr->ep_cnt", domain.ep_cnt),
    number!("domain_attr->tx_ctx_cnt", domain.tx_ctx_cnt),
    number!("domain_attr->rx_ctx_cnt", domain.rx_ctx_cnt),
    number!("domain_attr->max_ep_tx_ctx", domain.max_ep_tx_ctx),
    number!("domain_attr->max_ep_rx_ctx", domain.max_ep_rx_ctx),
    number!("domain_attr->max_ep_stx_ctx", domain.max_ep_stx_ctx),
    number!("domain_attr->max_ep_srx_ctx", domain.max_ep_srx_ctx),
    number!("domain_attr->cntr_cnt", domain.cntr_cnt),
    number!("domain_attr->mr_iov_limit", domain.mr_iov_limit),
    number!("domain_attr->auth_key_size", domain.auth_key_size),
    number!("domain_attr->max_err_data", domain.max_err_data),
    number!("domain_attr->mr_cnt", domain.mr_cnt),
    (
        "domain_attr->tclass",
        |hints, _| hints.domain.tclass = traffic_class::NETWORK_CTRL,
        |hints, _| hints.domain.tclass = traffic_class::NETWORK_CTRL + 1,
    ),
    number!("domain_attr->max_ep_auth_key", domain.max_ep_auth_key),
    number!("domain_attr->max_group_id", domain.max_group_id),
    number!("domain_attr->max_cntr_value", domain.max_cntr_value),
    number!("domain_attr->max_err_cntr_value", domain.max_err_cntr_value),
    (
        "caps",
        |hints, there| hints.caps = there.caps,
        |hints, there| hints.caps = there.caps | Flags::from_bits_retain(1 << 63),
    ),
    (
        "addr_format",
        |hints, there| hints.addr_format = there.addr_format,
        |hints, _| hints.addr_format = AddrFormat::SOCKADDR_IN,
    ),
    (
        "src_addr",
        |hints, there| hints.src_addr = there.src_addr,
        |hints, _| hints.src_addr = Some(addr(NODE, true, None)),
    ),
    (
        "dest_addr",
        |hints, _| hints.dest_addr = Some(addr(2, false, Some(queue_pair(2, GidKind::RoceV2)))),
        |hints, _| hints.dest_addr = Some(addr(2, true, Some(queue_pair(2, GidKind::Ib)))),
    ),
    (
        "tx_attr->caps",
        |hints, _| (hints.caps, hints.tx.caps) = (Flags::MSG | Flags::SEND, Flags::MSG),
        |hints, _| (hints.caps, hints.tx.caps) = (Flags::MSG | Flags::RECV, Flags::SEND),
    ),
    (
        "rx_attr->caps",
        |hints, _| (hints.caps, hints.rx.caps) = (Flags::MSG | Flags::RECV, Flags::MSG),
        |hints, _| (hints.caps, hints.rx.caps) = (Flags::MSG, Flags::TAGGED),
    ),
    (
        "tx_attr->op_flags",
        |hints, there| hints.tx.op_flags = there.tx.op_flags,
        |hints, _| hints.tx.op_flags = Flags::COMMIT_COMPLETE,
    ),
    (
        "rx_attr->op_flags",
        |hints, there| hints.rx.op_flags = there.rx.op_flags,
        |hints, _| hints.rx.op_flags = Flags::INJECT,
    ),
    (
        "tx_attr->msg_order",
        |hints, there| hints.tx.msg_order = there.tx.msg_order,
        |hints, _| hints.tx.msg_order = Order::SAS | Order::DATA,
    ),
    (
        "rx_attr->msg_order",
        |hints, there| hints.rx.msg_order = there.rx.msg_order,
        |hints, _| hints.rx.msg_order = Order::SAS | Order::DATA,
    ),
    (
        "tx_attr->comp_order",
        |hints, _| hints.tx.comp_order = Order::empty(),
        |hints, _| hints.tx.comp_order = Order::SAS,
    ),
    (
        "rx_attr->comp_order",
        |hints, _| hints.rx.comp_order = Order::empty(),
        |hints, _| hints.rx.comp_order = Order::DATA,
    ),
    (
        "ep_attr->type",
        |hints, _| hints.ep.ep_type = EpType::Rdm,
        |hints, _| hints.ep.ep_type = EpType::Dgram,
    ),
    (
        "ep_attr->mem_tag_format",
        |hints, there| hints.ep.mem_tag_format = there.ep.mem_tag_format,
        |hints, there| hints.ep.mem_tag_format = there.ep.mem_tag_format << 1,
    ),
    (
        "ep_attr->tx_ctx_cnt",
        |hints, _| hints.ep.tx_ctx_cnt = SHARED_CONTEXT,
        |hints, _| hints.ep.tx_ctx_cnt = SHARED_CONTEXT - 1,
    ),
    (
        "ep_attr->rx_ctx_cnt",
        |hints, _| hints.ep.rx_ctx_cnt = SHARED_CONTEXT,
        |hints, _| hints.ep.rx_ctx_cnt = SHARED_CONTEXT - 1,
    ),
    (
        "domain_attr->name",
        |hints, there| hints.domain.name.clone_from(&there.domain.name),
        |hints, _| hints.domain.name = "rxe0:2".to_owned(),
    ),
    (
        "domain_attr->caps",
        |hints, there| hints.domain.caps = there.domain.caps,
        |hints, _| hints.domain.caps = Flags::LOCAL_COMM | Flags::XPU,
    ),
    (
        "domain_attr->mr_mode",
        |hints, there| hints.domain.mr_mode = there.domain.mr_mode,
        |hints, _| {
            (hints.caps, hints.domain.mr_mode) = (Flags::RMA, MrMode::VIRT_ADDR | MrMode::PROV_KEY);
        },
    ),
    (
        "fabric_attr->name",
        |hints, there| hints.fabric.name.clone_from(&there.fabric.name),
        |hints, _| hints.fabric.name = "InfiniBand".to_owned(),
    ),
    number!("fabric_attr->prov_version", fabric.provider_version),
    (
        "fabric_attr->prov_name",
        |hints, there| hints.fabric.provider.clone_from(&there.fabric.provider),
        |hints, _| hints.fabric.provider = "verbs".to_owned(),
    ),
];

/// Covers: GI-2, GI-3, GI-5
#[test]
fn each_field_asked_just_beyond_the_offer_is_refused_by_its_name() {
    let candidate = everything();
    for &(field, within, beyond) in FIELDS {
        granted(&with(|hints| within(hints, &candidate)), &candidate);
        let why = filter(&with(|hints| beyond(hints, &candidate)), &candidate).unwrap_err();
        assert_eq!(why.field, field, "{why}");
        let said = why.to_string();
        assert!(
            said.starts_with(field) && why.asked != why.offered,
            "{said}"
        );
    }
}

/// Covers: GI-2, GI-4
#[test]
fn a_missing_mode_is_refused_by_its_name() {
    let cases: [(&str, Change, Change); 8] = [
        (
            "mode",
            |there, _| there.mode = Mode::CONTEXT,
            |hints, _| hints.mode -= Mode::CONTEXT,
        ),
        (
            "tx_attr->mode",
            |there, _| there.tx.mode = Mode::MSG_PREFIX,
            |hints, _| hints.tx.mode = Mode::CONTEXT,
        ),
        (
            "rx_attr->mode",
            |there, _| there.rx.mode = Mode::RX_CQ_DATA,
            |hints, _| hints.rx.mode = Mode::CONTEXT,
        ),
        (
            "domain_attr->mode",
            |there, _| there.domain.mode = Mode::RESTRICTED_COMP,
            |hints, _| hints.domain.mode = Mode::empty(),
        ),
        (
            "domain_attr->control_progress",
            |there, _| there.domain.control_progress = Progress::Manual,
            |hints, _| hints.domain.control_progress = Progress::Auto,
        ),
        (
            "domain_attr->data_progress",
            |there, _| there.domain.data_progress = Progress::ControlUnified,
            |hints, _| hints.domain.data_progress = Progress::Manual,
        ),
        (
            "domain_attr->resource_mgmt",
            |there, _| there.domain.resource_mgmt = ResourceMgmt::Disabled,
            |hints, _| hints.domain.resource_mgmt = ResourceMgmt::Enabled,
        ),
        (
            "domain_attr->av_type",
            |there, _| there.domain.av_type = Some(AvType::Map),
            |hints, _| hints.domain.av_type = Some(AvType::Table),
        ),
    ];
    for (field, needs, asks) in cases {
        let mut candidate = local();
        needs(&mut candidate, &local());
        granted(&Info::null_hints(), &candidate);
        assert_eq!(
            refused(&with(|hints| asks(hints, &candidate)), &candidate),
            field
        );
        granted(&with(|hints| asks(hints, &candidate)), &local());
    }
}

/// Covers: GI-4
#[test]
fn a_side_without_modes_of_its_own_has_those_of_the_endpoint() {
    let mut candidate = local();
    candidate.tx.mode = Mode::MSG_PREFIX;
    candidate.rx.mode = Mode::MSG_PREFIX;
    let hints = Info {
        mode: Mode::MSG_PREFIX,
        ..Info::default()
    };
    assert_eq!(granted(&hints, &candidate).tx.mode, Mode::MSG_PREFIX);
    assert_eq!(refused(&Info::default(), &candidate), "tx_attr->mode");
}
