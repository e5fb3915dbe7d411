//! A user without privilege whose limit of locked memory is too low.

#![allow(missing_docs, clippy::unwrap_used)]

use std::process::Command;
use std::{env, ptr};

use ferrofabric_core::error::Errno;
use ferrofabric_hw_tests::Rig;
use ferrofabric_verbs::mr::{Access, Mr};
use serial_test::file_serial;

/// Bytes of RLIMIT_MEMLOCK in the child: what many systems set.
const LIMIT: u64 = 64 * 1024;
const WANTED: usize = 1 << 20;
const NOBODY: u32 = 65534;
/// Set in the child.
const CHILD: &str = "FERRO_TEST_MEMORY_LOCK_CHILD";

#[test]
#[file_serial(verbs)]
fn a_limit_that_is_too_low_is_named_with_the_mend() {
    if Rig::open().is_none() {
        return;
    }
    // SAFETY: asks for this process's user.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: only root can become another user");
        return;
    }
    // A child of its own: what it gives up cannot be taken back.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "the_child_registers", "--ignored", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "run by a_limit_that_is_too_low_is_named_with_the_mend"]
fn the_child_registers() {
    if env::var_os(CHILD).is_none() {
        println!("a part of another test, which runs it");
        return;
    }
    give_up_privilege();
    // All that follows is as an ordinary user, the opening of the device included.
    let rig = Rig::open().expect("the parent saw a device");
    // SAFETY: a fresh anonymous mapping, which stays until the process ends.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            WANTED,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(memory, libc::MAP_FAILED);

    // SAFETY: mapped until the process ends.
    let error = unsafe { Mr::register(&rig.pd, memory.cast(), WANTED, Access::LOCAL_WRITE) }
        .expect_err("over the limit");
    println!("{error}");
    assert!(
        [Errno::ENOMEM, Errno::EAGAIN].contains(&error.errno()),
        "{error}"
    );
    for part in ["RLIMIT_MEMLOCK", "65536 bytes", "1048576", "ulimit -l"] {
        assert!(
            error.to_string().contains(part),
            "{part} is not in: {error}"
        );
    }
    // Within the limit it works: the limit is to blame, and nothing else.
    // SAFETY: as above.
    unsafe { Mr::register(&rig.pd, memory.cast(), 16 * 1024, Access::LOCAL_WRITE) }.unwrap();
}

fn give_up_privilege() {
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    // SAFETY: plain system calls; the C library changes the user of all threads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::setgroups(0, ptr::null()), 0);
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
    }
}
