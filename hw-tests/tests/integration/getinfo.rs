//! The offers that applications find on a machine with a verbs device.

#[path = "../../../core/runtime/tests/integration/getinfo/clients.rs"]
mod clients;
use ferrofabric_conformance::discovery;
use ferrofabric_conformance::limits::{nobody, refused, says, settings};
use ferrofabric_contracts::addr::{Address, NativeAddr};
use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_contracts::flags::{Flags, Mode, MrMode};
use ferrofabric_contracts::info::{EpType, Info, RX_CAPS, TX_CAPS, protocol};
use ferrofabric_hw_tests::Rig;
use ferrofabric_runtime::discovery::{DiscoveryResult, getinfo};
use ferrofabric_runtime::fabric::Provider;
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

const REACH: Flags = Flags::LOCAL_COMM.union(Flags::REMOTE_COMM);

fn find(hints: Option<&Info>, pairs: &[(&str, &str)]) -> Result<DiscoveryResult, Error> {
    let all: [&dyn Provider; 2] = [&VerbsProvider::new(), &ShmProvider::new()];
    getinfo(&all, hints, &settings(pairs))
}

fn found(hints: Option<&Info>) -> Vec<Info> {
    find(hints, &[]).unwrap().infos
}

fn native(info: &Info) -> NativeAddr {
    match info.src_addr {
        Some(Address::Native(own)) => own,
        other => panic!("no native address: {other:?}"),
    }
}

fn domains(hints: &Info) -> Vec<String> {
    found(Some(hints))
        .into_iter()
        .map(|info| info.domain.name)
        .collect()
}

fn asking(caps: Flags) -> Info {
    Info {
        caps,
        ..Info::default()
    }
}

#[test]
#[file_serial(verbs)]
/// Covers: GI-1, GI-4, GI-6, GI-12
fn null_hints_find_devices_first_then_shared_memory() {
    let Some(rig) = Rig::open() else { return };
    let all = found(None);
    let device = &all[0];
    assert_eq!(all.last().unwrap().domain.name, ShmProvider::DOMAIN);
    assert!(
        device.domain.name.starts_with(rig.context.name()),
        "{device:?}"
    );
    let without_modes = all.iter().filter(|offer| offer.mode.is_empty()).cloned();
    let without_modes: Vec<Info> = without_modes.collect();
    assert_eq!(without_modes, found(Some(&Info::default())));
    // An application that takes the first offer has messages that arrive.
    let types: Vec<EpType> = all.iter().map(|offer| offer.ep.ep_type).collect();
    assert_eq!(types[0], EpType::Rdm);
    assert!(types.contains(&EpType::Dgram));
    for offer in &all {
        assert!(found(Some(offer)).contains(offer), "{offer:?}");
        assert_eq!(offer.domain.mr_mode, MrMode::empty());
        match offer.ep.msg_prefix_size {
            0 => assert_eq!(offer.mode, Mode::empty()),
            _ => assert_eq!(offer.mode, Mode::MSG_PREFIX),
        }
        assert_eq!(offer.tx.caps, offer.caps & TX_CAPS);
        assert_eq!(offer.rx.caps, offer.caps & RX_CAPS);
    }
    let nic = device.nic.as_ref().unwrap();
    let limits = rig.context.limits();
    assert_eq!(nic.device, rig.context.name());
    assert_eq!(nic.vendor_id, format!("{:#06x}", limits.vendor_id));
    assert_eq!(nic.device_id, format!("{:#06x}", limits.vendor_part_id));
    assert_eq!(nic.firmware, limits.firmware);
    assert!(
        nic.up && nic.mtu_bytes >= 256 && !nic.address.is_empty(),
        "{nic:?}"
    );
    let verbs = native(device).verbs.unwrap();
    assert_eq!(usize::from(verbs.mtu_bytes), nic.mtu_bytes);
    assert!(device.domain.ep_cnt > 0 && device.domain.mr_cnt > 0);
}

#[test]
#[file_serial(verbs)]
/// Covers: GI-3, GI-15
fn this_node_alone_is_shared_memory_and_elsewhere_alone_is_not() {
    let Some(rig) = Rig::open() else { return };
    let name = rig.context.name();
    let local = domains(&asking(Flags::MSG | Flags::LOCAL_COMM));
    assert_eq!(local, [ShmProvider::DOMAIN]);
    for caps in [Flags::REMOTE_COMM, REACH] {
        for info in found(Some(&asking(Flags::MSG | caps))) {
            assert!(info.domain.name.starts_with(name), "{info:?}");
            assert_eq!(info.caps & REACH, caps);
        }
    }
    let error = refused(find(
        Some(&asking(Flags::LOCAL_COMM)),
        &[("FERRO_SHM", "off")],
    ));
    says(&error, Errno::ENODATA, &[name, "caps", "FI_LOCAL_COMM"]);
}

#[test]
#[file_serial(verbs)]
/// Covers: GI-2, GI-3
fn mpi_libraries_are_served_by_the_device() {
    let Some(rig) = Rig::open() else { return };
    for hints in clients::open_mpi() {
        let offers = found(Some(&hints));
        assert!(offers[0].domain.name.starts_with(rig.context.name()));
        for offer in &offers {
            clients::check_granted(&hints, offer);
        }
    }
    let reliable = |info: &Info| info.ep.ep_type == EpType::Rdm;
    for first in found(None).into_iter().filter(reliable) {
        for hints in clients::mpich(&first) {
            let offers = found(Some(&hints));
            assert!(
                offers
                    .iter()
                    .any(|offer| offer.domain.name == first.domain.name)
            );
            for offer in &offers {
                clients::check_granted(&hints, offer);
            }
        }
    }
    let one_sided = found(Some(&clients::open_mpi_one_sided()));
    assert!(one_sided[0].domain.name.starts_with(rig.context.name()));
}

#[test]
#[file_serial(verbs)]
/// Covers: GI-2, GI-6
fn addresses_choose_the_domain() {
    let Some(rig) = Rig::open() else { return };
    let own = native(&found(None)[0]);
    let to = |change: fn(&mut NativeAddr)| Info {
        dest_addr: Some(nobody(&own, change).into()),
        ..Info::default()
    };
    let names = domains(&to(|addr| addr.node ^= 1));
    assert!(
        names
            .iter()
            .all(|name| name.starts_with(rig.context.name())),
        "{names:?}"
    );
    assert_eq!(domains(&to(|_| ())).last().unwrap(), ShmProvider::DOMAIN);
    let from = Info {
        src_addr: Some(own.into()),
        ..Info::default()
    };
    let mut names = domains(&from);
    names.dedup();
    assert_eq!(names.len(), 1);
}

#[test]
#[file_serial(verbs)]
/// Covers: GI-2, GI-4
fn datagrams_come_after_messages_that_arrive() {
    let Some(rig) = Rig::open() else { return };
    let mtu = rig.port.active_mtu.bytes();
    let any = found(Some(&asking(Flags::MSG | Flags::REMOTE_COMM)));
    let types: Vec<EpType> = any.iter().map(|info| info.ep.ep_type).collect();
    let reliable = types.iter().take_while(|one| **one == EpType::Rdm).count();
    assert!(reliable > 0, "{types:?}");
    assert!(types[reliable..].iter().all(|one| *one == EpType::Dgram));
    let mut hints = asking(Flags::MSG);
    hints.ep.ep_type = EpType::Dgram;
    let plain = found(Some(&hints));
    assert!(plain.iter().all(|info| info.mode.is_empty()));
    hints.mode = Mode::MSG_PREFIX;
    let all = found(Some(&hints));
    assert_eq!(all.len(), 2 * plain.len());
    // An application that can leave room for the prefix first gets the offer without a copy between
    // device and buffer.
    assert_eq!(all[0].mode, Mode::MSG_PREFIX);
    for info in &all {
        assert_eq!(info.ep.protocol, protocol::IB_UD);
        assert_eq!((info.ep.max_msg_size, info.tx.inject_size), (mtu, mtu));
        assert_eq!(info.domain.cq_data_size, 4);
        let prefix = if info.mode.is_empty() { 0 } else { 40 };
        assert_eq!(info.ep.msg_prefix_size, prefix);
        assert!(info.tx.msg_order.is_empty() && info.rx.msg_order.is_empty());
        assert!(!info.caps.intersects(Flags::TAGGED | Flags::MULTI_RECV));
        assert_eq!(native(info).shm, None);
    }
    // Shared memory has none, and a domain that goes nowhere else is wanted.
    hints.caps = Flags::MSG | Flags::LOCAL_COMM;
    let error = refused(find(Some(&hints), &[]));
    let words = [ShmProvider::DOMAIN, "FI_LOCAL_COMM alone"];
    says(&error, Errno::ENODATA, &words);
}

/// A question to the provider of devices alone.
fn of_devices(question: impl FnOnce(&dyn Provider)) {
    if Rig::open().is_some() {
        question(&VerbsProvider::new());
    }
}

#[test]
#[file_serial(verbs)]
fn each_capability_is_granted_or_no_data() {
    of_devices(|devices| {
        // Hints for this node alone lead to shared memory.
        discovery::each_capability(devices, Flags::REMOTE_COMM);
        discovery::unset_hints(devices, REACH);
    });
}

#[test]
#[file_serial(verbs)]
fn bad_flags_and_texts_are_errors() {
    of_devices(discovery::bad_flags_and_texts);
}

#[test]
#[file_serial(verbs)]
fn each_version_is_answered() {
    of_devices(discovery::versions);
}

#[test]
#[file_serial(verbs)]
fn an_address_as_text_goes_without_a_service() {
    of_devices(discovery::addresses_as_text);
}

#[test]
#[file_serial(verbs)]
fn any_number_of_threads_may_ask_at_once() {
    of_devices(|devices| discovery::many_threads(devices, 3));
}
