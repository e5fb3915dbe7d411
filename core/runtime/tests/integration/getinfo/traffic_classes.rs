//! Traffic classes in hints (fi_endpoint(3), `tclass`).

use ferrofabric_contracts::info::{Info, filter, traffic_class};

use crate::getinfo::candidates::{datagrams, granted, local, with};

/// Every class of fi_endpoint(3), with libfabric's numbers.
fn all() -> Vec<u32> {
    let labels = [0x200, 0x201, 0x202, 0x203, 0x204, 0x205];
    labels.into_iter().chain(0x100..=0x13f).collect()
}

/// Numbers that are no class: without a kind, a DSCP of more than six bits, an unknown label, both
/// kinds in one.
const MALFORMED: [u32; 11] = [
    1,
    0x3f,
    0xff,
    0x140,
    0x1ff,
    0x206,
    0x2ff,
    0x300,
    0x301,
    0x1_0200,
    u32::MAX,
];

fn classes(offer: &Info) -> (u32, u32) {
    (offer.tx.tclass, offer.domain.tclass)
}

/// Covers: GI-2
#[test]
fn every_class_is_granted_as_asked() {
    for candidate in [local(), datagrams()] {
        for class in all() {
            let of_endpoint = granted(&with(|hints| hints.tx.tclass = class), &candidate);
            assert_eq!(classes(&of_endpoint), (class, traffic_class::BEST_EFFORT));
            let of_domain = granted(&with(|hints| hints.domain.tclass = class), &candidate);
            assert_eq!(classes(&of_domain), (class, class));
            for offer in [of_endpoint, of_domain] {
                assert_eq!(granted(&offer, &candidate), offer);
            }
        }
    }
}

/// Covers: GI-2
#[test]
fn an_endpoint_without_a_class_has_that_of_its_domain() {
    let neither = granted(&with(|_| ()), &local());
    let best_effort = traffic_class::BEST_EFFORT;
    assert_eq!(classes(&neither), (best_effort, best_effort));
    let mut opened = local();
    opened.domain.tclass = traffic_class::SCAVENGER;
    let scavenger = granted(&with(|_| ()), &opened);
    assert_eq!(scavenger.tx.tclass, traffic_class::SCAVENGER);
    let both = with(|hints| {
        hints.tx.tclass = traffic_class::LOW_LATENCY;
        hints.domain.tclass = traffic_class::of_dscp(26);
    });
    let offer = granted(&both, &opened);
    assert_eq!(classes(&offer), (traffic_class::LOW_LATENCY, 0x100 | 26));
}

/// Covers: GI-2, GI-8
#[test]
fn a_malformed_class_is_refused_by_its_field_and_number() {
    for class in MALFORMED {
        for (field, hints) in [
            ("tx_attr->tclass", with(|hints| hints.tx.tclass = class)),
            (
                "domain_attr->tclass",
                with(|hints| hints.domain.tclass = class),
            ),
        ] {
            let why = filter(&hints, &local()).unwrap_err();
            assert_eq!((why.field, why.asked), (field, format!("{class:#x}")));
            assert!(why.offered.contains("0x200 to 0x205"), "{}", why.offered);
            assert!(why.offered.contains("0x100 to 0x13f"), "{}", why.offered);
        }
    }
}
