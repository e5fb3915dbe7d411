//! Children of a process that has endpoints: the objects that they inherit belong to the parent.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use ferrofabric_fake_device::control::{FakeDevice, LiveObjects, ROCE};
use ferrofabric_verbs::device::DeviceContext;

use crate::endpoints::party::{PATIENCE, PeerPair, assert_clean};

/// Calls that end something of the device's, or change it.
const ENDS: [&str; 9] = [
    "ibv_destroy_qp",
    "ibv_modify_qp",
    "ibv_destroy_cq",
    "ibv_destroy_srq",
    "ibv_destroy_ah",
    "ibv_destroy_comp_channel",
    "ibv_dereg_mr",
    "ibv_dealloc_pd",
    "ibv_close_device",
];

/// A child that takes longer than this is ended by the kernel.
const CHILDS_SECONDS: u32 = 10;

/// Runs a child, which ends well if this returns true, and says how it ended (waitpid(2)): 0 for
/// well.
fn fork(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child does no more than is given, and ends without a return.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: takes a number.
            unsafe { libc::alarm(CHILDS_SECONDS) };
            let went_well = catch_unwind(AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(i32::from(!went_well)) }
        }
        child => {
            let mut status = 0;
            let begun = Instant::now();
            // SAFETY: waits for a child of this process.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                assert!(begun.elapsed() < PATIENCE, "the child does not end");
                std::thread::yield_now();
            }
            status
        }
    }
}

fn ended(device: &FakeDevice) -> Vec<(&'static str, u64)> {
    ENDS.into_iter()
        .map(|call| (call, device.calls(call)))
        .collect()
}

/// A child drops all that it has inherited: it waits for no thread, and ends nothing of the
/// device's, which is the parent's.
#[test]
fn a_child_that_drops_endpoints_ends_nothing() {
    let device = FakeDevice::take();
    for lane in ["rc", "ud"] {
        let pair = PeerPair::connected(&[("FERRO_LANE", lane)]);
        let before = ended(&device);
        // Whose turn it is at the device is the parent's to say.
        let pair = std::mem::ManuallyDrop::new(pair);
        let status = fork(|| {
            // SAFETY: the parent's is another process's.
            drop(unsafe { std::ptr::read(&raw const *pair) });
            let after = ended(&device);
            if after != before {
                println!("{lane}: {before:?} before, {after:?} after");
            }
            after == before
        });
        let mut pair = std::mem::ManuallyDrop::into_inner(pair);
        assert_eq!(status, 0, "{lane}: how the child has ended");
        pair.exchange(80_000, 7);
        drop(pair);
        assert_clean(&device);
    }
}

/// A child may drop what it has inherited and open endpoints of its own.
#[test]
fn a_child_opens_endpoints_of_its_own() {
    let device = FakeDevice::take();
    let mut pair = PeerPair::connected(&[]);
    let status = fork(|| {
        let mut own = PeerPair::connected(&[]);
        own.exchange(80_000, 3);
        drop(own);
        true
    });
    assert_eq!(status, 0, "how the child has ended");
    pair.exchange(80_000, 7);
    drop(pair);
    assert_clean(&device);
}

/// An opened device, too, is closed by the process that opened it.
#[test]
fn a_child_does_not_close_a_device() {
    let device = FakeDevice::take();
    let context = DeviceContext::open(ROCE).unwrap();
    let before = ended(&device);
    let context = std::mem::ManuallyDrop::new(context);
    let status = fork(|| {
        // SAFETY: the parent's is another process's.
        drop(unsafe { std::ptr::read(&raw const *context) });
        ended(&device) == before
    });
    drop(std::mem::ManuallyDrop::into_inner(context));
    assert_eq!(status, 0, "how the child has ended");
    assert_clean(&device);
}

/// A child finds the device between two operations of its parent's threads.
#[test]
fn a_child_finds_no_operation_half_done() {
    const FORKS: usize = 200;
    let device = FakeDevice::take();
    let context = DeviceContext::open(ROCE).unwrap();
    let is_over = AtomicBool::new(false);
    let failed = std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                device.live();
            }
        });
        let mut ends = (0..FORKS).map(|_| fork(|| device.live() != LiveObjects::default()));
        let failed = ends.find(|&status| status != 0);
        is_over.store(true, Ordering::Relaxed);
        failed
    });
    assert_eq!(failed, None, "how a child has ended");
    drop(context);
    assert_clean(&device);
}
