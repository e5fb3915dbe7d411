//! How the library is linked.

use std::env::var;

/// Functions of the C library that are cancellation points (pthreads(7)). The library calls its own
/// functions by these names (`src/cancel/system_calls.rs`).
const CANCELLATION_POINTS: [&str; 27] = [
    "accept4",
    "clock_nanosleep",
    "close",
    "connect",
    "epoll_wait",
    "fallocate",
    "fcntl",
    "fsync",
    "getrandom",
    "nanosleep",
    "open64",
    "openat64",
    "pause",
    "poll",
    "pread64",
    "pwrite64",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "send",
    "sendmsg",
    "sendto",
    "waitid",
    "write",
    "writev",
];

fn main() {
    // libfabric unloads providers at the end of the process, when threads of ours may not be over
    // yet.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let target = |what: &str| var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    let has_system_calls = target("OS") == "linux"
        && target("POINTER_WIDTH") == "64"
        && ["x86_64", "aarch64"].contains(&target("ARCH").as_str());
    println!("cargo:rustc-check-cfg=cfg(system_calls)");
    if has_system_calls {
        println!("cargo:rustc-cfg=system_calls");
        for name in CANCELLATION_POINTS {
            println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym={name}=ferro_{name}");
        }
    }
    // For the test that knows all of them.
    println!(
        "cargo:rustc-env=REDIRECTED_CALLS={}",
        CANCELLATION_POINTS.join(" ")
    );
    println!("cargo:rerun-if-changed=build.rs");
}
