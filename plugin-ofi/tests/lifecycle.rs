//! Every object is opened, used and closed a thousand times under stock libfabric, and nothing is left: no memory, no
//! descriptor, no thread. (With queue pairs a hundred times; the long tests make it a thousand.)

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod client;
mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use client::{Libfabric, round};
use ferro_fi::abi::fi_threading;
use support::plugin::Plugin;
use support::{has_device, skip};

/// Rounds until every pool and table has its size.
const FIRST: usize = 50;

/// The harness and the test.
const TEST_THREADS: usize = 2;

/// Set in the process that a test is for: the domain.
const CHILD: &str = "FERRO_TEST_LIFECYCLE";

/// Through shared memory, which is everywhere.
#[test]
fn rounds_of_shared_memory_leave_nothing() {
    alone("rounds_of_shared_memory_leave_nothing", "shm", 1000);
}

/// With queue pairs, shared memory being off.
#[test]
fn rounds_of_queue_pairs_leave_nothing() {
    let name = "rounds_of_queue_pairs_leave_nothing";
    let soak = std::env::var_os("FERRO_SOAK").is_some();
    match has_device() {
        true => alone(name, "", if soak { 1000 } else { 100 }),
        false => skip("this machine has no RDMA device"),
    }
}

/// A process has one libfabric, and its memory is to be counted: each test has one of its own.
fn alone(test: &str, domain: &str, times: usize) {
    if let Some(domain) = std::env::var_os(CHILD) {
        return rounds(&domain.to_string_lossy(), times);
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(CHILD, domain)
        // What the allocator keeps for each thread counts as allocated: it is to keep nothing.
        .env(
            "GLIBC_TUNABLES",
            "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1",
        );
    let plugin = Plugin::new();
    plugin.choose(&mut command);
    if domain.is_empty() {
        command.env("FERRO_SHM", "off");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    print!(
        "{}",
        text.lines().fold(String::new(), |all, line| {
            if line.starts_with("SKIP") || line.starts_with("after") {
                all + line + "\n"
            } else {
                all
            }
        })
    );
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
}

fn rounds(domain: &str, times: usize) {
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpich)");
    };
    let info = libfabric.discover(domain, fi_threading::FI_THREAD_SAFE);
    let mut before = Held::now();
    for number in 0..FIRST + times {
        if number == FIRST {
            before = Held::now();
        }
        round(&info, number as u8);
    }
    let after = Held::now();
    println!("after {times} rounds: {before:?} has become {after:?}");
    assert_eq!(
        (after.descriptors, after.threads),
        (before.descriptors, before.threads)
    );
    // Less than one allocation a round: the smallest takes 32 bytes.
    let grown = after.bytes.saturating_sub(before.bytes);
    assert!(
        grown < 16 * times,
        "{grown} bytes more: {before:?}, {after:?}"
    );
}

/// What the process has.
#[derive(Clone, Copy, Debug)]
struct Held {
    /// Bytes that are allocated.
    bytes: usize,
    descriptors: usize,
    threads: usize,
}

impl Held {
    fn now() -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        // A thread that was joined stays in the list until the kernel is done with it.
        let deadline = Instant::now() + Duration::from_secs(5);
        while count("/proc/self/task") > TEST_THREADS && Instant::now() < deadline {
            std::thread::yield_now();
        }
        // SAFETY: it has no conditions.
        let heap = unsafe { libc::mallinfo2() };
        Self {
            bytes: heap.uordblks + heap.hblkhd,
            descriptors: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
        }
    }
}
