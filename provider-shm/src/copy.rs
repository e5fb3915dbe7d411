//! Copies into and out of memory that another process may be writing to: raw pointers, never
//! references.

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

#[cfg(test)]
mod tests {
    use super::*;

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
