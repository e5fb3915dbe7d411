//! A user without privilege whose limit of locked memory is too low.

use std::ptr;

use ferrofabric_contracts::error::Errno;
use ferrofabric_hw_tests::{Rig, unprivileged};
use ferrofabric_verbs::raw::mr::{Access, Mr};
use serial_test::file_serial;

const WANTED: usize = 1 << 20;

#[test]
#[file_serial(verbs)]
fn a_limit_that_is_too_low_is_named_with_its_remedy() {
    if Rig::open().is_none() {
        return;
    }
    unprivileged::run("the_child_registers");
}

#[test]
#[ignore = "run by a_limit_that_is_too_low_is_named_with_its_remedy"]
fn the_child_registers() {
    if !unprivileged::become_one() {
        return;
    }
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
