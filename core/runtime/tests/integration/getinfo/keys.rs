//! Authorization keys in hints.

use ferrofabric_contracts::addr::{AuthKey, MAX_EP_AUTH_KEYS};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{AV_AUTH_KEY, Info, with_address_vector_keys};

use crate::getinfo::candidates::{anywhere, granted, refused, with};

fn key() -> AuthKey {
    AuthKey::new(0xffff, 5).unwrap()
}

/// A candidate with a key of the domain, or one of an endpoint.
fn one_key() -> Info {
    let mut info = anywhere();
    info.ep.auth_key_size = 8;
    info.domain.auth_key_size = 8;
    info.domain.max_ep_auth_key = 1;
    info
}

fn by_vector() -> Info {
    with_address_vector_keys(one_key())
}

/// Covers: AV-21, GI-2
#[test]
fn a_key_must_match_and_is_in_the_offer() {
    let offer = granted(&Info::null_hints(), &one_key());
    assert_eq!(
        (offer.domain.auth_key_size, offer.domain.auth_key),
        (0, None)
    );
    assert_eq!((offer.ep.auth_key_size, offer.ep.auth_key), (0, None));
    let hints = with(|hints| {
        (hints.domain.auth_key_size, hints.domain.auth_key) = (8, Some(key()));
        (hints.ep.auth_key_size, hints.ep.auth_key) = (8, Some(key()));
    });
    let offer = granted(&hints, &one_key());
    assert_eq!(
        (offer.domain.auth_key_size, offer.domain.auth_key),
        (8, Some(key()))
    );
    assert_eq!(
        (offer.ep.auth_key_size, offer.ep.auth_key),
        (8, Some(key()))
    );
    assert_eq!(granted(&offer, &one_key()), offer);
    for size in [1, 7, 9, AV_AUTH_KEY] {
        let hints = with(|hints| hints.domain.auth_key_size = size);
        assert_eq!(refused(&hints, &one_key()), "domain_attr->auth_key_size");
        let hints = with(|hints| hints.ep.auth_key_size = size);
        assert_eq!(refused(&hints, &one_key()), "ep_attr->auth_key_size");
    }
}

/// Covers: AV-21, GI-2
#[test]
fn keys_of_address_vectors_need_a_request() {
    for size in [0, 8] {
        let hints = with(|hints| hints.domain.auth_key_size = size);
        assert_eq!(refused(&hints, &by_vector()), "domain_attr->auth_key_size");
    }
    let asked = |more: fn(&mut Info)| {
        with(|hints| {
            hints.domain.auth_key_size = AV_AUTH_KEY;
            hints.caps = Flags::MSG | Flags::DIRECTED_RECV;
            more(hints);
        })
    };
    let offer = granted(&asked(|_| ()), &by_vector());
    assert_eq!(offer.domain.auth_key_size, AV_AUTH_KEY);
    assert_eq!(offer.domain.max_ep_auth_key, MAX_EP_AUTH_KEYS);
    assert!(offer.caps.contains(Flags::DIRECTED_RECV));
    assert!(offer.domain.caps.contains(Flags::DIRECTED_RECV));
    assert_eq!(granted(&offer, &by_vector()), offer);
    // One-sided operations would reach the memory that is registered for peers with another key.
    let remote = Flags::RMA | Flags::ATOMIC | Flags::READ | Flags::WRITE | Flags::REMOTE_READ;
    let remote = remote | Flags::REMOTE_WRITE | Flags::RMA_EVENT;
    for caps in [by_vector().caps, by_vector().tx.caps, by_vector().rx.caps] {
        assert!(!caps.intersects(remote), "{caps:?}");
    }
    granted(&with(|hints| hints.caps = Flags::RMA), &one_key());
    let some = asked(|hints| hints.domain.max_ep_auth_key = MAX_EP_AUTH_KEYS);
    granted(&some, &by_vector());
    let field = |more| refused(&asked(more), &by_vector());
    assert_eq!(
        field(|hints| hints.domain.max_ep_auth_key = MAX_EP_AUTH_KEYS + 1),
        "domain_attr->max_ep_auth_key"
    );
    assert_eq!(
        field(|hints| hints.domain.auth_key = Some(key())),
        "domain_attr->auth_key"
    );
    assert_eq!(
        field(|hints| hints.ep.auth_key_size = 8),
        "ep_attr->auth_key_size"
    );
}
