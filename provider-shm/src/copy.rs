//! Copies into and out of memory that another process may be writing to: raw pointers, never
//! references.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Copies `n` bytes, up to 64, without a call.
///
/// # Safety
///
/// `src` is valid for reads and `dst` for writes of `n` bytes; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_short(src: *const u8, dst: *mut u8, n: usize) {
    // Two loads that overlap cover each range of lengths: no loop, and no access outside the `n`
    // bytes.
    macro_rules! ends {
        ($t:ty) => {{
            const N: usize = size_of::<$t>();
            // SAFETY: `n` is between `N` and `2 * N`, so both pieces lie within the `n` bytes.
            unsafe {
                let first = src.cast::<$t>().read_unaligned();
                let last = src.add(n - N).cast::<$t>().read_unaligned();
                dst.cast::<$t>().write_unaligned(first);
                dst.add(n - N).cast::<$t>().write_unaligned(last);
            }
        }};
    }
    if n == 8 {
        // SAFETY: the caller's contract.
        unsafe {
            dst.cast::<u64>()
                .write_unaligned(src.cast::<u64>().read_unaligned())
        };
    } else if n > 32 {
        ends!([u128; 2]);
    } else if n > 16 {
        ends!(u128);
    } else if n > 8 {
        ends!(u64);
    } else if n >= 4 {
        ends!(u32);
    } else if n >= 2 {
        ends!(u16);
    } else if n == 1 {
        // SAFETY: the caller's contract.
        unsafe { *dst = *src };
    }
}

/// Copies `n` bytes of any number.
///
/// # Safety
///
/// As for [`copy_short`].
#[inline(always)]
pub(crate) unsafe fn copy_bulk(src: *const u8, dst: *mut u8, n: usize) {
    // SAFETY: the caller's contract. A racing write of the other process gives unspecified bytes,
    // in its own message.
    unsafe { std::ptr::copy_nonoverlapping(src, dst, n) }
}

/// Bytes up to which the C library copies by loads and stores; above, one instruction copies all.
const BY_STORES: usize = 2048;

/// As [`copy_bulk`], by loads and stores. These finish sooner: the instruction that copies all
/// takes some 50 ns to start. That instruction is faster for copies in a row, since it does not
/// wait for the lines that it overwrites.
///
/// # Safety
///
/// As for [`copy_short`].
pub(crate) unsafe fn copy_soon(src: *const u8, dst: *mut u8, n: usize) {
    for at in (0..n).step_by(BY_STORES) {
        let piece = BY_STORES.min(n - at);
        // SAFETY: the caller's contract.
        unsafe { copy_bulk(src.add(at), dst.add(at), piece) };
    }
}

/// Copies `n` bytes into a region of another process. Those of an aligned word of 8, 4 or 2 bytes
/// become visible at once.
///
/// # Safety
///
/// As for [`copy_short`].
#[inline]
pub(crate) unsafe fn store_shared(src: *const u8, dst: *mut u8, n: usize) {
    macro_rules! word {
        ($atomic:ty, $word:ty) => {
            // SAFETY: the caller's contract; the word is aligned. Other processes alone use it.
            unsafe {
                let word = src.cast::<$word>().read_unaligned();
                <$atomic>::from_ptr(dst.cast()).store(word, Ordering::Release);
            }
        };
    }
    match n {
        8 if dst.addr() % 8 == 0 => word!(AtomicU64, u64),
        4 if dst.addr() % 4 == 0 => word!(AtomicU32, u32),
        2 if dst.addr() % 2 == 0 => word!(AtomicU16, u16),
        // SAFETY: the caller's contract.
        0..=64 => unsafe { copy_short(src, dst, n) },
        // SAFETY: the caller's contract.
        _ => unsafe { copy_bulk(src, dst, n) },
    }
}

/// Copies `n` bytes out of a region of another process. Those of an aligned word of 8, 4 or 2 bytes
/// are read at once.
///
/// # Safety
///
/// As for [`copy_short`].
#[inline]
pub(crate) unsafe fn load_shared(src: *mut u8, dst: *mut u8, n: usize) {
    macro_rules! word {
        ($atomic:ty, $word:ty) => {
            // SAFETY: the caller's contract; the word is aligned. Other processes alone use it.
            unsafe {
                let word = <$atomic>::from_ptr(src.cast()).load(Ordering::Acquire);
                dst.cast::<$word>().write_unaligned(word);
            }
        };
    }
    match n {
        8 if src.addr() % 8 == 0 => word!(AtomicU64, u64),
        4 if src.addr() % 4 == 0 => word!(AtomicU32, u32),
        2 if src.addr() % 2 == 0 => word!(AtomicU16, u16),
        // SAFETY: the caller's contract.
        0..=64 => unsafe { copy_short(src, dst, n) },
        // SAFETY: the caller's contract.
        _ => unsafe { copy_bulk(src, dst, n) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_and_from_regions_touch_exactly_their_bytes() {
        let src: Vec<u8> = (1..=200).collect();
        for (at, n) in (0..9).flat_map(|at| (0..=130).map(move |n| (at, n))) {
            let mut region = [0u64; 32];
            let place = region.as_mut_ptr().cast::<u8>().wrapping_add(8 + at);
            let mut back = [0u8; 200];
            // SAFETY: all three are longer, and this thread alone uses them.
            unsafe {
                store_shared(src.as_ptr(), place, n);
                load_shared(place, back.as_mut_ptr().add(1), n);
            }
            let bytes: Vec<u8> = region.iter().flat_map(|word| word.to_ne_bytes()).collect();
            assert_eq!(bytes[8 + at..8 + at + n], src[..n], "{n} bytes at {at}");
            assert_eq!(back[1..=n], src[..n], "{n} bytes at {at}");
            let mut rest = bytes[..8 + at].iter().chain(&bytes[8 + at + n..]);
            assert!(rest.all(|byte| *byte == 0), "{n} bytes at {at}");
            assert!(back[n + 1..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn short_copies_touch_exactly_their_bytes() {
        let src: Vec<u8> = (1..=64).collect();
        for n in 0..=64 {
            let mut dst = [0u8; 80];
            // SAFETY: both are longer than `n`.
            unsafe { copy_short(src.as_ptr(), dst.as_mut_ptr().add(8), n) };
            assert_eq!(&dst[8..8 + n], &src[..n], "{n} bytes");
            assert!(
                dst[..8].iter().chain(&dst[8 + n..]).all(|b| *b == 0),
                "{n} bytes"
            );
        }
    }

    #[test]
    fn copies_in_pieces_touch_exactly_their_bytes() {
        let src: Vec<u8> = (0..5000u32).map(|at| (at % 251) as u8 + 1).collect();
        for n in [0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 5000] {
            let mut dst = vec![0u8; n + 16];
            // SAFETY: both are as long.
            unsafe { copy_soon(src.as_ptr(), dst.as_mut_ptr().add(8), n) };
            assert_eq!(dst[8..8 + n], src[..n], "{n} bytes");
            assert!(dst[..8].iter().chain(&dst[8 + n..]).all(|b| *b == 0));
        }
    }
}
