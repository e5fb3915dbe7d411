//! Lists of buffers: as one run of bytes, and as scatter/gather entries.

use ferrofabric_contracts::buffers::{SendBuffers, copy_of, gather};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, total_len};
use ferrofabric_verbs_sys::ibv_sge;

/// The buffers of a send. Safe code can make an [`IoBuf`] of any number; the maker of this value
/// vouches for the memory.
#[derive(Clone, Copy)]
pub(crate) struct Readable<'a>(&'a [IoBuf]);

impl<'a> Readable<'a> {
    /// Buffers that may be read.
    ///
    /// # Safety
    ///
    /// Each buffer is mapped, and nobody writes to it, until the operation that sends it completes.
    /// That holds for the returned value and for each copy of it.
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

    /// Copies `len` bytes from `offset` of the concatenated buffers to `to`, or as many as there
    /// are.
    ///
    /// # Safety
    ///
    /// `to` may be written for that many bytes, and overlaps none of the buffers.
    #[inline]
    pub(crate) unsafe fn gather(self, offset: usize, len: usize, to: *mut u8) {
        // SAFETY: the maker of `self` vouches for the buffers; the rest is the caller's promise.
        unsafe { gather(self.0, offset, len, to) };
    }

    /// A copy of all bytes.
    pub(crate) fn to_bytes(self) -> Box<[u8]> {
        // SAFETY: the maker of `self` vouches for the buffers.
        unsafe { copy_of(self.0) }
    }

    /// The buffers of a send with these flags, to keep.
    pub(crate) fn keep(self, flags: Flags) -> SendBuffers {
        // SAFETY: the maker of `self` vouches for the buffers until the send completes.
        unsafe { SendBuffers::new(flags, self.0) }
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
