//! Capabilities in hints, and those granted with them.

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{Info, TX_CAPS};

use crate::getinfo::candidates::{anywhere, datagrams, everything, granted, local, refused, with};

/// Covers: GI-3
#[test]
fn primary_capabilities_come_only_when_asked_for() {
    let asked = |caps| granted(&with(|hints| hints.caps = caps), &anywhere());
    let reach = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
    let free = Flags::MULTI_RECV | Flags::SOURCE | Flags::SHARED_AV | reach;

    let tagged = Flags::TAGGED | Flags::SEND | Flags::RECV;
    let offer = asked(Flags::TAGGED);
    assert_eq!(offer.caps, tagged | free);
    assert_eq!(offer.tx.caps, Flags::TAGGED | Flags::SEND);
    assert_eq!(
        offer.rx.caps,
        Flags::TAGGED | Flags::RECV | Flags::MULTI_RECV | Flags::SOURCE
    );
    assert_eq!(
        asked(Flags::TAGGED | Flags::SEND).caps,
        Flags::TAGGED | Flags::SEND | free
    );
    assert_eq!(
        asked(Flags::MSG | Flags::RECV | Flags::DIRECTED_RECV).caps,
        Flags::MSG | Flags::RECV | Flags::DIRECTED_RECV | free
    );
    assert_eq!(asked(Flags::TAGGED | reach).caps, tagged | free);
}

/// Covers: GI-3
#[test]
fn directions_are_those_of_what_is_asked_for() {
    let asked = |caps| granted(&with(|hints| hints.caps = caps), &everything()).caps;
    let remote = Flags::READ | Flags::WRITE | Flags::REMOTE_READ | Flags::REMOTE_WRITE;
    let directions = remote | Flags::SEND | Flags::RECV;
    assert_eq!(asked(Flags::RMA) & directions, remote);
    assert_eq!(asked(Flags::TAGGED) & directions, Flags::SEND | Flags::RECV);
    // Named directions of one-sided operations do not restrict messages.
    assert_eq!(
        asked(Flags::RMA | Flags::TAGGED | remote) & directions,
        directions
    );
    assert_eq!(
        asked(Flags::RMA | Flags::MSG | Flags::SEND | Flags::READ) & directions,
        Flags::SEND | Flags::READ
    );
    let dear = Flags::SOURCE_ERR | Flags::RMA_EVENT | Flags::FENCE | Flags::TRIGGER | Flags::PEER;
    assert!(!asked(Flags::RMA | Flags::MSG).intersects(dear));
    assert!(asked(Flags::RMA | dear | Flags::SOURCE).contains(dear));
}

/// Covers: GI-3
#[test]
fn a_capability_that_refines_another_needs_it() {
    for (alone, asked_with) in [
        (Flags::READ, Flags::RMA),
        (Flags::WRITE, Flags::ATOMIC),
        (Flags::REMOTE_READ, Flags::ATOMIC),
        (Flags::REMOTE_WRITE, Flags::RMA),
        (Flags::MULTICAST, Flags::MSG),
        (Flags::RMA_PMEM, Flags::RMA),
        (Flags::SOURCE_ERR, Flags::SOURCE),
        (Flags::RMA_EVENT, Flags::RMA),
        (
            Flags::RMA_EVENT | Flags::RMA | Flags::WRITE,
            Flags::REMOTE_WRITE,
        ),
    ] {
        let caps = |caps: Flags| with(|hints| hints.caps = caps);
        assert_eq!(refused(&caps(alone), &everything()), "caps", "{alone:?}");
        granted(&caps(alone | asked_with), &everything());
    }
}

/// Messages of unknown sources would be errors: no application gets those without a request.
///
/// Covers: AV-25, GI-3
#[test]
fn errors_for_unknown_sources_need_a_request_by_name() {
    for candidate in [local(), anywhere(), datagrams()] {
        for caps in [Flags::empty(), Flags::MSG, Flags::MSG | Flags::SOURCE] {
            let offer = granted(&with(|hints| hints.caps = caps), &candidate);
            assert!(!(offer.caps | offer.rx.caps).contains(Flags::SOURCE_ERR));
        }
        let wanted = Flags::MSG | Flags::SOURCE | Flags::SOURCE_ERR;
        let offer = granted(&with(|hints| hints.caps = wanted), &candidate);
        assert!((offer.caps & offer.rx.caps).contains(Flags::SOURCE | Flags::SOURCE_ERR));
        assert!(!(offer.tx.caps | offer.domain.caps).contains(Flags::SOURCE_ERR));
        let hints = with(|hints| hints.caps = Flags::MSG | Flags::SOURCE_ERR);
        assert_eq!(refused(&hints, &candidate), "caps");
    }
}

/// Covers: GI-3
#[test]
fn missing_capabilities_are_refused() {
    for caps in [
        Flags::RMA | Flags::RMA_PMEM,
        Flags::MSG | Flags::MULTICAST,
        Flags::COLLECTIVE,
        Flags::HMEM,
        Flags::NAMED_RX_CTX,
        Flags::TRIGGER,
        Flags::MSG | Flags::EXACT_DIRECTED_RECV,
    ] {
        for candidate in [local(), anywhere()] {
            let hints = with(|hints| hints.caps = caps);
            assert_eq!(refused(&hints, &candidate), "caps", "{caps:?}");
        }
    }
}

/// Covers: GI-15
#[test]
fn this_node_alone_is_shared_memory_and_elsewhere_alone_is_not() {
    let asked = |caps| with(|hints| hints.caps = Flags::MSG | caps);
    let both = Flags::LOCAL_COMM | Flags::REMOTE_COMM;

    let here = asked(Flags::LOCAL_COMM);
    assert_eq!(granted(&here, &local()).caps & both, Flags::LOCAL_COMM);
    assert_eq!(refused(&here, &anywhere()), "caps");

    let there = asked(Flags::REMOTE_COMM);
    assert_eq!(refused(&there, &local()), "caps");
    assert_eq!(granted(&there, &anywhere()).caps & both, Flags::REMOTE_COMM);

    assert_eq!(refused(&asked(both), &local()), "caps");
    assert_eq!(granted(&asked(both), &anywhere()).caps & both, both);
    assert_eq!(
        granted(&asked(Flags::empty()), &local()).caps & both,
        Flags::LOCAL_COMM
    );
    assert_eq!(
        granted(&asked(Flags::empty()), &anywhere()).caps & both,
        both
    );

    // The domain's hints for the device do not restrict the endpoint.
    let device = with(|hints| hints.domain.caps = Flags::LOCAL_COMM);
    assert_eq!(granted(&device, &anywhere()).caps & both, both);
}

/// Covers: GI-3
#[test]
fn primary_capabilities_may_be_requested_of_domain_or_endpoint() {
    let peer = |change: fn(&mut Info)| granted(&with(change), &everything()).domain.caps;
    assert!(peer(|hints| hints.domain.caps = Flags::PEER).contains(Flags::PEER));
    assert!(peer(|hints| hints.caps = Flags::MSG | Flags::PEER).contains(Flags::PEER));
    let unasked = peer(|hints| hints.caps = Flags::MSG);
    assert_eq!(
        unasked,
        Flags::LOCAL_COMM | Flags::REMOTE_COMM | Flags::SHARED_AV
    );
}

/// Covers: GI-2
#[test]
fn each_side_has_the_capabilities_that_apply_to_it() {
    let offer = |change: fn(&mut Info)| granted(&with(change), &anywhere());
    let all = offer(|hints| {
        hints.caps = Flags::MSG | Flags::TAGGED;
        // The same value in each field, as some applications set it.
        hints.tx.caps = Flags::MSG | Flags::RECV | Flags::SEND;
        hints.rx.caps = hints.tx.caps;
    });
    assert_eq!(all.tx.caps, Flags::MSG | Flags::SEND);
    assert_eq!(
        all.rx.caps - Flags::MULTI_RECV - Flags::SOURCE,
        Flags::MSG | Flags::RECV
    );
    let inapplicable = offer(|hints| hints.tx.caps = Flags::RECV);
    assert_eq!(inapplicable.tx.caps, inapplicable.caps & TX_CAPS);
}
