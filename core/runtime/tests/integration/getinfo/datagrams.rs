//! Unreliable datagrams, with room for a prefix and without.

use ferrofabric_contracts::flags::{Flags, Mode, Order};
use ferrofabric_contracts::info::{EpType, Info, filter, protocol, with_prefix};

use crate::getinfo::candidates::{datagrams, granted, refused, with};
use crate::getinfo::clients;

fn prefixed() -> Info {
    with_prefix(datagrams(), 40)
}

/// Covers: GI-2, GI-3
#[test]
fn datagrams_are_offered_for_datagram_or_message_hints() {
    for caps in [
        Flags::empty(),
        Flags::MSG,
        Flags::MSG | Flags::SEND,
        Flags::MSG | Flags::RECV | Flags::SOURCE,
        Flags::MSG | Flags::REMOTE_COMM | Flags::LOCAL_COMM,
    ] {
        for ep_type in [EpType::Unspec, EpType::Dgram] {
            let hints = with(|hints| {
                hints.caps = caps;
                hints.ep.ep_type = ep_type;
            });
            let offer = granted(&hints, &datagrams());
            assert_eq!(offer.ep.ep_type, EpType::Dgram);
            assert_eq!(offer.ep.protocol, protocol::IB_UD);
            assert_eq!(offer.mode, Mode::empty());
            assert!(offer.caps.contains(caps));
        }
    }
    let one_way = with(|hints| hints.caps = Flags::MSG | Flags::RECV);
    assert!(!granted(&one_way, &datagrams()).caps.contains(Flags::SEND));
}

/// Covers: GI-2, GI-3
#[test]
fn missing_capabilities_rule_datagrams_out() {
    for caps in [
        Flags::TAGGED,
        Flags::RMA,
        Flags::ATOMIC,
        Flags::MSG | Flags::MULTI_RECV,
        Flags::MSG | Flags::DIRECTED_RECV,
        Flags::MSG | Flags::MULTICAST,
    ] {
        let hints = with(|hints| hints.caps = caps);
        assert_eq!(refused(&hints, &datagrams()), "caps", "{caps:?}");
    }
    let with_type = |ep_type| with(|hints| hints.ep.ep_type = ep_type);
    for other in [EpType::Rdm, EpType::Msg] {
        assert_eq!(refused(&with_type(other), &datagrams()), "ep_attr->type");
    }
    let ordered = with(|hints| hints.tx.msg_order = Order::SAS);
    assert_eq!(refused(&ordered, &datagrams()), "tx_attr->msg_order");
    let ordered = with(|hints| hints.rx.msg_order = Order::SAS);
    assert_eq!(refused(&ordered, &datagrams()), "rx_attr->msg_order");
    let cq_data = |size| with(|hints| hints.domain.cq_data_size = size);
    assert_eq!(
        refused(&cq_data(8), &datagrams()),
        "domain_attr->cq_data_size"
    );
    assert_eq!(granted(&cq_data(4), &datagrams()).domain.cq_data_size, 4);
    for hints in clients::open_mpi() {
        assert_eq!(refused(&hints, &datagrams()), "caps");
    }
}

/// Covers: GI-4
#[test]
fn a_prefix_needs_room_in_the_hints() {
    let room = with(|hints| hints.mode = Mode::MSG_PREFIX | Mode::CONTEXT);
    let none = with(|hints| hints.mode = Mode::CONTEXT);
    let offer = granted(&room, &prefixed());
    assert_eq!(offer.mode, Mode::MSG_PREFIX);
    assert_eq!((offer.tx.mode, offer.rx.mode), (offer.mode, offer.mode));
    assert_eq!(offer.ep.msg_prefix_size % 8, 0);
    assert!(offer.ep.msg_prefix_size >= 40);
    assert_eq!(refused(&none, &prefixed()), "mode");
    // Limits are those of messages, prefix or not.
    let plain = granted(&none, &datagrams());
    assert_eq!((plain.mode, plain.ep.msg_prefix_size), (Mode::empty(), 0));
    assert_eq!(plain.ep.max_msg_size, offer.ep.max_msg_size);
    assert_eq!(plain.tx.inject_size, offer.tx.inject_size);
    // One side of an endpoint may leave no room for a prefix.
    let mut sends = room.clone();
    sends.tx.mode = Mode::CONTEXT;
    assert_eq!(refused(&sends, &prefixed()), "tx_attr->mode");
    let mut receives = room.clone();
    receives.rx.mode = Mode::CONTEXT;
    assert_eq!(refused(&receives, &prefixed()), "rx_attr->mode");
    // A larger prefix than the domain has.
    let mut large = room;
    large.ep.msg_prefix_size = 48;
    assert_eq!(refused(&large, &prefixed()), "ep_attr->msg_prefix_size");
    large.ep.msg_prefix_size = 40;
    granted(&large, &prefixed());
}

/// Covers: GI-2
#[test]
fn offers_of_datagrams_taken_as_hints_give_themselves() {
    for (candidate, other) in [(datagrams(), prefixed()), (prefixed(), datagrams())] {
        for caps in [Flags::empty(), Flags::MSG | Flags::SEND] {
            let hints = with(|hints| hints.caps = caps);
            let offer = granted(&hints, &candidate);
            assert_eq!(granted(&offer, &candidate), offer);
            assert!(filter(&offer, &other).is_err(), "{:?}", offer.mode);
        }
    }
}
