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

/// Copies `len` bytes from `offset` on of a list of buffers, which holds so many, to where there is room for them.
pub(crate) fn gather_part(buffers: &[IoBuf], mut offset: usize, mut len: usize, to: *mut u8) {
    let mut at = to;
    for buf in buffers {
        let piece = buf.part(offset, len);
        gather(&[piece], at);
        at = at.wrapping_add(piece.len);
        offset -= offset.min(buf.len);
        len -= piece.len;
    }
}

/// A copy of what a list of buffers holds.
pub(crate) fn copy_of(buffers: &[IoBuf]) -> Box<[u8]> {
    let mut bytes = vec![0; total_len(buffers)];
    gather(buffers, bytes.as_mut_ptr());
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the pieces of a list and of the message: what is gathered is that part of the whole.
        #[test]
        fn parts_are_parts_of_the_whole(
            list in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6),
            (offset, len) in (0..120usize, 0..120usize),
        ) {
            let whole = list.concat();
            let offset = offset.min(whole.len());
            let len = len.min(whole.len() - offset);
            let buffers: Vec<_> = list.iter().map(|b| IoBuf::new(b.as_ptr(), b.len())).collect();
            let mut got = vec![0; len];
            gather_part(&buffers, offset, len, got.as_mut_ptr());
            prop_assert_eq!(&got[..], &whole[offset..offset + len]);
        }
    }
}
