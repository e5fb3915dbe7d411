//! How the library is linked.

fn main() {
    // libfabric unloads providers at the end of the process, when threads of ours may not be over yet.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
