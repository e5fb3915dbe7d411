//! Regions of an application of libfabric's whose pages change, through the stock library and the
//! plugin.

use crate::plugin;
use std::time::{Duration, Instant};

use crate::client::{Opened, close};
use ferro_fi::abi::{FI_MR_BASIC, FI_MSG, FI_RMA};
use ferrofabric_fake_device::control::{FakeDevice, ROCE};

/// So many bytes have a mapping of their own.
const LEN: usize = 1 << 20;

const PAGE: usize = 4096;

const PATIENCE: Duration = Duration::from_secs(300);

/// The device keeps no pages that the application has given up. With `FI_MR_BASIC` the application
/// has to leave them as they are, and nobody looks.
#[test]
fn pages_are_given_up() {
    let Some((device, libfabric)) = plugin::load(&[]) else {
        return;
    };
    let domain = format!("{ROCE}:1");
    let opened = [0, FI_MR_BASIC].map(|mr_mode| {
        let hints = libfabric.hints();
        // SAFETY: the hints are the test's; the string is libc's.
        unsafe {
            (*hints.info).caps = FI_MSG | FI_RMA;
            let attr = &mut *(*hints.info).domain_attr;
            attr.mr_mode = mr_mode;
            attr.name = libc::strndup(domain.as_ptr().cast(), domain.len());
        }
        let info = libfabric.ask(libfabric.version, None, None, 0, Some(&hints));
        Opened::new(&info.expect("an offer"))
    });
    let (mut changing, mut staying) = (vec![1; LEN], vec![1; LEN]);
    let regions = [
        opened[0].register(&mut changing),
        opened[1].register(&mut staying),
    ];
    assert!(is_registered(&device, &changing) && is_registered(&device, &staying));
    for pages in [&mut staying, &mut changing] {
        give_up(pages);
    }
    let begun = Instant::now();
    while is_registered(&device, &changing) {
        assert!(begun.elapsed() < PATIENCE, "the device keeps the pages");
        std::thread::yield_now();
    }
    // Its report was read before the other one.
    assert!(is_registered(&device, &staying));
    for region in regions {
        assert_eq!(close(region.cast()), 0);
    }
    opened.into_iter().for_each(Opened::close);
    assert_eq!(device.misuse(), "");
}

/// Gives the whole pages of memory up.
fn give_up(memory: &mut [u8]) {
    let from = memory.as_mut_ptr().align_offset(PAGE);
    let len = (memory.len() - from) / PAGE * PAGE;
    let at = memory[from..].as_mut_ptr().cast();
    // SAFETY: the memory is the caller's, and may have any bytes.
    let done = unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

fn is_registered(device: &FakeDevice, memory: &[u8]) -> bool {
    let at = memory.as_ptr() as u64;
    device.regions().iter().any(|region| region.addr == at)
}
