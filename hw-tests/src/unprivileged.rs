//! Tests as an ordinary user whose limit of locked memory is low.

use ferrofabric_conformance::this_program::name_beside_this_test;
use std::process::Command;
use std::{env, ptr};

/// Bytes of RLIMIT_MEMLOCK in the child: the limit of many systems.
pub const LIMIT: u64 = 64 * 1024;

const NOBODY: u32 = 65534;

/// Set in the child.
const CHILD: &str = "FERRO_TEST_UNPRIVILEGED";

/// Runs an ignored test of this program as such a user, in a process of its own, for a process can
/// not take its rights back. Prints the output of the test.
///
/// # Panics
///
/// When it fails.
pub fn run(test: &str) {
    // SAFETY: the call reads the user of this process.
    if unsafe { libc::geteuid() } != 0 {
        println!("SKIP: only root can become another user");
        return;
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            &name_beside_this_test(test),
            "--ignored",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let why = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}{why}"
    );
}

/// In the test that [`run`] starts: becomes that user. False when it was started by itself.
pub fn become_one() -> bool {
    become_one_with(LIMIT)
}

/// As [`become_one`], with so many bytes of RLIMIT_MEMLOCK.
pub fn become_one_with(bytes: u64) -> bool {
    if env::var_os(CHILD).is_none() {
        println!("a part of another test, which runs it");
        return false;
    }
    let limit = libc::rlimit {
        rlim_cur: bytes,
        rlim_max: bytes,
    };
    // SAFETY: plain system calls; the C library changes the user of all threads.
    unsafe {
        assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit), 0);
        assert_eq!(libc::setgroups(0, ptr::null()), 0);
        assert_eq!(libc::setgid(NOBODY), 0);
        assert_eq!(libc::setuid(NOBODY), 0);
    }
    true
}
