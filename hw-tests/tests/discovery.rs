//! Discovery with several devices, addresses of both families, and formats that only a device has.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;
use std::time::{Duration, Instant};

use ferrofabric_conformance::limits::settings;
use ferrofabric_core::addr::{AddrFormat, Address, IbUdAddr, NativeAddr};
use ferrofabric_core::av::AvAttr;
use ferrofabric_core::fabric::{Domain, Provider};
use ferrofabric_core::flags::Flags;
use ferrofabric_core::info::{EpType, Found, Info, Query, QueryFlags, SystemResolver, explain};
use ferrofabric_core::owning::{Buffer, OwningEndpoint};
use ferrofabric_core::types::FiAddr;
use ferrofabric_hw_tests::{Rig, dgram};
use ferrofabric_shm::ShmProvider;
use ferrofabric_verbs::VerbsProvider;
use serial_test::file_serial;

/// Soft-RoCE devices beside the machine's own, gone at the end of a test.
struct Devices(Vec<(String, String)>);

impl Devices {
    /// Each with an address of either family, `10.77.N.1` and `fd77:N::1`. `None` where devices can not be made.
    fn new(count: usize) -> Option<Self> {
        let mut all = Self(Vec::new());
        for n in 0..count {
            let (interface, device) = (format!("ferrod{n}"), format!("ferro_more{n}"));
            all.0.push((interface.clone(), device.clone()));
            let steps = [
                format!("ip link add {interface} type dummy"),
                format!("ip address add 10.77.{n}.1/24 dev {interface}"),
                format!("ip -6 address add fd77:{n}::1/64 dev {interface} nodad"),
                format!("ip link set {interface} up"),
                format!("rdma link add {device} type rxe netdev {interface}"),
            ];
            if let Some(why) = steps.iter().find_map(|step| run(step).err()) {
                // In the machine they can.
                assert!(std::env::var_os("FERRO_REQUIRE_DEVICE").is_none(), "{why}");
                println!("SKIP: {why}");
                return None;
            }
        }
        all.wait_for_addresses();
        Some(all)
    }

    /// A GID comes some time after the address that it stands for.
    fn wait_for_addresses(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        let has_both = |n: usize| {
            let there = gids(&format!("ferro_more{n}"));
            let wanted = [format!("10.77.{n}.1"), format!("fd77:{n}::1")];
            wanted.iter().all(|ip| there.contains(&gid_of(ip)))
        };
        while !(0..self.0.len()).all(has_both) {
            assert!(
                Instant::now() < until,
                "no GIDs for the addresses of {:?}",
                self.0
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        for (interface, device) in &self.0 {
            let _ = run(&format!("rdma link delete {device}"));
            let _ = run(&format!("ip link delete {interface}"));
        }
    }
}

fn run(line: &str) -> Result<(), String> {
    let words: Vec<_> = line.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.map_err(|error| format!("{line}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!(
            "{line}: {}",
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}

fn gid_of(ip: &str) -> [u8; 16] {
    match ip.parse().unwrap() {
        std::net::IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(ip) => ip.octets(),
    }
}

fn gids(device: &str) -> Vec<[u8; 16]> {
    let devices = ferrofabric_verbs::device::Device::list().unwrap();
    let device = devices.into_iter().find(|one| one.name == device).unwrap();
    let ports = device.opened.unwrap().ports;
    ports
        .iter()
        .flat_map(|port| &port.gids)
        .map(|entry| entry.gid.0)
        .collect()
}

fn ask(query: &Query<'_>, pairs: &[(&str, &str)]) -> Found {
    let all: [&dyn Provider; 2] = [&VerbsProvider::new(), &ShmProvider::new()];
    explain(&all, query, &SystemResolver, &settings(pairs)).unwrap()
}

fn messages(pairs: &[(&str, &str)]) -> Vec<Info> {
    let mut hints = Info::null_hints();
    hints.ep.ep_type = EpType::Rdm;
    hints.caps = Flags::MSG | Flags::REMOTE_COMM;
    let query = Query {
        hints: Some(&hints),
        ..Query::default()
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
        let table = gids(device);
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
                let query = Query {
                    node: Some(node),
                    flags: QueryFlags::SOURCE | QueryFlags::NUMERICHOST,
                    hints: Some(&hints),
                    ..Query::default()
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
        let query = Query {
            node: Some(&node),
            ..Query::default()
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
        let query = Query {
            hints: Some(&hints),
            ..Query::default()
        };
        let info = ask(&query, &[]).infos.remove(0);
        assert_eq!(info.addr_format, format);
        let domain = VerbsProvider::new().open(&info, &settings(&[])).unwrap();
        let Side { mut a, mut b, to_b } = Side::pair(&*domain, format);
        exchange(&mut a, &mut b, to_b, b"a datagram");
    }
}

/// Two endpoints of a domain that know each other by names in the domain's format.
struct Side {
    a: OwningEndpoint,
    b: OwningEndpoint,
    to_b: FiAddr,
}

impl Side {
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
