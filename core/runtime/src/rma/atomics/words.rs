//! The words that atomic operations change: with the instructions of the processor, or, where an
//! element is a pair of words, under a lock.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use ferrofabric_system::locks::Mutex;

/// A word that is changed in one step.
pub trait AtomicWord: 'static {
    /// Its value.
    type Word: Copy;
    /// Its length.
    const BYTES: usize;

    /// The word at an address.
    ///
    /// # Safety
    ///
    /// The address is a multiple of the word's alignment, and the word is there. Nothing uses it at
    /// the same time but by atomic instructions.
    unsafe fn at<'a>(address: *mut u8) -> &'a Self;

    /// Its present value.
    fn load(&self) -> Self::Word;

    /// Stores a word if the present one is `before`; else that one is the error. It may fail
    /// although it is.
    fn replace(&self, before: Self::Word, after: Self::Word) -> Result<(), Self::Word>;

    /// The word in the bytes, 0 if there are none.
    fn read(bytes: &[u8]) -> Self::Word;

    /// Puts a word into as many bytes as it has.
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

/// Held while a pair of words is read or changed, anywhere in this process.
static PAIRS: Mutex<()> = Mutex::new(());

/// An element that no instruction changes as a whole. Its two words change in one step for atomic
/// operations of this process. Others may see one of them changed before the other.
#[repr(C)]
pub struct WordPair<W>([W; 2]);

macro_rules! pairs {
    ($($half:ty: $word:ty, $both:ty;)*) => {$(
        impl WordPair<$half> {
            fn value(&self) -> $both {
                let [first, second] = &self.0;
                let mut bytes = [0; size_of::<$both>()];
                let (to_first, to_second) = bytes.split_at_mut(size_of::<$word>());
                to_first.copy_from_slice(&first.load(Ordering::SeqCst).to_ne_bytes());
                to_second.copy_from_slice(&second.load(Ordering::SeqCst).to_ne_bytes());
                <$both>::from_ne_bytes(bytes)
            }
        }

        impl AtomicWord for WordPair<$half> {
            type Word = $both;
            const BYTES: usize = size_of::<$both>();

            #[inline]
            unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                // SAFETY: the caller's contract; a pair is aligned as one of its words is.
                unsafe { &*address.cast() }
            }

            fn load(&self) -> $both {
                let _held = PAIRS.lock();
                self.value()
            }

            fn replace(&self, before: $both, after: $both) -> Result<(), $both> {
                let _held = PAIRS.lock();
                let now = self.value();
                if now != before {
                    return Err(now);
                }
                let bytes = after.to_ne_bytes();
                for (half, bytes) in self.0.iter().zip(bytes.chunks_exact(size_of::<$word>())) {
                    let word = bytes.try_into().map_or(0, <$word>::from_ne_bytes);
                    half.store(word, Ordering::SeqCst);
                }
                Ok(())
            }

            #[inline]
            fn read(bytes: &[u8]) -> $both {
                bytes.try_into().map_or(0, <$both>::from_ne_bytes)
            }

            #[inline]
            fn write(word: $both, bytes: &mut [u8]) {
                bytes.copy_from_slice(&word.to_ne_bytes());
            }
        }
    )*};
}

pairs! {
    AtomicU32: u32, u64;
    AtomicU64: u64, u128;
}
