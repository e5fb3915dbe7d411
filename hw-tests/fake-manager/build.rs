//! How the library is linked.

fn main() {
    // The name under which the loader looks for librdmacm: once this library is loaded, it is the
    // one.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,librdmacm.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
