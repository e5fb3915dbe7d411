//! What applications find on a machine with no RDMA device.

#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test")]

#[path = "../../core/tests/getinfo/clients.rs"]
mod clients;
use ferrofabric_conformance::limits::{nobody, refused, says, settings};
use ferrofabric_core::addr::Address;
use ferrofabric_core::error::Errno;
use ferrofabric_core::fabric::Provider;
use ferrofabric_core::flags::{Flags, Mode, MrMode};
use ferrofabric_core::info::{Found, Info, RX_CAPS, TX_CAPS, getinfo};
use ferrofabric_shm::ShmProvider;

fn find(hints: Option<&Info>) -> Result<Found, ferrofabric_core::error::Error> {
    getinfo(&[&ShmProvider::new()], hints, &settings(&[]))
}

fn found(hints: Option<&Info>) -> Info {
    let mut found = find(hints).unwrap();
    assert_eq!(found.infos.len(), 1);
    found.infos.remove(0)
}

fn asking(caps: Flags) -> Info {
    Info {
        caps,
        ..Info::default()
    }
}

/// Covers: GI-1, GI-4, GI-6, GI-15
#[test]
fn null_hints_find_the_shared_memory_domain_with_all_it_has() {
    let info = found(None);
    assert_eq!(info.domain.name, "shm");
    assert_eq!(info, found(Some(&Info::default())));
    assert_eq!(info, found(Some(&info)));
    assert!(
        info.caps
            .contains(Flags::MSG | Flags::TAGGED | Flags::LOCAL_COMM)
    );
    assert!(!info.caps.contains(Flags::REMOTE_COMM));
    assert_eq!(
        (info.mode, info.domain.mr_mode),
        (Mode::empty(), MrMode::empty())
    );
    assert!(info.src_addr.is_some() && info.nic.is_none());
    let candidate = ShmProvider::new()
        .discover(&settings(&[]))
        .candidates
        .remove(0);
    assert_eq!(candidate.tx.caps, info.caps & TX_CAPS);
    // Errors for unknown senders are for those who ask for them by name.
    assert_eq!(candidate.rx.caps - Flags::SOURCE_ERR, info.caps & RX_CAPS);
}

/// Covers: GI-3, GI-15
#[test]
fn other_nodes_are_not_in_reach() {
    let both = Flags::LOCAL_COMM | Flags::REMOTE_COMM;
    assert_eq!(
        found(Some(&asking(Flags::LOCAL_COMM))).caps & both,
        Flags::LOCAL_COMM
    );
    for caps in [Flags::REMOTE_COMM, both] {
        let error = refused(find(Some(&asking(Flags::MSG | caps))));
        says(&error, Errno::ENODATA, &["shm: caps", "FI_REMOTE_COMM"]);
    }
    let Some(Address::Native(own)) = found(None).src_addr else {
        panic!("a native address")
    };
    let to = |change: fn(&mut ferrofabric_core::addr::NativeAddr)| Info {
        dest_addr: Some(nobody(&own, change).into()),
        ..Info::default()
    };
    let here = to(|_| ());
    assert_eq!(found(Some(&here)).dest_addr, here.dest_addr);
    let error = refused(find(Some(&to(|addr| addr.node ^= 1))));
    says(
        &error,
        Errno::ENODATA,
        &["shm: dest_addr", "shared memory on node"],
    );
}

/// Covers: GI-2, GI-3
#[test]
fn mpich_is_served_and_open_mpi_but_for_other_nodes() {
    let first = found(None);
    for hints in clients::mpich(&first) {
        clients::check_granted(&hints, &found(Some(&hints)));
    }
    for mut hints in clients::open_mpi() {
        let error = refused(find(Some(&hints)));
        says(
            &error,
            Errno::ENODATA,
            &["shm: caps asked for is FI_REMOTE_COMM"],
        );
        hints.caps -= Flags::REMOTE_COMM;
        clients::check_granted(&hints, &found(Some(&hints)));
    }
}

/// Covers: GI-8
#[test]
fn bits_that_are_no_capability_are_bad_flags() {
    let bad = Flags::COMPLETION;
    let mut sides = [
        asking(bad),
        Info::default(),
        Info::default(),
        Info::default(),
    ];
    sides[1].tx.caps = bad;
    sides[2].rx.caps = bad;
    sides[3].domain.caps = bad;
    for hints in &sides {
        says(
            &refused(find(Some(hints))),
            Errno::EBADFLAGS,
            &["caps has 0x1000000"],
        );
    }
    // What libfabric and its providers keep among themselves is only not there.
    let private = asking(Flags::from_bits_retain(1 << 60));
    says(
        &refused(find(Some(&private))),
        Errno::ENODATA,
        &["shm: caps"],
    );
}

/// Covers: GI-13
#[test]
fn any_number_of_threads_may_ask_at_once() {
    let alone = found(None);
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|_| scope.spawn(|| (0..100).all(|_| found(None) == alone)))
            .collect();
        assert!(all.into_iter().all(|one| one.join().unwrap()));
    });
}
