//! Registered memory whose pages change: the device reaches the new ones.

use std::fs::File;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;
use std::sync::Arc;

use ferrofabric_conformance::target::{BOTH, KEY, Target, close_beside};
use ferrofabric_contracts::error::Errno;
use ferrofabric_contracts::types::{IoBuf, RmaKind};
use ferrofabric_fake_device::control::FakeDevice;
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};

use crate::endpoints::nic::nic;
use crate::endpoints::party::domain;

/// Bytes of a mapping.
const LEN: usize = 64 << 10;

/// A private mapping.
struct OwnPages(*mut u8);

impl OwnPages {
    fn map() -> Self {
        let mut pages = Self(ptr::null_mut());
        pages.map_at(0);
        pages
    }

    fn map_at(&mut self, flags: i32) {
        let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, or in place of this mapping, to which nobody refers.
        let at = unsafe { libc::mmap(self.0.cast(), LEN, rights, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "{}", Error::last_os_error());
        self.0 = at.cast();
    }

    /// Gives the pages up: they are there again, all zero, with the next access.
    fn give_up(&self) {
        // SAFETY: this mapping, to which nobody refers.
        let done = unsafe { libc::madvise(self.0.cast(), LEN, libc::MADV_DONTNEED) };
        assert_eq!(done, 0, "{}", Error::last_os_error());
    }

    /// Leaves addresses without memory that nobody else gets.
    fn seal(&self) {
        // SAFETY: in place of this mapping, to which nobody refers.
        let at = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            libc::mmap(self.0.cast(), LEN, libc::PROT_NONE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED, "{}", Error::last_os_error());
    }

    fn first(&self) -> u8 {
        // SAFETY: mapped, and nobody writes it now.
        unsafe { self.0.read_volatile() }
    }

    fn register(&self, domain: &dyn Domain, pages_may_change: bool) -> Arc<dyn Mr> {
        let request = MrAttr {
            key: Some(KEY),
            pages_may_change,
            ..MrAttr::new(IoBuf::new(self.0, LEN), BOTH)
        };
        // SAFETY: the mapping outlives the region; its pages are allowed to change.
        unsafe { domain.register_region(&request) }.unwrap()
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's.
        unsafe { libc::munmap(self.0.cast(), LEN) };
    }
}

/// Writes one byte to the start of the region.
fn write(target: &Target<'_>, byte: u8) {
    let from = target.pair.a.memory(8, byte);
    target.done(&target.op(RmaKind::Write, 0), &[from]);
}

/// Writes to the start of the region until a device does it: a query that came while pages went is
/// repeated after 1024 operations.
fn await_device(target: &Target<'_>, region: &dyn Mr) {
    let before = target.by_device();
    for _ in 0..10_000 {
        write(target, 0);
        // One by a key that has ended counts, too, and is refused.
        if target.by_device() > before && region.device_key().is_some() {
            return;
        }
        target.pair.drive();
    }
    let has_lane = target.stat("verbs_rc_lanes_now") > 0;
    assert!(!has_lane, "no operation went by a device");
}

fn of_b(target: &Target<'_>, name: &str) -> u64 {
    let stats = target.pair.b.endpoint.stats().unwrap();
    let found = stats.iter().find(|(of, _)| *of == name);
    found.unwrap_or_else(|| panic!("no statistic {name}")).1
}

/// The key that a holder has ends without a call of the target, as soon as its pages have changed.
/// What the holder writes by it comes in messages, and after that by the next key.
#[test]
fn a_key_ends_with_its_pages() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let pages = OwnPages::map();
    let region = pages.register(&*b, true);
    for round in 1..6 {
        await_device(&target, &*region);
        let known = region.device_key().unwrap();
        pages.give_up();
        // Another thread reads the report: this one drives nothing here.
        while of_b(&target, "verbs_regions_changed") < u64::from(round) {
            std::thread::yield_now();
        }
        write(&target, round);
        assert_eq!(pages.first(), round);
        assert_ne!(region.device_key(), Some(known), "{round}");
    }
    await_device(&target, &*region);
    close_beside(region, &target.pair.a);
    assert_eq!(of_b(&target, "rma_regions_left_now"), 0);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// An application that leaves the pages as they are may still refresh them.
#[test]
fn a_region_that_is_refreshed() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let pages = OwnPages::map();
    let region = pages.register(&*b, false);
    target.await_grant();
    let known = region.device_key().unwrap();
    pages.give_up();
    region.refresh().unwrap();
    assert_ne!(region.device_key(), Some(known));
    write(&target, 7);
    assert_eq!(pages.first(), 7);
    target.await_grant();
    close_beside(region, &target.pair.a);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// Addresses of a region that have no memory any more are refused, and end no process. With memory
/// again they are reached.
#[test]
fn a_region_whose_memory_goes() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let mut pages = OwnPages::map();
    let region = pages.register(&*b, true);
    target.await_grant();
    pages.seal();
    // The fake device touches memory as this process does: it has to have lost the key.
    while of_b(&target, "verbs_regions_changed") < 1 {
        std::thread::yield_now();
    }
    let from = target.pair.a.memory(8, 1);
    let op = target.op(RmaKind::Write, 0);
    target.begin(&op, &[from]);
    assert_eq!(target.over(&op).unwrap_err().errno, Errno::EACCES);
    pages.map_at(libc::MAP_FIXED);
    region.refresh().unwrap();
    write(&target, 9);
    assert_eq!(pages.first(), 9);
    close_beside(region, &target.pair.a);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// No device keeps the pages of memory of which nobody reports that they change, unless it pages in
/// on demand: here another descriptor watches them.
#[test]
fn memory_without_reports() {
    let device = FakeDevice::take();
    let (a, b) = (domain(&[]), domain(&[]));
    let target = Target::open(&*a, &*b);
    let pages = OwnPages::map();
    let Some(_watcher) = watched_elsewhere(&pages) else {
        return;
    };
    let region = pages.register(&*b, true);
    assert_eq!(region.device_key().is_some(), nic().on_demand_paging);
    assert!(region.desc().is_none());
    for round in 1..6 {
        write(&target, round);
        assert_eq!(pages.first(), round);
        pages.give_up();
    }
    assert_eq!(target.stat("verbs_lanes_failed"), 0);
    close_beside(region, &target.pair.a);
    drop(target);
    assert_eq!(device.misuse(), "");
}

/// Watches the pages by a descriptor of ours (userfaultfd(2)).
fn watched_elsewhere(pages: &OwnPages) -> Option<File> {
    const API: u64 = 0xaa;
    const ASK_API: libc::c_ulong = 0xc018_aa3f;
    const ASK_REGISTER: libc::c_ulong = 0xc020_aa00;
    const OF_WRITE_PROTECTION: u64 = 2;
    const USER_MODE_ONLY: i32 = 1;
    // SAFETY: takes only flags, and what it gives is nobody else's.
    let watcher = unsafe {
        let fd = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
        if fd < 0 {
            println!("SKIP: userfaultfd(2): {}", Error::last_os_error());
            return None;
        }
        File::from_raw_fd(fd as i32)
    };
    let mut api = [API, 0, 0];
    // No page is ever protected, so no access waits.
    let mut range = [pages.0 as u64, LEN as u64, OF_WRITE_PROTECTION, 0];
    // SAFETY: each request gets the structure that it takes.
    unsafe {
        let fd = watcher.as_raw_fd();
        assert_eq!(libc::ioctl(fd, ASK_API, api.as_mut_ptr()), 0);
        assert_eq!(libc::ioctl(fd, ASK_REGISTER, range.as_mut_ptr()), 0);
    }
    Some(watcher)
}
