//! Memory of the tables: arrays that begin at a cache line, and at a huge page once they are large.
//!
//! A queue of 100,000 entries takes some 10 MB. With pages of 4 KiB most accesses to that memory
//! miss the first TLB, and in a virtual machine such a miss costs more than the data's own cache
//! miss. Where the kernel gives huge pages on request (`transparent_hugepage/enabled`: `madvise` or
//! `always`), a handful of TLB entries cover all of it.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nix::sys::mman::{MmapAdvise, madvise};

use ferrofabric_system::prefetch::prefetch;

/// Alignment of small arrays.
const LINE_BYTES: usize = 64;
/// Size of a huge page on most 64-bit processors.
const HUGE_BYTES: usize = 2 << 20;
/// Arrays of this size are made of huge pages: no more than half of the last one is unused.
const HUGE_FROM_BYTES: usize = HUGE_BYTES / 2;

/// An array that grows at its end and keeps its memory.
pub(super) struct Arena<T: Copy> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: it owns its elements, as a vector does.
unsafe impl<T: Copy + Send> Send for Arena<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for Arena<T> {}

impl<T: Copy> Arena<T> {
    /// Without elements, and without memory.
    pub(super) const fn new() -> Arena<T> {
        const { assert!(size_of::<T>() != 0) };
        Arena {
            start: NonNull::dangling(),
            len: 0,
            owns: PhantomData,
        }
    }

    /// `len` elements, all the same.
    pub(super) fn filled(len: usize, with: T) -> Arena<T> {
        let mut arena = Arena::new();
        arena.grow(len, |_| with);
        arena
    }

    /// Adds elements until there are `len`; `make` gets the place of each.
    pub(super) fn grow(&mut self, len: usize, mut make: impl FnMut(usize) -> T) {
        if len <= self.len {
            return;
        }
        let layout = layout_of::<T>(len);
        // SAFETY: the layout has a size: elements have one, and `len` is not 0.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }.cast::<T>()) else {
            handle_alloc_error(layout)
        };
        if layout.align() == HUGE_BYTES {
            // SAFETY: the memory is ours, all of it, and where it comes from is all that changes.
            // Without such pages it works the same.
            let _ = unsafe { madvise(start.cast(), layout.size(), MmapAdvise::MADV_HUGEPAGE) };
        }
        for (place, element) in self.iter().copied().enumerate() {
            // SAFETY: `place` is below `self.len`, so below `len`.
            unsafe { start.add(place).write(element) };
        }
        for place in self.len..len {
            // SAFETY: `place` is below `len`.
            unsafe { start.add(place).write(make(place)) };
        }
        self.release();
        (self.start, self.len) = (start, len);
    }

    /// Has an element brought closer that will be looked at soon.
    #[inline(always)]
    pub(super) fn prefetch(&self, place: usize) {
        prefetch(self.start.as_ptr().wrapping_add(place));
    }

    fn release(&mut self) {
        if self.len != 0 {
            // SAFETY: `grow` allocated it with the layout of its length.
            unsafe { dealloc(self.start.as_ptr().cast(), layout_of::<T>(self.len)) };
        }
    }
}

fn layout_of<T>(len: usize) -> Layout {
    let bytes = len.checked_mul(size_of::<T>());
    let layout = bytes.and_then(|bytes| {
        let align = match bytes >= HUGE_FROM_BYTES {
            true => HUGE_BYTES,
            false => LINE_BYTES.max(align_of::<T>()),
        };
        let layout = Layout::from_size_align(bytes, align).ok()?;
        Some(layout.pad_to_align())
    });
    layout.unwrap_or_else(|| panic!("{len} entries are more than memory has addresses for"))
}

impl<T: Copy> Drop for Arena<T> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<T: Copy> Default for Arena<T> {
    fn default() -> Self {
        Arena::new()
    }
}

impl<T: Copy> Deref for Arena<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `grow` wrote all of them; without any the pointer is dangling and aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for Arena<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` keeps out others.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_as_it_grows_into_huge_pages() {
        let mut arena: Arena<[u64; 8]> = Arena::new();
        assert!(arena.is_empty());
        let mut len = 3;
        while len * 64 < 3 * HUGE_BYTES {
            arena.grow(len, |place| [place as u64; 8]);
            arena[len - 1][1] = 0;
            assert_eq!(arena.len(), len);
            let align = if len * 64 >= HUGE_FROM_BYTES {
                HUGE_BYTES
            } else {
                LINE_BYTES
            };
            assert_eq!(arena.as_ptr().addr() % align, 0, "{len} elements");
            len = 2 * len + 1;
        }
        arena.grow(1, |_| [99; 8]);
        let mut zeroes = 0;
        for (place, element) in arena.iter().enumerate() {
            assert_eq!(element[0], place as u64);
            zeroes += usize::from(element[1] == 0);
        }
        // The first, and the last of each growth.
        let growths = (2..)
            .take_while(|n| (1usize << n) - 1 <= arena.len())
            .count();
        assert_eq!(zeroes, 1 + growths);
    }
}
