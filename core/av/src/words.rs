//! Memory of atomic words: a process's own, or part of a file that processes share. It starts as
//! zeros, grows by further pieces and never moves.

use std::fs::File;
use std::io;

#[cfg(not(loom))]
use memmap2::{Advice, MmapOptions, MmapRaw, UncheckedAdvice};

#[cfg(not(loom))]
use ferrofabric_system::prefetch::prefetch;
use ferrofabric_system::sync::{AtomicU32, AtomicU64};

/// The alignment of the pieces of a file, in bytes: no page is larger on the machines that this
/// runs on.
pub(super) const ALIGN: u64 = 64 << 10;

/// A piece of memory.
#[cfg(not(loom))]
pub(super) struct MappedWords {
    map: MmapRaw,
}

#[cfg(not(loom))]
impl MappedWords {
    /// Memory of this process alone. It takes no room before it is written to.
    ///
    /// # Errors
    ///
    /// When the system has none.
    pub(super) fn private(bytes: usize) -> io::Result<Self> {
        let map = MmapOptions::new().len(bytes.max(1)).map_anon()?;
        Ok(Self { map: map.into() })
    }

    /// The part of a file that starts at `offset`, a multiple of [`ALIGN`].
    ///
    /// # Errors
    ///
    /// When the file ends before, or can not be mapped.
    pub(super) fn shared(file: &File, offset: u64, bytes: usize) -> io::Result<Self> {
        // Beyond the end of a file there is no memory, but a signal.
        if file.metadata()?.len() < offset.saturating_add(bytes as u64) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let map = MmapOptions::new().offset(offset).len(bytes).map_raw(file)?;
        Ok(Self { map })
    }

    /// The `n` words of 64 bits from byte `from` on; fewer where the memory ends.
    #[inline]
    pub(super) fn u64s(&self, from: usize, n: usize) -> &[AtomicU64] {
        let n = n.min(self.map.len().saturating_sub(from) / 8);
        // SAFETY: the mapping is page-aligned, that long, and lives as long as `self`; its users
        // are these two functions and processes that access it atomically, too.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(from & !7).cast(), n) }
    }

    /// The `n` words of 32 bits from byte `from` on; fewer where the memory ends.
    #[inline]
    pub(super) fn u32s(&self, from: usize, n: usize) -> &[AtomicU32] {
        let n = n.min(self.map.len().saturating_sub(from) / 4);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(from & !3).cast(), n) }
    }

    /// Has the line of a byte brought closer that will be looked at soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: usize) {
        prefetch(self.map.as_ptr().wrapping_add(at));
    }

    /// Has the memory, which nobody has used yet, in pages as large as the system has for it:
    /// look-ups in no order miss the translation of nearly every small page, too. For memory that
    /// will be used all over.
    pub(super) fn prefer_large_pages(&self) {
        // Without them it works as well, but for the time it takes.
        let _ = self.map.advise(Advice::HugePage);
    }

    /// Gives memory of this process alone back to the system. A reader that is still there finds
    /// zeros.
    pub(super) fn discard(&self) {
        // SAFETY: all access is atomic, and zeros are as good as any words. Memory that the system
        // does not take back stays.
        let _ = unsafe { self.map.unchecked_advise(UncheckedAdvice::DontNeed) };
    }
}

/// A piece of memory for `loom`, with words of its own. Nothing is used as words of both lengths.
#[cfg(loom)]
pub(super) struct MappedWords {
    u64s: Box<[AtomicU64]>,
    u32s: Box<[AtomicU32]>,
}

#[cfg(loom)]
impl MappedWords {
    pub(super) fn private(bytes: usize) -> io::Result<Self> {
        Ok(Self {
            u64s: (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect(),
            u32s: (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0)).collect(),
        })
    }

    pub(super) fn shared(_: &File, _: u64, _: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(super) fn u64s(&self, from: usize, n: usize) -> &[AtomicU64] {
        let from = (from / 8).min(self.u64s.len());
        &self.u64s[from..][..n.min(self.u64s.len() - from)]
    }

    pub(super) fn u32s(&self, from: usize, n: usize) -> &[AtomicU32] {
        let from = (from / 4).min(self.u32s.len());
        &self.u32s[from..][..n.min(self.u32s.len() - from)]
    }

    pub(super) fn prefetch(&self, _: usize) {}

    pub(super) fn prefer_large_pages(&self) {}

    /// A reader that is still there finds zeros, some sooner than others.
    pub(super) fn discard(&self) {
        use ferrofabric_system::sync::Ordering::Relaxed;
        self.u64s.iter().for_each(|word| word.store(0, Relaxed));
        self.u32s.iter().for_each(|word| word.store(0, Relaxed));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn words_start_as_zeros_and_end_where_the_memory_does() {
        let words = MappedWords::private(4096).unwrap();
        assert_eq!(words.u64s(0, 1000).len(), 512);
        assert_eq!(words.u32s(4000, 1000).len(), 24);
        assert_eq!(words.u64s(5000, 1).len(), 0);
        assert!(words.u64s(0, 512).iter().all(|w| w.load(Relaxed) == 0));
        words.u64s(8, 1)[0].store(u64::MAX, Relaxed);
        assert_eq!(words.u32s(12, 1)[0].load(Relaxed), u32::MAX);
        words.discard();
        assert_eq!(words.u64s(8, 1)[0].load(Relaxed), 0);
    }
}
