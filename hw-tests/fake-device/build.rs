//! How the library is linked, and which compiler counts were taken with.

use std::process::Command;

fn main() {
    // The name under which the loader looks for libibverbs: once this library is loaded, it is the
    // one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libibverbs.so.1");
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(compiler).arg("--version").output();
    let version = version.map_or_else(
        |_| "an unknown compiler".to_owned(),
        |said| String::from_utf8_lossy(&said.stdout).trim().to_owned(),
    );
    println!("cargo:rustc-env=FERRO_COMPILER={version}");
    println!("cargo:rerun-if-changed=build.rs");
}
