//! The layout of fi_peer(3)'s receive entries in the libfabric that is there.

use std::ffi::c_void;

use super::FI_VERSION;

/// Since then an entry does not begin with the two pointers of a list.
const WITHOUT_LINKS: u32 = FI_VERSION(2, 3);

/// Bytes ahead of the fields that [`fi_peer_rx_entry`] has, in an entry of that version.
///
/// [`fi_peer_rx_entry`]: super::fi_peer_rx_entry
pub(crate) const fn link_bytes(version: u32) -> usize {
    match version < WITHOUT_LINKS {
        true => 2 * size_of::<*mut c_void>(),
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Covers: PEER-8
    #[test]
    fn entries_begin_with_two_links_before_libfabric_2_3() {
        let of = |minor| link_bytes(FI_VERSION(2, minor));
        assert_eq!([of(1), of(2)], [16, 16]);
        assert_eq!([of(3), of(6)], [0, 0]);
    }
}
