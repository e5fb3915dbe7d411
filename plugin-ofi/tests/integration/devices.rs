//! `fi_getinfo` under stock libfabric where there are several devices, made for the test: the
//! domains, their order, and the description of each card.

#[path = "../../../hw-tests/tests/integration/devices/mod.rs"]
mod soft_roce;

use crate::{child, support};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::net::Ipv6Addr;

use ferro_fi::abi::{FI_MSG, FI_REMOTE_COMM, fi_bus_type, fi_ep_type, fi_info, fi_link_state};
use ferrofabric_contracts::addr::{AddrFormat, Address};
use soft_roce::{DevicePort, Devices};
use support::{has_device, skip};

const DEVICE: &str = "FERRO_DEVICE";
const GID_INDEX: &str = "FERRO_GID_INDEX";

/// Covers: GI-12, GI-14
#[test]
fn each_port_is_a_domain_and_the_choice_can_be_overridden() {
    const NAME: &str = "each_port_is_a_domain_and_the_choice_can_be_overridden";
    if child::is_here() {
        return child::alone(NAME, |libfabric| {
            let hints = libfabric.hints();
            // SAFETY: the hints are ours.
            unsafe {
                (*hints.info).caps = FI_MSG | FI_REMOTE_COMM;
                (*(*hints.info).ep_attr).type_ = fi_ep_type::FI_EP_RDM;
            }
            let found = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
            check(found.unwrap().all());
        });
    }
    if !has_device() {
        return skip("this machine has no RDMA device");
    }
    let Some(more) = Devices::with_a_fast_one(2) else {
        return;
    };
    child::run(NAME, &[]);
    for (_, device) in &more.0 {
        child::run(NAME, &[(DEVICE, device)]);
        for slot in 0..DevicePort(device).gids().len() {
            child::run(NAME, &[(DEVICE, device), (GID_INDEX, &slot.to_string())]);
        }
    }
}

/// Checks the offers to a process with these settings.
fn check<'a>(offers: impl Iterator<Item = &'a fi_info>) {
    let chosen = std::env::var(DEVICE).ok();
    let slot = std::env::var(GID_INDEX).ok();
    let mut speeds = Vec::new();
    let mut names = Vec::new();
    for info in offers {
        let (device, speed) = check_card(info);
        if let Some(slot) = &slot {
            assert_eq!(
                gid(info),
                DevicePort(&device).gids()[slot.parse::<usize>().unwrap()]
            );
        } else {
            let (ours, gids) = (gid(info), DevicePort(&device).gids());
            let slot = gids.iter().position(|gid| *gid == ours).unwrap();
            assert_eq!(DevicePort(&device).kind(slot as u32), "RoCE v2");
            // An IPv4 address is routed wherever IP is.
            assert!(Ipv6Addr::from(ours).to_ipv4_mapped().is_some());
        }
        speeds.push(speed);
        names.push(device);
    }
    let all: BTreeSet<String> = match chosen {
        Some(device) => BTreeSet::from([device]),
        None => std::fs::read_dir("/sys/class/infiniband")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect(),
    };
    assert_eq!(names.len(), all.len(), "{names:?}");
    assert_eq!(names.iter().cloned().collect::<BTreeSet<_>>(), all);
    assert!(speeds.windows(2).all(|two| two[0] >= two[1]), "{speeds:?}");
    if all.len() > 1 {
        assert_eq!(names[0], "ferro_more1", "the fastest is first: {speeds:?}");
        assert!(speeds[0] > speeds[1], "{speeds:?}");
    }
}

/// The card is as the kernel has it. Gives its name and speed.
fn check_card(info: &fi_info) -> (String, u64) {
    // SAFETY: an offer has its attributes, and one of a device its card.
    let (domain, card, bus, link) = unsafe {
        let nic = &*info.nic;
        (
            text((*info.domain_attr).name),
            &*nic.device_attr,
            &*nic.bus_attr,
            &*nic.link_attr,
        )
    };
    let device = text(card.name);
    let port = DevicePort(&device);
    assert_eq!(domain, format!("{device}:1"));
    let firmware = text(card.firmware);
    assert!(port.firmware().is_none_or(|it| it == firmware));
    assert_eq!(text(link.network_type), port.text("link_layer"));
    assert_eq!(link.speed as u64, port.bits_per_second());
    let up = port.text("state") == "4: ACTIVE";
    assert_eq!(link.state == fi_link_state::FI_LINK_UP, up);
    let address: Ipv6Addr = text(link.address).parse().unwrap();
    assert_eq!(address.octets(), gid(info));
    let on_a_bus = bus.bus_type == fi_bus_type::FI_BUS_PCI;
    assert_eq!(on_a_bus, port.is_on_a_bus());
    for number in [text(card.vendor_id), text(card.device_id)] {
        let digits = number.strip_prefix("0x").unwrap();
        assert!(u32::from_str_radix(digits, 16).is_ok(), "{number}");
    }
    let mtu = link.mtu;
    assert!([256, 512, 1024, 2048, 4096].contains(&mtu), "{mtu}");
    (device, link.speed as u64)
}

fn gid(info: &fi_info) -> [u8; 16] {
    // SAFETY: the address has that many bytes.
    let bytes = unsafe { std::slice::from_raw_parts(info.src_addr.cast::<u8>(), info.src_addrlen) };
    let Ok(Address::Native(own)) = Address::from_bytes(AddrFormat(info.addr_format), bytes) else {
        panic!("no native address: {bytes:?}")
    };
    own.verbs.unwrap().gid
}

/// A string of an offer; NULL is empty.
fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: it ends with a 0, and stays as long as the offer.
    unsafe { CStr::from_ptr(string) }
        .to_str()
        .unwrap()
        .to_owned()
}
