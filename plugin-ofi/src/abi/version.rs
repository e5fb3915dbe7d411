//! Versions of the interface.

/// A version as `fi_version()` gives it; greater is newer.
#[allow(non_snake_case, reason = "the name of C's macro")]
pub const fn FI_VERSION(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}
