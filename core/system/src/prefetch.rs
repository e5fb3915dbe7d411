//! Hints to the processor about memory that will soon be read or written.

/// Has the cache line that a pointer points to brought closer. Nothing is read and nothing faults,
/// whatever the pointer; on processors for which there is no such instruction here it does nothing.
#[inline(always)]
pub fn prefetch<T>(at: *const T) {
    // SAFETY: it is a hint, which changes nothing that a program could see, and never faults.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<{ _MM_HINT_T0 }>(at.cast());
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Has the cache line that a pointer points to brought here to be written: other processors give it
/// up. As [`prefetch`], nothing changes and nothing faults, and on other processors it does
/// nothing.
#[inline(always)]
pub fn prefetch_to_write<T>(at: *mut T) {
    // SAFETY: a hint. Processors that do not know it take it for an instruction that does nothing.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!("prefetchw [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{at}]", at = in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}
