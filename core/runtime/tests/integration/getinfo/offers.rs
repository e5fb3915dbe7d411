//! The values of offers where hints leave them open.

use ferrofabric_contracts::atomics::MAX_ATOMIC_BYTES;
use ferrofabric_contracts::flags::{Flags, Mode, MrMode, Order};
use ferrofabric_contracts::info::{
    DomainAttr, EpAttr, Info, ORDERS_ON_REQUEST, Progress, RX_CAPS, RxAttr, SHARED_CONTEXT,
    Threading, TxAttr, tag_format,
};
use ferrofabric_contracts::types::AvType;

use crate::getinfo::candidates::{anywhere, everything, granted, local, refused, with};

/// Covers: GI-1, GI-2, GI-4
#[test]
fn null_hints_and_empty_ones_get_all_of_a_candidate_that_needs_no_mode() {
    for candidate in [local(), anywhere()] {
        let offer = granted(&Info::null_hints(), &candidate);
        assert_eq!(granted(&Info::default(), &candidate), offer);
        let unasked = Flags::SOURCE_ERR | Flags::PEER;
        let expected = Info {
            caps: candidate.caps - unasked,
            tx: TxAttr {
                op_flags: Flags::empty(),
                msg_order: candidate.tx.msg_order - ORDERS_ON_REQUEST,
                size: 1024,
                ..candidate.tx.clone()
            },
            rx: RxAttr {
                op_flags: Flags::empty(),
                msg_order: candidate.rx.msg_order - ORDERS_ON_REQUEST,
                size: 1024,
                caps: candidate.rx.caps - unasked,
                ..candidate.rx.clone()
            },
            ep: EpAttr {
                max_order_raw_size: MAX_ATOMIC_BYTES,
                max_order_war_size: MAX_ATOMIC_BYTES,
                max_order_waw_size: MAX_ATOMIC_BYTES,
                ..candidate.ep.clone()
            },
            domain: DomainAttr {
                av_type: Some(AvType::Table),
                caps: candidate.domain.caps - unasked,
                mr_mode: MrMode::empty(),
                ..candidate.domain.clone()
            },
            ..candidate
        };
        assert_eq!(offer, expected);
        assert_eq!(
            (offer.mode, offer.domain.mode),
            (Mode::empty(), Mode::empty())
        );
    }
}

/// Covers: GI-1, GI-4
#[test]
fn null_hints_show_what_modes_are_needed_and_empty_ones_do_without() {
    let mut candidate = everything();
    let offer = granted(&Info::null_hints(), &candidate);
    assert_eq!(offer.domain.mr_mode, candidate.domain.mr_mode);
    assert_eq!(offer.caps, candidate.caps - Flags::SOURCE_ERR - Flags::PEER);

    // Device memory and collective operations need registration without one-sided operations, too.
    candidate.domain.mr_mode -= MrMode::HMEM | MrMode::COLLECTIVE;
    let offer = granted(&Info::default(), &candidate);
    let target = Flags::REMOTE_READ | Flags::REMOTE_WRITE | Flags::RMA_EVENT;
    assert_eq!(offer.domain.mr_mode, MrMode::empty());
    assert!(!offer.caps.intersects(target), "{:?}", offer.caps);
    assert!(offer.caps.contains(Flags::RMA | Flags::READ | Flags::MSG));
    assert_eq!(offer.rx.caps, offer.caps & RX_CAPS);

    candidate.mode = Mode::CONTEXT;
    assert_eq!(granted(&Info::null_hints(), &candidate).mode, Mode::CONTEXT);
    assert_eq!(refused(&Info::default(), &candidate), "mode");
}

/// Covers: GI-2
#[test]
fn flags_of_operations_are_those_asked_for_and_none_unasked() {
    let sends = |asked| with(|hints| hints.tx.op_flags = asked);
    let receives = |asked| with(|hints| hints.rx.op_flags = asked);
    for asked in [
        Flags::empty(),
        Flags::COMPLETION,
        Flags::COMPLETION | Flags::INJECT,
        Flags::INJECT_COMPLETE,
        Flags::TRANSMIT_COMPLETE,
        Flags::DELIVERY_COMPLETE,
        Flags::MATCH_COMPLETE,
    ] {
        assert_eq!(granted(&sends(asked), &local()).tx.op_flags, asked);
    }
    for asked in [Flags::empty(), Flags::COMPLETION | Flags::MULTI_RECV] {
        assert_eq!(granted(&receives(asked), &local()).rx.op_flags, asked);
    }
    for asked in [Flags::COMMIT_COMPLETE, Flags::MULTICAST, Flags::FENCE] {
        assert_eq!(refused(&sends(asked), &local()), "tx_attr->op_flags");
    }
    assert_eq!(
        refused(&receives(Flags::PEEK), &local()),
        "rx_attr->op_flags"
    );
}

/// Covers: GI-2
#[test]
fn several_contexts_are_granted_as_asked() {
    let hints = with(|hints| (hints.ep.tx_ctx_cnt, hints.ep.rx_ctx_cnt) = (2, SHARED_CONTEXT));
    let ep = granted(&hints, &everything()).ep;
    assert_eq!((ep.tx_ctx_cnt, ep.rx_ctx_cnt), (2, SHARED_CONTEXT));
    let ep = granted(&Info::null_hints(), &everything()).ep;
    assert_eq!((ep.tx_ctx_cnt, ep.rx_ctx_cnt), (1, 1));
}

/// Covers: GI-2
#[test]
fn every_level_of_threading_is_granted() {
    for threading in [
        Threading::Safe,
        Threading::Fid,
        Threading::Domain,
        Threading::Completion,
        Threading::Endpoint,
    ] {
        let hints = with(|hints| hints.domain.threading = threading);
        assert_eq!(granted(&hints, &local()).domain.threading, threading);
    }
    assert_eq!(
        granted(&Info::null_hints(), &local()).domain.threading,
        Threading::Safe
    );
}

/// Covers: GI-2
#[test]
fn progress_is_as_asked_where_less_is_asked() {
    let progress = |asked| {
        let domain = granted(
            &with(|hints| {
                hints.domain.control_progress = asked;
                hints.domain.data_progress = asked;
            }),
            &local(),
        )
        .domain;
        (domain.control_progress, domain.data_progress)
    };
    assert_eq!(
        progress(Progress::Unspec),
        (Progress::Auto, Progress::Manual)
    );
    for asked in [Progress::Auto, Progress::Manual, Progress::ControlUnified] {
        assert_eq!(progress(asked), (asked, asked));
    }
}

/// Covers: GI-2
#[test]
fn address_vectors_are_of_the_type_asked_for() {
    for (asked, there, given) in [
        (None, None, AvType::Table),
        (None, Some(AvType::Map), AvType::Map),
        (Some(AvType::Map), None, AvType::Map),
        (Some(AvType::Table), None, AvType::Table),
        (Some(AvType::Map), Some(AvType::Map), AvType::Map),
    ] {
        let mut candidate = local();
        candidate.domain.av_type = there;
        let hints = with(|hints| hints.domain.av_type = asked);
        assert_eq!(granted(&hints, &candidate).domain.av_type, Some(given));
    }
}

/// Covers: GI-2
#[test]
fn queues_are_as_long_as_asked_and_limits_as_far_as_they_go() {
    let hints = with(|hints| {
        hints.tx.size = 2000;
        hints.rx.size = 3;
        hints.tx.inject_size = 1;
        hints.tx.iov_limit = 1;
        hints.ep.max_msg_size = 1;
    });
    let offer = granted(&hints, &local());
    assert_eq!((offer.tx.size, offer.rx.size), (2000, 3));
    assert_eq!((offer.tx.inject_size, offer.tx.iov_limit), (4096, 4));
    assert_eq!(offer.ep.max_msg_size, 1 << 40);
}

/// Covers: GI-2
#[test]
fn tags_are_served_in_any_format_that_has_not_more_bits() {
    let format = |asked| granted(&with(|hints| hints.ep.mem_tag_format = asked), &local()).ep;
    for asked in [
        tag_format::BITS,
        tag_format::GENERIC,
        u64::MAX,
        0x30ff,
        1 << 63,
    ] {
        assert_eq!(format(asked).mem_tag_format, tag_format::GENERIC);
    }
    for asked in [tag_format::MPI, tag_format::CCL] {
        assert_eq!(format(asked).mem_tag_format, asked);
    }
    // An endpoint without tagged messages has no tag format.
    let hints = with(|hints| {
        hints.caps = Flags::MSG;
        hints.ep.mem_tag_format = u64::MAX;
    });
    granted(&hints, &everything());
}

/// Covers: GI-2
#[test]
fn one_sided_orders_matter_with_one_sided_operations_only() {
    let hints = |caps| {
        with(|hints| {
            hints.caps = caps;
            hints.ep.max_order_waw_size = usize::MAX;
        })
    };
    assert_eq!(
        refused(&hints(Flags::ATOMIC), &everything()),
        "ep_attr->max_order_waw_size"
    );
    granted(&hints(Flags::MSG), &everything());
}

/// An order that operations have to wait for is in an offer if the hints name it, and up to the
/// longest operation then.
///
/// Covers: GI-2
#[test]
fn orders_on_request_are_offered_to_those_that_ask() {
    for candidate in [local(), anywhere()] {
        for order in ORDERS_ON_REQUEST.iter() {
            let hints = with(|hints| hints.tx.msg_order = order);
            let offer = granted(&hints, &candidate);
            assert_eq!(offer.tx.msg_order & ORDERS_ON_REQUEST, order);
            assert_eq!(offer.rx.msg_order & ORDERS_ON_REQUEST, Order::empty());
            let size = |orders: Order| match orders.contains(order) {
                true => candidate.ep.max_msg_size,
                false => MAX_ATOMIC_BYTES,
            };
            let sizes = [
                (offer.ep.max_order_raw_size, Order::RAW | Order::RMA_RAW),
                (offer.ep.max_order_war_size, Order::WAR | Order::RMA_WAR),
                (offer.ep.max_order_waw_size, Order::WAW | Order::RMA_WAW),
            ];
            for (offered, orders) in sizes {
                assert_eq!(offered, size(orders), "{order:?}");
            }
        }
    }
}

/// Covers: GI-2
#[test]
fn shared_contexts_and_keys_are_refused_where_there_are_none() {
    let field = |asks: fn(&mut Info)| refused(&with(asks), &local());
    assert_eq!(
        field(|hints| hints.ep.tx_ctx_cnt = SHARED_CONTEXT),
        "ep_attr->tx_ctx_cnt"
    );
    assert_eq!(
        field(|hints| hints.ep.rx_ctx_cnt = SHARED_CONTEXT),
        "ep_attr->rx_ctx_cnt"
    );
    assert_eq!(
        field(|hints| hints.ep.auth_key_size = 8),
        "ep_attr->auth_key_size"
    );
    let by_address_vector = |hints: &mut Info| hints.domain.auth_key_size = usize::MAX;
    assert_eq!(field(by_address_vector), "domain_attr->auth_key_size");
}
