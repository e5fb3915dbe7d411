//! Lists of buffers: as one run of bytes, and as the device takes them.

use ferrofabric_contracts::types::{IoBuf, total_len};
use ferrofabric_verbs_sys::ibv_sge;

/// The buffers of a send. An [`IoBuf`] is a number that anybody can make; whoever makes one of
/// these has promised that the memory is there.
#[derive(Clone, Copy)]
pub(crate) struct Readable<'a>(&'a [IoBuf]);

impl<'a> Readable<'a> {
    /// Buffers that may be read.
    ///
    /// # Safety
    ///
    /// Each of them is mapped, and nobody writes to it, as long as what this gives is in use, or a
    /// copy of it: until the operation that sends them completes.
    #[inline]
    pub(crate) unsafe fn new(buffers: &'a [IoBuf]) -> Self {
        Self(buffers)
    }

    /// The buffers.
    #[inline]
    pub(crate) fn list(self) -> &'a [IoBuf] {
        self.0
    }

    /// Sum of their lengths in bytes.
    #[inline]
    pub(crate) fn total_len(self) -> usize {
        total_len(self.0)
    }

    /// Copies all to `to`.
    ///
    /// # Safety
    ///
    /// `to` may be written, as many bytes as they have together; none of them is there.
    #[inline]
    pub(crate) unsafe fn gather(self, to: *mut u8) {
        let mut at = to;
        for buf in self.0 {
            // SAFETY: who made `self` vouches for the buffers; there is room for their sum.
            unsafe { at.copy_from_nonoverlapping(buf.as_ptr(), buf.len) };
            at = at.wrapping_add(buf.len);
        }
    }

    /// Copies `len` bytes from `offset` on, or as many as there are.
    ///
    /// # Safety
    ///
    /// `to` may be written, `len` bytes; none of the buffers is there.
    pub(crate) unsafe fn gather_part(self, mut offset: usize, mut len: usize, to: *mut u8) {
        let mut at = to;
        for buf in self.0 {
            let piece = buf.part(offset, len);
            // SAFETY: a part of one of the buffers; the pieces have `len` bytes together at most.
            unsafe { Readable(&[piece]).gather(at) };
            at = at.wrapping_add(piece.len);
            offset -= offset.min(buf.len);
            len -= piece.len;
        }
    }

    /// A copy of all.
    pub(crate) fn to_bytes(self) -> Box<[u8]> {
        let mut bytes = vec![0; self.total_len()];
        // SAFETY: fresh memory of that length.
        unsafe { self.gather(bytes.as_mut_ptr()) };
        bytes.into()
    }
}

/// A piece of registered memory.
#[inline]
pub(crate) fn entry(addr: u64, len: usize, lkey: u32) -> ibv_sge {
    ibv_sge {
        addr,
        length: len as u32,
        lkey,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever the pieces of a list and of the message: what is gathered is that part of the
        /// whole.
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
            // SAFETY: the lists stay until the end, and nobody writes to them.
            let readable = unsafe { Readable::new(&buffers) };
            // SAFETY: there are so many bytes.
            unsafe { readable.gather_part(offset, len, got.as_mut_ptr()) };
            prop_assert_eq!(&got[..], &whole[offset..offset + len]);
            prop_assert_eq!(&readable.to_bytes()[..], &whole[..]);
        }
    }
}
