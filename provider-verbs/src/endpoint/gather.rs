//! Lists of buffers: as one run of bytes, and as the device takes them.

use ferrofabric_core::types::{IoBuf, total_len};
use ferrofabric_verbs_sys::ibv_sge;

/// A piece of registered memory.
#[inline]
pub(crate) fn entry(addr: u64, len: usize, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr,
        length: len as u32,
        lkey,
    }
}

/// Copies a list of buffers to where there is room for all.
#[inline]
pub(crate) fn gather(buffers: &[IoBuf], to: *mut u8) {
    let mut at = to;
    for buf in buffers {
        // SAFETY: the sender vouches for its buffers; the caller of this has room for their sum.
        unsafe { at.copy_from_nonoverlapping(buf.as_ptr(), buf.len) };
        at = at.wrapping_add(buf.len);
    }
}

/// A copy of what a list of buffers holds.
pub(crate) fn copy_of(buffers: &[IoBuf]) -> Box<[u8]> {
    let mut bytes = vec![0; total_len(buffers)];
    gather(buffers, bytes.as_mut_ptr());
    bytes.into()
}
