//! The words that atomic operations change, with the instructions of the processor.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// A word that is changed by the atomic instructions of the processor.
pub(super) trait AtomicWord: 'static {
    type Word: Copy;
    const BYTES: usize;

    /// The word at an address.
    ///
    /// # Safety
    ///
    /// The address is a multiple of the word's size, and the word is there. Nothing uses it at the
    /// same time but by atomic instructions.
    unsafe fn at<'a>(address: *mut u8) -> &'a Self;

    fn load(&self) -> Self::Word;

    /// Stores a word if the present one is `before`; else that one is the error. It may fail
    /// although it is.
    fn replace(&self, before: Self::Word, after: Self::Word) -> Result<(), Self::Word>;

    /// The word in the bytes, 0 if there are none.
    fn read(bytes: &[u8]) -> Self::Word;

    fn write(word: Self::Word, bytes: &mut [u8]);
}

macro_rules! atomic_words {
    ($($atomic:ty: $word:ty;)*) => {$(
        const _: () = assert!(size_of::<$word>() == align_of::<$atomic>());

        impl AtomicWord for $atomic {
            type Word = $word;
            const BYTES: usize = size_of::<$word>();

            #[inline]
            unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                // SAFETY: the caller's contract, and the alignment is the size, as checked above.
                unsafe { Self::from_ptr(address.cast()) }
            }

            #[inline]
            fn load(&self) -> $word {
                self.load(Ordering::SeqCst)
            }

            #[inline]
            fn replace(&self, before: $word, after: $word) -> Result<(), $word> {
                self.compare_exchange_weak(before, after, Ordering::SeqCst, Ordering::SeqCst)
                    .map(drop)
            }

            #[inline]
            fn read(bytes: &[u8]) -> $word {
                bytes.try_into().map_or(0, <$word>::from_ne_bytes)
            }

            #[inline]
            fn write(word: $word, bytes: &mut [u8]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
        }
    )*};
}

atomic_words! {
    AtomicU8: u8;
    AtomicU16: u16;
    AtomicU32: u32;
    AtomicU64: u64;
}
