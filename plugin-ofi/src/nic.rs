//! The device behind a domain (fi_nic(3)). Each `fi_info` has one of its own, all of it ours:
//! libfabric frees it by closing it, and requests a copy where it copies the info.

use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null_mut;

use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::info::NicAttr;

use crate::abi::{
    FI_CLASS_NIC, FI_DUP, fi_bus_attr, fi_bus_type, fi_device_attr, fi_link_attr, fi_link_state,
    fi_ops, fi_pci_attr, fid, fid_nic,
};
use crate::guard::control;
use crate::memory::copy_text;
use crate::unsupported::Unsupported;

/// libfabric's structure with all that it points to.
#[repr(C)]
struct Nic {
    raw: fid_nic,
    attr: NicAttr,
    device: fi_device_attr,
    bus: fi_bus_attr,
    link: fi_link_attr,
    /// The strings to which the structures point.
    _texts: Vec<CString>,
}

static OPS: fi_ops = fi_ops {
    size: size_of::<fi_ops>(),
    close: Some(close),
    bind: Some(Unsupported::ENOSYS),
    control: Some(command),
    ops_open: Some(Unsupported::ENOSYS),
    tostr: Some(text_of),
    ops_set: Some(Unsupported::ENOSYS),
};

/// A new one, which is C's until it closes it.
pub(crate) fn new(attr: &NicAttr) -> *mut fid_nic {
    let mut texts = Vec::new();
    // An unknown text is NULL.
    let mut text = |text: &str| -> *mut c_char {
        match CString::new(text) {
            Ok(text) if !text.is_empty() => {
                // The bytes stay where they are when the list grows.
                let at = text.as_ptr().cast_mut();
                texts.push(text);
                at
            }
            _ => null_mut(),
        }
    };
    let device = fi_device_attr {
        name: text(&attr.device),
        device_id: text(&attr.device_id),
        device_version: text(&attr.device_version),
        vendor_id: text(&attr.vendor_id),
        driver: text(&attr.driver),
        firmware: text(&attr.firmware),
    };
    let link = fi_link_attr {
        address: text(&attr.address),
        mtu: attr.mtu_bytes,
        speed: usize::try_from(attr.speed_bps).unwrap_or(usize::MAX),
        state: match attr.up {
            true => fi_link_state::FI_LINK_UP,
            false => fi_link_state::FI_LINK_DOWN,
        },
        network_type: text(&attr.network),
    };
    let mut bus = fi_bus_attr {
        bus_type: fi_bus_type::FI_BUS_UNKNOWN,
        ..fi_bus_attr::default()
    };
    if let Some(pci) = attr.pci {
        bus.bus_type = fi_bus_type::FI_BUS_PCI;
        bus.attr.pci = fi_pci_attr {
            domain_id: pci.domain,
            bus_id: pci.bus,
            device_id: pci.device,
            function_id: pci.function,
        };
    }
    let raw = fid_nic {
        fid: fid {
            fclass: FI_CLASS_NIC,
            context: null_mut(),
            ops: (&raw const OPS).cast_mut(),
        },
        device_attr: null_mut(),
        bus_attr: null_mut(),
        link_attr: null_mut(),
        prov_attr: null_mut(),
    };
    let nic = Box::into_raw(Box::new(Nic {
        raw,
        attr: attr.clone(),
        device,
        bus,
        link,
        _texts: texts,
    }));
    // SAFETY: it is ours, and stays where it is.
    unsafe {
        (*nic).raw.device_attr = &raw mut (*nic).device;
        (*nic).raw.bus_attr = &raw mut (*nic).bus;
        (*nic).raw.link_attr = &raw mut (*nic).link;
    }
    nic.cast()
}

/// `fi_close`.
unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    control(|| {
        // SAFETY: C gives back what `new` gave it, once.
        drop(unsafe { Box::from_raw(fid.cast::<Nic>()) });
        Ok::<_, Errno>(())
    })
}

/// `fi_control`: a copy, for the caller.
unsafe extern "C" fn command(fid: *mut fid, command: c_int, argument: *mut c_void) -> c_int {
    control(|| {
        if command != FI_DUP {
            return Err(Errno::ENOSYS);
        }
        if argument.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: one of ours, not closed.
        let attr = unsafe { &(*fid.cast::<Nic>()).attr };
        // SAFETY: there is room for the pointer.
        unsafe { argument.cast::<*mut fid_nic>().write(new(attr)) };
        Ok(())
    })
}

/// `fi_tostr`: adds the device to the text that stands at `buf`, as much of it as there is room for
/// in all.
unsafe extern "C" fn text_of(fid: *const fid, buf: *mut c_char, len: usize) -> c_int {
    control(|| {
        if buf.is_null() {
            return Err(Errno::EINVAL);
        }
        // SAFETY: one of ours, not closed.
        let attr = unsafe { &(*fid.cast::<Nic>()).attr };
        // SAFETY: there is a text, or room for one, in that many bytes.
        unsafe {
            let used = libc::strnlen(buf, len);
            copy_text(&in_words(attr), buf.add(used), len - used);
        }
        Ok(())
    })
}

/// As libfabric shows what else an info has: a field a line, indented by the depth that it lies at.
fn in_words(attr: &NicAttr) -> String {
    let known = |text: &str| match text {
        "" => "(null)".to_owned(),
        text => text.to_owned(),
    };
    let mut lines = vec![(1, "nic:".to_owned()), (2, "fi_device_attr:".to_owned())];
    for (name, value) in [
        ("name", &attr.device),
        ("device_id", &attr.device_id),
        ("device_version", &attr.device_version),
        ("vendor_id", &attr.vendor_id),
        ("driver", &attr.driver),
        ("firmware", &attr.firmware),
    ] {
        lines.push((3, format!("{name}: {}", known(value))));
    }
    lines.push((2, "fi_bus_attr:".to_owned()));
    match attr.pci {
        None => lines.push((3, "bus_type: FI_BUS_UNKNOWN".to_owned())),
        Some(pci) => {
            lines.push((3, "bus_type: FI_BUS_PCI".to_owned()));
            lines.push((3, "fi_pci_attr:".to_owned()));
            for (name, value) in [
                ("domain_id", u32::from(pci.domain)),
                ("bus_id", u32::from(pci.bus)),
                ("device_id", u32::from(pci.device)),
                ("function_id", u32::from(pci.function)),
            ] {
                lines.push((4, format!("{name}: {value}")));
            }
        }
    }
    let state = match attr.up {
        true => "FI_LINK_UP",
        false => "FI_LINK_DOWN",
    };
    lines.push((2, "fi_link_attr:".to_owned()));
    for line in [
        format!("address: {}", known(&attr.address)),
        format!("mtu: {}", attr.mtu_bytes),
        format!("speed: {}", attr.speed_bps),
        format!("state: {state}"),
        format!("network_type: {}", known(&attr.network)),
    ] {
        lines.push((3, line));
    }
    let mut text = String::new();
    for (depth, line) in lines {
        text.push_str(&"    ".repeat(depth));
        text.push_str(&line);
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use ferrofabric_contracts::info::PciAddr;

    use super::*;

    fn shown(text: *const c_char) -> String {
        // SAFETY: a string of the structure's.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    }

    /// Covers: GI-10, GI-12
    #[test]
    fn a_copy_has_everything_and_outlives_its_original() {
        let attr = NicAttr {
            device: "mlx5_0".to_owned(),
            device_id: "0x1017".to_owned(),
            vendor_id: "0x15b3".to_owned(),
            firmware: "16.35".to_owned(),
            pci: Some(PciAddr {
                domain: 1,
                bus: 0x3b,
                device: 2,
                function: 3,
            }),
            address: "::ffff:10.1.0.1".to_owned(),
            speed_bps: 100_000_000_000,
            mtu_bytes: 4096,
            up: true,
            network: "Ethernet".to_owned(),
            ..NicAttr::default()
        };
        let first = new(&attr);
        let mut copy: *mut fid_nic = null_mut();
        // SAFETY: as libfabric calls them.
        unsafe {
            assert_eq!(command(first.cast(), FI_DUP, (&raw mut copy).cast()), 0);
            assert_ne!((*first).device_attr, (*copy).device_attr);
            assert_ne!((*(*first).device_attr).name, (*(*copy).device_attr).name);
            assert_eq!(close(first.cast()), 0);
            let (device, link, bus) = (
                &*(*copy).device_attr,
                &*(*copy).link_attr,
                &*(*copy).bus_attr,
            );
            assert_eq!(shown(device.name), "mlx5_0");
            assert_eq!(shown(device.device_id), "0x1017");
            assert_eq!(shown(device.vendor_id), "0x15b3");
            assert_eq!(shown(device.firmware), "16.35");
            assert!(device.driver.is_null() && device.device_version.is_null());
            assert_eq!((link.mtu, link.speed), (4096, 100_000_000_000));
            assert_eq!(link.state, fi_link_state::FI_LINK_UP);
            assert_eq!(
                (shown(link.address), shown(link.network_type)),
                (attr.address.clone(), attr.network.clone())
            );
            assert_eq!(bus.bus_type, fi_bus_type::FI_BUS_PCI);
            let pci = bus.attr.pci;
            assert_eq!(
                (pci.domain_id, pci.bus_id, pci.device_id, pci.function_id),
                (1, 0x3b, 2, 3)
            );
            // Behind what stands there, and cut to the room in all.
            let mut room = [0x55 as c_char; 1000];
            copy_text("before", room.as_mut_ptr(), 1000);
            assert_eq!(text_of(copy.cast(), room.as_mut_ptr(), 1000), 0);
            let whole = shown(room.as_ptr());
            assert!(whole.starts_with("before    nic:\n"), "{whole}");
            for line in [
                "            name: mlx5_0\n",
                "            driver: (null)\n",
                "                bus_id: 59\n",
                "            speed: 100000000000\n",
                "            state: FI_LINK_UP\n",
            ] {
                assert!(whole.contains(line), "{line} of {whole}");
            }
            room[6..].fill(0);
            assert_eq!(text_of(copy.cast(), room.as_mut_ptr(), 12), 0);
            assert_eq!(shown(room.as_ptr()), whole[..11]);
            assert_eq!(text_of(copy.cast(), room.as_mut_ptr(), 5), 0);
            assert_eq!(shown(room.as_ptr()), whole[..11], "there is no room");
            assert_eq!(text_of(copy.cast(), null_mut(), 5), -22);
            assert_eq!(command(copy.cast(), FI_DUP, null_mut()), -22);
            assert_eq!(command(copy.cast(), 1, (&raw mut copy).cast()), -38);
            assert_eq!(close(copy.cast()), 0);
        }
    }
}
