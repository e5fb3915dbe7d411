//! Every object is opened, used and closed a thousand times under stock libfabric, and nothing is
//! left: no memory, no descriptor, no thread. (With queue pairs a hundred times, in valgrind two
//! hundred; the long tests make both a thousand.)

use crate::{client, support};
use ferrofabric_conformance::this_program::name_beside_this_test;
use std::process::Command;
use std::time::{Duration, Instant};

use client::{Libfabric, round};
use ferro_fi::abi::fi_threading;
use ferrofabric_shm::ShmProvider;
use support::plugin::Plugin;
use support::{has_device, has_program, skip};

/// Rounds until every pool and table has its size.
const FIRST: usize = 50;

/// The harness and the test.
const TEST_THREADS: usize = 2;

/// Set in the process that a test is for: the domain, and how many rounds.
const CHILD: &str = "FERRO_TEST_LIFECYCLE";
const ROUNDS: &str = "FERRO_TEST_ROUNDS";

/// Through shared memory, which is everywhere.
#[test]
fn rounds_of_shared_memory_leave_nothing() {
    // An emulated processor takes its time, and there is nothing of the device in it.
    let emulated = std::env::var_os("FERRO_MACHINE").is_some();
    let times = if emulated && !is_soak() { 200 } else { 1000 };
    alone(
        "rounds_of_shared_memory_leave_nothing",
        ShmProvider::DOMAIN,
        times,
    );
}

/// With queue pairs, shared memory being off.
#[test]
fn rounds_of_queue_pairs_leave_nothing() {
    let name = "rounds_of_queue_pairs_leave_nothing";
    match has_device() {
        true => alone(name, "", if is_soak() { 1000 } else { 100 }),
        false => skip("this machine has no RDMA device"),
    }
}

fn is_soak() -> bool {
    std::env::var_os("FERRO_SOAK").is_some()
}

/// Memory that libraries keep since they were loaded counts once; a leak of a round counts once for
/// each round. (In valgrind a round takes a fifth of a second.)
#[test]
fn valgrind_finds_neither_a_wrong_access_nor_a_leak() {
    const ONCE: usize = 50;
    if has_device() {
        println!("for machines without a device: an emulated one would take an hour");
        return;
    }
    if !has_program("valgrind") {
        println!("SKIP: valgrind is not installed here");
        return;
    }
    let mut command = Command::new("valgrind");
    command
        // One thread runs at a time: without turns, one that polls would keep the one that it waits
        // for from running.
        .args([
            "--fair-sched=yes",
            "--error-exitcode=9",
            "--leak-check=full",
        ])
        .args(["--errors-for-leak-kinds=none", "--show-leak-kinds=definite"])
        .arg(std::env::current_exe().unwrap());
    let times = if is_soak() { 1000 } else { 4 * ONCE };
    let said = run(
        command,
        "rounds_of_shared_memory_leave_nothing",
        ShmProvider::DOMAIN,
        times,
    );
    if said.contains("SKIP") {
        return;
    }
    let Some(lost) = said.split("definitely lost: ").nth(1) else {
        // Its words where nothing at all is left.
        assert!(said.contains("no leaks are possible"), "{said}");
        return;
    };
    // "63 bytes in 3 blocks"
    let blocks = lost.split(' ').nth(3).unwrap().replace(',', "");
    println!("{}", lost.lines().next().unwrap());
    assert!(blocks.parse::<usize>().unwrap() < ONCE, "{said}");
}

/// A process has one libfabric, and its memory is to be counted: each test has one of its own.
fn alone(test: &str, domain: &str, times: usize) {
    if let Some(domain) = std::env::var_os(CHILD) {
        let times = std::env::var(ROUNDS).unwrap().parse().unwrap();
        return rounds(&domain.to_string_lossy(), times);
    }
    let command = Command::new(std::env::current_exe().unwrap());
    run(command, test, domain, times);
}

/// Runs a test in a process of its own, prints what it has found, and returns all that it says.
fn run(mut command: Command, test: &str, domain: &str, times: usize) -> String {
    command
        .args(["--exact", &name_beside_this_test(test), "--nocapture"])
        .env(CHILD, domain)
        .env(ROUNDS, times.to_string())
        // The allocator's cache of each thread counts as allocated, so it is off.
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
    let [said, errors] =
        [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    for line in said.lines() {
        if line.starts_with("SKIP") || line.starts_with("after") {
            println!("{line}");
        }
    }
    assert!(output.status.success(), "{said}{errors}");
    said + &errors
}

fn rounds(domain: &str, times: usize) {
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
    };
    let info = libfabric.discover(domain, fi_threading::FI_THREAD_SAFE);
    let mut before = ProcessResources::now();
    for number in 0..FIRST + times {
        if number == FIRST {
            before = ProcessResources::now();
        }
        round(&info, number as u8);
    }
    let after = ProcessResources::now();
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

/// The resources of the process.
#[derive(Clone, Copy, Debug)]
struct ProcessResources {
    /// Bytes that are allocated.
    bytes: usize,
    descriptors: usize,
    threads: usize,
}

impl ProcessResources {
    fn now() -> Self {
        let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
        // A thread that was joined stays in the list until the kernel is done with it.
        let deadline = Instant::now() + Duration::from_secs(60);
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
