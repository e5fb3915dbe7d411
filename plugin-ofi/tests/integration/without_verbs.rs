//! Where there is no way to use a verbs device, shared memory works and libfabric's log says why
//! there is no more.

use crate::{client, support};
use ferrofabric_conformance::this_program::name_beside_this_test;
use std::process::Command;

use client::{Libfabric, round};
use ferro_fi::abi::fi_threading;
use support::plugin::Plugin;
use support::{has_device, skip};

/// Set in the process that a test starts: the defect of the system there.
const CHILD: &str = "FERRO_TEST_WITHOUT_VERBS";

/// Bytes of RLIMIT_MEMLOCK, as many systems set it.
const LOW: u64 = 64 * 1024;
const NOBODY: u32 = 65534;

#[test]
fn without_a_device_or_a_library_the_log_says_so() {
    if has_device() && std::env::var_os(CHILD).is_none() {
        println!("this machine has a device: the other tests tell");
        return;
    }
    alone(
        "without_a_device_or_a_library_the_log_says_so",
        "nothing",
        &["libibverbs", "RDMA device"],
    );
}

#[test]
fn devices_that_are_switched_off_are_named() {
    alone(
        "devices_that_are_switched_off_are_named",
        "off",
        &["switched off by setting verbs"],
    );
}

#[test]
fn a_limit_of_locked_memory_that_is_too_low_is_named() {
    // SAFETY: returns this process's user.
    let root = unsafe { libc::geteuid() } == 0 || std::env::var_os(CHILD).is_some();
    match (has_device(), root) {
        (true, true) => alone(
            "a_limit_of_locked_memory_that_is_too_low_is_named",
            "low",
            &["RLIMIT_MEMLOCK"],
        ),
        (false, _) => skip("this machine has no RDMA device"),
        (_, false) => skip("only root can become another user"),
    }
}

/// Exchanges messages in a process of its own, whose log has one of these words at least.
fn alone(test: &str, matter: &str, words: &[&str]) {
    if let Some(matter) = std::env::var_os(CHILD) {
        if matter == "low" {
            become_nobody();
        }
        return exchange();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", &name_beside_this_test(test), "--nocapture"])
        .env(CHILD, matter)
        .env("FI_LOG_LEVEL", "info");
    if matter == "off" {
        command.env("FERRO_VERBS", "off");
    }
    let plugin = Plugin::copied();
    plugin.choose(&mut command);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{log}");
    if let Some(line) = text.lines().find(|line| line.starts_with("SKIP")) {
        println!("{line}");
        return;
    }
    let said = log
        .lines()
        .find(|line| line.contains(":ferro:") && words.iter().any(|word| line.contains(word)));
    println!(
        "{}",
        said.unwrap_or_else(|| panic!("no word of {words:?} in:\n{log}"))
    );
}

fn exchange() {
    let Some(libfabric) = Libfabric::load() else {
        return skip("there is no libfabric 2 here (libfabric1, or ci/mpi)");
    };
    // The best domain that there is.
    let info = libfabric.discover("", fi_threading::FI_THREAD_SAFE);
    round(&info, 1);
}

fn become_nobody() {
    let limit = libc::rlimit {
        rlim_cur: LOW,
        rlim_max: LOW,
    };
    // SAFETY: plain system calls; the C library changes the user of all threads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
    }
}
