//! Sources and destinations.

use ferrofabric_contracts::addr::{Address, GidKind, VerbsAddr};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::filter;

use crate::getinfo::candidates::{NODE, addr, anywhere, granted, local, queue_pair, refused, with};

/// Covers: GI-2, GI-6, GI-15
#[test]
fn a_destination_must_be_in_reach_and_is_handed_on() {
    let near = Some(queue_pair(1, GidKind::RoceV2));
    let far = Some(queue_pair(2, GidKind::RoceV2));
    let old = Some(queue_pair(2, GidKind::RoceV1));
    let other = Some(queue_pair(2, GidKind::Ib));
    let (any, remote) = (Flags::empty(), Flags::REMOTE_COMM);
    // Node, shared memory, queue pair, requested reach; whether each of the domains reaches it.
    let cases = [
        (NODE, true, None, any, true, true),
        (NODE, true, None, remote, false, false),
        (NODE, false, near, any, false, true),
        (NODE, true, near, any, true, true),
        (2, true, None, any, false, false),
        (2, true, far, any, false, true),
        (2, true, old, any, false, false),
        (2, true, other, any, false, false),
        (2, true, far, remote, false, true),
    ];
    for (node, shm, verbs, caps, by_local, by_anywhere) in cases {
        let dest = addr(node, shm, verbs);
        let hints = with(|hints| {
            hints.dest_addr = Some(dest);
            hints.caps = caps;
        });
        for (candidate, reached) in [(local(), by_local), (anywhere(), by_anywhere)] {
            match (filter(&hints, &candidate), reached) {
                (Ok(offer), true) => assert_eq!(offer.dest_addr, Some(dest)),
                (Err(why), false) => assert!(["dest_addr", "caps"].contains(&why.field), "{why}"),
                (got, _) => panic!("{dest} with {caps:?}: {got:?}"),
            }
        }
        // A domain without an address of its own accepts every destination.
        let mut unknown = anywhere();
        unknown.src_addr = None;
        assert_eq!(granted(&hints, &unknown).dest_addr, Some(dest));
    }
}

/// Covers: GI-2, GI-6
#[test]
fn a_source_is_a_node_and_a_port() {
    let hints = |src| with(|hints| hints.src_addr = Some(src));
    let Some(Address::Native(own)) = anywhere().src_addr else {
        panic!("a native address")
    };
    let mut opened = own;
    opened.incarnation = 99;
    opened.verbs = own.verbs.map(|v| VerbsAddr { qpn: 17, ..v });
    // A hint with the address of an endpoint requests another endpoint beside it.
    assert_eq!(
        granted(&hints(opened.into()), &anywhere()).src_addr,
        Some(own.into())
    );
    assert_eq!(refused(&hints(opened.into()), &local()), "src_addr");
    for other in [
        addr(2, true, own.verbs),
        addr(NODE, true, Some(queue_pair(9, GidKind::RoceV2))),
        addr(NODE, true, own.verbs.map(|v| VerbsAddr { port: 2, ..v })),
        addr(NODE, true, None),
    ] {
        assert_eq!(refused(&hints(other), &anywhere()), "src_addr", "{other}");
    }
}
