//! Discovery with several devices, addresses of both families, and formats that only a device has.

use crate::devices;
use std::time::{Duration, Instant};

use devices::{DevicePort, Devices, gid_of, run};
use ferrofabric_av::AvAttr;
use ferrofabric_conformance::limits::settings;
use ferrofabric_contracts::addr::{AddrFormat, Address, IbUdAddr, NativeAddr};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::info::{EpType, Info, SystemResolver};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_hw_tests::{Rig, dgram};
use ferrofabric_runtime::discovery::{DiscoveryQuery, DiscoveryResult, QueryFlags, explain};
use ferrofabric_runtime::fabric::{Domain, Provider};
use ferrofabric_runtime::owning::{Buffer, OwningEndpoint};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;
use ferrofabric_verbs::device::{Device, GidReason};
use serial_test::file_serial;

fn ask(query: &DiscoveryQuery<'_>, pairs: &[(&str, &str)]) -> DiscoveryResult {
    let all: [&dyn Provider; 2] = [&VerbsProvider::new(), &ShmProvider::new()];
    explain(&all, query, &SystemResolver, &settings(pairs)).unwrap()
}

fn messages(pairs: &[(&str, &str)]) -> Vec<Info> {
    let mut hints = Info::null_hints();
    hints.ep.ep_type = EpType::Rdm;
    hints.caps = Flags::MSG | Flags::REMOTE_COMM;
    let query = DiscoveryQuery {
        hints: Some(&hints),
        ..DiscoveryQuery::default()
    };
    ask(&query, pairs).infos
}

fn native(info: &Info) -> NativeAddr {
    match info.src_addr {
        Some(Address::Native(own)) => own,
        other => panic!("no native address: {other:?}"),
    }
}

fn gid(info: &Info) -> [u8; 16] {
    native(info).verbs.unwrap().gid
}

/// Covers: GI-1, GI-12, GI-14
#[test]
#[file_serial(verbs)]
fn each_device_and_port_is_one_domain_and_the_choice_can_be_overridden() {
    let Some(rig) = Rig::open() else { return };
    let Some(more) = Devices::new(2) else { return };
    let all = messages(&[]);
    let mut names: Vec<_> = all.iter().map(|info| info.domain.name.clone()).collect();
    names.sort();
    let mut wanted: Vec<_> = more
        .0
        .iter()
        .map(|(_, device)| format!("{device}:1"))
        .collect();
    wanted.push(format!("{}:{}", rig.context.name(), rig.port.number));
    wanted.sort();
    assert_eq!(names, wanted);
    let speeds: Vec<_> = all
        .iter()
        .map(|info| info.nic.as_ref().unwrap().speed_bps)
        .collect();
    assert!(
        speeds.windows(2).all(|pair| pair[0] >= pair[1]),
        "{speeds:?}"
    );
    for (n, (_, device)) in more.0.iter().enumerate() {
        let [one] = &messages(&[("FERRO_DEVICE", device)])[..] else {
            panic!("{device} is not one domain")
        };
        // RoCE v2 with an IPv4 address.
        assert_eq!(gid(one), gid_of(&format!("10.77.{n}.1")));
        let nic = one.nic.as_ref().unwrap();
        assert_eq!((&nic.device, nic.up), (device, true));
        let table = DevicePort(device).gids();
        assert!(table.len() >= 3, "{table:?}");
        for (index, expected) in table.iter().enumerate() {
            let pairs = [
                ("FERRO_DEVICE", &**device),
                ("FERRO_GID_INDEX", &index.to_string()),
            ];
            let [one] = &messages(&pairs)[..] else {
                panic!("{device} is not one domain")
            };
            assert_eq!(gid(one), *expected);
        }
        assert!(messages(&[("FERRO_DEVICE", device), ("FERRO_PORT", "2")]).is_empty());
    }
}

/// A port is as fast as its interface, and devices are found in the order of their names: the last
/// of these is the fastest.
///
/// Covers: GI-14
#[test]
#[file_serial(verbs)]
fn the_fastest_port_comes_first() {
    let Some(_rig) = Rig::open() else { return };
    let Some(_more) = Devices::with_a_fast_one(2) else {
        return;
    };
    let all = messages(&[]);
    let rates = all.iter().map(|info| {
        let nic = info.nic.as_ref().unwrap();
        assert_eq!(nic.speed_bps, DevicePort(&nic.device).bits_per_second());
        (nic.speed_bps, nic.device.as_str())
    });
    let rates: Vec<_> = rates.collect();
    assert_eq!(rates[0].1, "ferro_more1", "{rates:?}");
    assert!(rates[0].0 > rates[1].0, "{rates:?}");
    assert!(
        rates.windows(2).all(|two| two[0].0 >= two[1].0),
        "{rates:?}"
    );
    let found = ask(&DiscoveryQuery::default(), &[]).infos;
    let fastest = found.iter().filter(|info| info.ep.ep_type == EpType::Dgram);
    let devices: Vec<_> = fastest
        .map(|info| &info.nic.as_ref().unwrap().device)
        .collect();
    assert_eq!(devices[0], "ferro_more1", "{devices:?}");
}

/// A choice that can not be met finds nothing on the device and says what there is instead; the
/// tools have a verdict on each GID.
///
/// Covers: GI-14
#[test]
#[file_serial(verbs)]
fn choices_are_explained() {
    let Some(rig) = Rig::open() else { return };
    let Some(more) = Devices::new(1) else { return };
    let device = &*more.0[0].1;
    let missing = |pairs: &[(&str, &str)]| {
        let found = ask(&DiscoveryQuery::default(), pairs);
        let on_device = found.infos.iter().any(|info| info.nic.is_some());
        assert!(!on_device, "{pairs:?}: {:?}", found.infos);
        let notices: Vec<String> = found.notices.iter().map(ToString::to_string).collect();
        notices.join("\n")
    };
    let text = missing(&[("FERRO_DEVICE", "nowhere")]);
    for word in ["device nowhere", rig.context.name(), device] {
        assert!(text.contains(word), "{word} is not in: {text}");
    }
    let table = DevicePort(device).gids();
    let beyond = table.len().to_string();
    let text = missing(&[("FERRO_DEVICE", device), ("FERRO_GID_INDEX", &beyond)]);
    for gid in &table {
        let gid = std::net::Ipv6Addr::from(*gid).to_string();
        assert!(text.contains(&gid), "{gid} is not in: {text}");
    }

    let all = Device::list().unwrap();
    let opened = all.into_iter().find(|one| one.name == device).unwrap();
    let ports = opened.opened.unwrap().ports;
    let selection = ports[0].selection.as_ref().unwrap();
    let chosen = selection.chosen;
    assert_eq!(chosen.reason, GidReason::Best);
    assert_eq!(chosen.gid.0, gid_of("10.77.0.1"));
    assert_eq!(DevicePort(device).kind(chosen.index), "RoCE v2");
    assert_eq!(selection.passed_over.len() + 1, table.len());
    for other in &selection.passed_over {
        let said = [
            GidReason::RankedBelow {
                chosen: chosen.index,
            },
            GidReason::Later {
                chosen: chosen.index,
            },
        ];
        assert!(said.contains(&other.reason), "{other:?}");
    }
}

/// Name, firmware, bus, address, speed, MTU and kind of link are as the kernel has them, also
/// after a change; a port that is down is not offered, and a notice names it.
///
/// Covers: GI-12
#[test]
#[file_serial(verbs)]
fn the_card_is_as_the_kernel_has_it() {
    let Some(rig) = Rig::open() else { return };
    let Some(more) = Devices::new(1) else { return };
    let (interface, device) = &more.0[0];
    for name in [rig.context.name(), device] {
        let info = messages(&[("FERRO_DEVICE", name)]).remove(0);
        let nic = info.nic.as_ref().unwrap();
        let port = DevicePort(name);
        assert_eq!(nic.device, name);
        assert!(port.firmware().is_none_or(|it| it == nic.firmware));
        assert_eq!(nic.speed_bps, port.bits_per_second());
        assert_eq!(nic.network, port.text("link_layer"));
        assert_eq!((nic.up, port.text("state")), (true, "4: ACTIVE".to_owned()));
        let own = std::net::Ipv6Addr::from(gid(&info));
        assert_eq!(nic.address.parse(), Ok(own));
        assert!(port.gids().contains(&own.octets()), "{own}");
        // A software device has no place on a bus, and no driver but itself.
        assert!(nic.pci.is_none() && !port.is_on_a_bus());
        assert_eq!(nic.numa_node, None);
    }

    let mtu = || {
        let found = messages(&[("FERRO_DEVICE", device)]);
        let info = found.first()?;
        Some((info.nic.as_ref()?.mtu_bytes, native(info).verbs?.mtu_bytes))
    };
    for (of_interface, expected) in [(1500, 1024), (9000, 4096), (2400, 2048)] {
        run(&format!("ip link set {interface} mtu {of_interface}")).unwrap();
        until("the MTU changes", || {
            mtu() == Some((expected, expected as u16))
        });
    }
    run(&format!("ip link set {interface} mtu 1500")).unwrap();

    run(&format!("ip link set {interface} down")).unwrap();
    until("the port goes down", || {
        let found = ask(&DiscoveryQuery::default(), &[("FERRO_DEVICE", device)]);
        let text = found.notices.iter().map(ToString::to_string);
        let said = text.collect::<Vec<_>>().join("\n");
        let offered = found.infos.iter().any(|info| info.nic.is_some());
        !offered && said.contains(&format!("port 1 of {device}"))
    });
    run(&format!("ip link set {interface} up")).unwrap();
    until("the port comes up", || mtu().is_some());
    let info = messages(&[("FERRO_DEVICE", device)]).remove(0);
    assert!(info.nic.unwrap().up);
}

/// A change of the interface reaches its device some time later.
fn until(what: &str, so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !so() {
        assert!(Instant::now() < until, "{what}: it does not");
        std::thread::yield_now();
    }
}

/// Covers: GI-6, GI-14
#[test]
#[file_serial(verbs)]
fn a_source_chooses_device_and_gid_and_messages_go_by_it() {
    let Some(_rig) = Rig::open() else { return };
    let Some(more) = Devices::new(2) else { return };
    for (n, (_, device)) in more.0.iter().enumerate() {
        for ip in [format!("fd77:{n}::1"), format!("10.77.{n}.1")] {
            let [mut one] = <[Info; 1]>::try_from(messages(&[("FERRO_DEVICE", device)])).unwrap();
            let mut own = native(&one);
            own.verbs.as_mut().unwrap().gid = gid_of(&ip);
            // As an address that the application has kept, and as the host's number.
            let kept = own.to_string();
            let mut hints = one.clone();
            for node in [&kept, &ip] {
                hints.domain.name.clear();
                let query = DiscoveryQuery {
                    node: Some(node),
                    flags: QueryFlags::SOURCE | QueryFlags::NUMERICHOST,
                    hints: Some(&hints),
                    ..DiscoveryQuery::default()
                };
                let found = ask(&query, &[]).infos;
                assert_eq!(found.len(), 1, "{node}: {found:?}");
                one = found[0].clone();
            }
            assert_eq!(one.domain.name, format!("{device}:1"));
            assert_eq!(gid(&one), gid_of(&ip));
            let settings = settings(&[("FERRO_SHM", "off")]);
            let domain = VerbsProvider::new().open(&one, &settings).unwrap();
            let endpoint = || OwningEndpoint::open(&*domain, &AvAttr::default()).unwrap();
            let (mut a, mut b) = (endpoint(), endpoint());
            assert_eq!(a.name().verbs.unwrap().gid, gid_of(&ip));
            let to_b = a.av().insert(&b.name().to_bytes()).unwrap();
            exchange(&mut a, &mut b, to_b, b"by way of it");
        }
    }
}

/// Covers: GI-14
#[test]
#[file_serial(verbs)]
fn the_gid_is_of_the_peers_family() {
    let Some(_rig) = Rig::open() else { return };
    let Some(more) = Devices::new(1) else { return };
    let device = &more.0[0].1;
    let own = native(&messages(&[("FERRO_DEVICE", device)])[0]);
    for (peer, ours) in [("fd77:9::5", "fd77:0::1"), ("10.77.0.9", "10.77.0.1")] {
        let mut peer_addr = own;
        peer_addr.node ^= 1;
        peer_addr.verbs.as_mut().unwrap().gid = gid_of(peer);
        let node = peer_addr.to_string();
        let query = DiscoveryQuery {
            node: Some(&node),
            ..DiscoveryQuery::default()
        };
        let found = ask(&query, &[("FERRO_DEVICE", device)]).infos;
        assert!(!found.is_empty());
        for info in &found {
            assert_eq!(gid(info), gid_of(ours), "{peer}");
            assert_eq!(info.dest_addr, Some(peer_addr.into()));
        }
    }
}

/// `FI_ADDR_IB_UD`, as libfabric's verbs provider has it. Covers: GI-5
#[test]
#[file_serial(verbs)]
fn datagrams_by_addresses_of_32_bytes_and_by_text() {
    let Some(_rig) = Rig::open() else { return };
    for format in [AddrFormat::IB_UD, AddrFormat::STR] {
        let mut hints = Info {
            addr_format: format,
            ..Info::default()
        };
        hints.ep.ep_type = EpType::Dgram;
        let query = DiscoveryQuery {
            hints: Some(&hints),
            ..DiscoveryQuery::default()
        };
        let info = ask(&query, &[]).infos.remove(0);
        assert_eq!(info.addr_format, format);
        let domain = VerbsProvider::new().open(&info, &settings(&[])).unwrap();
        let NamedPair { mut a, mut b, to_b } = NamedPair::pair(&*domain, format);
        exchange(&mut a, &mut b, to_b, b"a datagram");
    }
}

/// Two endpoints of a domain that know each other by names in the domain's format.
struct NamedPair {
    a: OwningEndpoint,
    b: OwningEndpoint,
    to_b: FiAddr,
}

impl NamedPair {
    fn pair(domain: &dyn Domain, format: AddrFormat) -> Self {
        let endpoint = || OwningEndpoint::open(domain, &AvAttr::default()).unwrap();
        let (a, b) = (endpoint(), endpoint());
        let name = |one: &OwningEndpoint| {
            let name = Address::of_endpoint(one.name(), format).unwrap();
            name.to_bytes(format).unwrap()
        };
        let bytes = name(&b);
        let to_b = a.av().insert(&bytes).unwrap();
        b.av().insert(&name(&a)).unwrap();
        match format {
            AddrFormat::IB_UD => {
                assert_eq!(bytes.len(), 32);
                let Ok(Address::IbUd(IbUdAddr { qpn, .. })) = Address::from_bytes(format, &bytes)
                else {
                    panic!("no datagram queue pair")
                };
                assert_eq!(qpn, b.name().verbs.unwrap().qpn);
            }
            _ => assert!(bytes.starts_with(b"ferro://")),
        }
        // Of another format.
        let wrong = b.name().to_bytes();
        assert!(a.av().insert(&wrong).is_err());
        Self { a, b, to_b }
    }
}

/// Sends a message, and looks at what arrives.
fn exchange(a: &mut OwningEndpoint, b: &mut OwningEndpoint, to_b: FiAddr, bytes: &[u8]) {
    b.recv(Buffer::new(200).unwrap(), FiAddr::UNSPEC, 1)
        .unwrap();
    let mut buffer = Buffer::new(bytes.len()).unwrap();
    buffer.copy_from_slice(bytes);
    a.send(buffer, bytes.len(), to_b, None, 2).unwrap();
    assert!(dgram::next(a, "the send").outcome.is_ok());
    let got = dgram::next(b, "the receive");
    assert_eq!(got.outcome.unwrap().len, bytes.len());
    assert_eq!(&got.buffer[..bytes.len()], bytes);
}
