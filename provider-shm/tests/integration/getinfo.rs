//! Discovery by applications on a machine without RDMA devices.

#[path = "../../../core/runtime/tests/integration/getinfo/clients.rs"]
mod clients;
use ferrofabric_conformance::discovery;
use ferrofabric_conformance::limits::{nobody, refused, says, settings};
use ferrofabric_contracts::addr::{AddrFormat, Address};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::flags::{Flags, Mode, MrMode};
use ferrofabric_contracts::info::{Info, NicAttr, RX_CAPS, TX_CAPS};
use ferrofabric_runtime::discovery::{DiscoveryResult, getinfo};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_shm::ShmProvider;

fn find(hints: Option<&Info>) -> Result<DiscoveryResult, ferrofabric_contracts::error::Error> {
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
    assert_eq!(info.domain.name, ShmProvider::DOMAIN);
    assert_eq!(info.fabric.name, ShmProvider::DOMAIN);
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
    // Errors for unknown sources are reported to applications that request them by name.
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
        says(
            &error,
            Errno::ENODATA,
            &["ferro-shm: caps", "FI_REMOTE_COMM"],
        );
    }
    let Some(Address::Native(own)) = found(None).src_addr else {
        panic!("a native address")
    };
    let to = |change: fn(&mut ferrofabric_contracts::addr::NativeAddr)| Info {
        dest_addr: Some(nobody(&own, change).into()),
        ..Info::default()
    };
    let here = to(|_| ());
    assert_eq!(found(Some(&here)).dest_addr, here.dest_addr);
    let error = refused(find(Some(&to(|addr| addr.node ^= 1))));
    says(
        &error,
        Errno::ENODATA,
        &["ferro-shm: dest_addr", "shared memory on node"],
    );
}

/// Covers: GI-2, GI-3
#[test]
fn mpich_and_local_open_mpi_get_an_offer() {
    let first = found(None);
    for hints in clients::mpich(&first) {
        clients::check_granted(&hints, &found(Some(&hints)));
    }
    for mut hints in clients::open_mpi() {
        let error = refused(find(Some(&hints)));
        says(
            &error,
            Errno::ENODATA,
            &["ferro-shm: caps asked for is FI_REMOTE_COMM"],
        );
        hints.caps -= Flags::REMOTE_COMM;
        clients::check_granted(&hints, &found(Some(&hints)));
    }
}

#[test]
fn each_capability_is_granted_or_no_data() {
    discovery::each_capability(&ShmProvider::new(), Flags::LOCAL_COMM);
    discovery::unset_hints(&ShmProvider::new(), Flags::LOCAL_COMM);
}

#[test]
fn bad_flags_and_texts_are_errors() {
    discovery::bad_flags_and_texts(&ShmProvider::new());
}

#[test]
fn each_version_is_answered() {
    discovery::versions(&ShmProvider::new());
}

#[test]
fn an_address_as_text_goes_without_a_service() {
    discovery::addresses_as_text(&ShmProvider::new());
}

/// Addresses are native ones or text, and those of other formats are refused by the field. Bytes of
/// any other length, and of a socket's family, are no native address.
///
/// Covers: GI-5
#[test]
fn addresses_have_two_formats() {
    for number in 0..32 {
        let format = AddrFormat(number);
        let hints = Info {
            addr_format: format,
            ..Info::default()
        };
        if ![AddrFormat::UNSPEC, AddrFormat::STR].contains(&format) {
            let error = refused(find(Some(&hints)));
            says(&error, Errno::ENODATA, &["ferro-shm: addr_format"]);
            continue;
        }
        let info = found(Some(&hints));
        assert_eq!(info.addr_format, format);
        let own = info.src_addr.unwrap();
        let bytes = own.to_bytes(format).unwrap();
        assert_eq!(Address::from_bytes(format, &bytes), Ok(own));
    }
    let own = found(None).src_addr.unwrap();
    let bytes = own.to_bytes(AddrFormat::UNSPEC).unwrap();
    let longer = [&bytes[..], &[0]].concat();
    for wrong in (0..bytes.len())
        .map(|len| &bytes[..len])
        .chain([&longer[..]])
    {
        assert!(Address::from_bytes(AddrFormat::UNSPEC, wrong).is_err());
    }
    let socket = Address::In("10.1.0.1:7".parse().unwrap());
    for (source, field) in [
        (true, "ferro-shm: src_addr"),
        (false, "ferro-shm: dest_addr"),
    ] {
        let mut hints = Info::default();
        match source {
            true => hints.src_addr = Some(socket),
            false => hints.dest_addr = Some(socket),
        }
        let error = refused(find(Some(&hints)));
        assert_eq!(error.errno(), Errno::ENODATA);
        let text = error.to_string();
        assert!(
            text.contains(field) || text.contains("ferro-shm: addr_format"),
            "{text}"
        );
    }
}

/// There is no network card behind shared memory, and one in the hints restricts nothing.
///
/// Covers: GI-12
#[test]
fn no_offer_has_a_network_card() {
    let hints = Info {
        nic: Some(NicAttr {
            device: "rxe0".to_owned(),
            speed_bps: 1,
            ..NicAttr::default()
        }),
        ..Info::default()
    };
    let info = found(Some(&hints));
    assert_eq!(info.nic, None);
    assert_eq!(info, found(None));
}

#[test]
fn any_number_of_threads_may_ask_at_once() {
    discovery::many_threads(&ShmProvider::new(), 100);
}
