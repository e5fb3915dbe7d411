//! The results of well-known applications' hints.

use ferrofabric_contracts::flags::{Flags, Order};
use ferrofabric_contracts::info::{Info, TxAttr};

use crate::getinfo::candidates::{anywhere, granted, local, refused};
use crate::getinfo::clients;

/// Covers: GI-2, GI-3, GI-15
#[test]
fn open_mpi_gets_the_candidate_that_reaches_all_nodes() {
    for mut hints in clients::open_mpi() {
        clients::check_granted(&hints, &granted(&hints, &anywhere()));
        // It requests other nodes, too, which shared memory does not reach.
        assert_eq!(refused(&hints, &local()), "caps");
        hints.caps -= Flags::REMOTE_COMM;
        clients::check_granted(&hints, &granted(&hints, &local()));
    }
    granted(&clients::open_mpi_one_sided(), &anywhere());
}

/// Covers: GI-2, GI-3
#[test]
fn mpich_gets_both_candidates() {
    for candidate in [local(), anywhere()] {
        let first = granted(&Info::null_hints(), &candidate);
        for hints in clients::mpich(&first) {
            let offer = granted(&hints, &candidate);
            clients::check_granted(&hints, &offer);
            assert_eq!(offer.fabric.api_version, hints.fabric.api_version);
            let one_sided = Flags::RMA | Flags::READ | Flags::WRITE;
            let targets = Flags::REMOTE_READ | Flags::REMOTE_WRITE;
            assert!(offer.caps.contains(one_sided | targets));
            let atomics = Info {
                caps: hints.caps | Flags::ATOMIC,
                tx: TxAttr {
                    msg_order: hints.tx.msg_order
                        | Order::ATOMIC_RAR
                        | Order::ATOMIC_RAW
                        | Order::ATOMIC_WAR
                        | Order::ATOMIC_WAW,
                    ..hints.tx
                },
                ..hints
            };
            let offer = granted(&atomics, &candidate);
            assert!(offer.caps.contains(Flags::ATOMIC));
        }
    }
}
