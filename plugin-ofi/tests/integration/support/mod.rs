//! Shared code of the tests with stock libfabric's programs: the plugin where libfabric finds it,
//! programs with a deadline, MPI, and the counters of the endpoints.
//!
//! A test that needs something that the machine lacks prints a line that begins with SKIP; with
//! FERRO_REQUIRE_DEVICE=1 it fails.

#![allow(
    dead_code,
    unreachable_pub,
    unused_macros,
    clippy::unwrap_used,
    reason = "each test program uses a part of it for itself, and a test may panic"
)]

#[macro_use]
mod jobs;
pub mod counters;
pub mod edge;
pub mod folder;
pub mod mpi;
pub mod nodes;
pub mod pingpong;
pub mod plugin;
pub mod run;
pub mod tool;

/// Says why a test can not run here.
///
/// # Panics
///
/// Where nothing may be missing.
pub fn skip(reason: &str) {
    assert_ne!(
        std::env::var("FERRO_REQUIRE_DEVICE").as_deref(),
        Ok("1"),
        "nothing may be missing here: {reason}"
    );
    println!("SKIP: {reason}");
}

/// Whether this system has a verbs device.
pub fn has_device() -> bool {
    std::fs::read_dir("/sys/class/infiniband").is_ok_and(|mut devices| devices.next().is_some())
}

/// Whether a program is found where the shell would look for it.
pub fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}
