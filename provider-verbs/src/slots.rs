//! Registered memory, divided into slots of one size: receive buffers, and bounce buffers for
//! sends.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::forked::Birth;

use crate::device::{ForkSafety, fork_safety};
use crate::mr::{Access, Mr};
use crate::pd::Pd;

const PAGE_BYTES: usize = 4096;

/// A pool of slots in one registered region.
pub(crate) struct SlotPool {
    // Deregistered before the memory is freed.
    mr: Mr,
    memory: SlotMemory,
    slot_bytes: usize,
    count: u32,
    free: Vec<u32>,
}

impl SlotPool {
    /// Makes `count` slots of `slot_bytes` (rounded up to whole cache lines), all free.
    pub(crate) fn create(
        pd: &Arc<Pd>,
        count: usize,
        slot_bytes: usize,
        access: Access,
    ) -> Result<Self> {
        let slot_bytes = slot_bytes.next_multiple_of(64);
        let safety = fork_safety(&pd.context().verbs());
        let memory = SlotMemory::allocate(count * slot_bytes, safety)?;
        // SAFETY: the memory is freed after the region is deregistered, and only raw pointers refer
        // to it.
        let mr = unsafe { Mr::register(pd, memory.ptr.as_ptr(), memory.layout.size(), access)? };
        Ok(Self {
            mr,
            memory,
            slot_bytes,
            count: count as u32,
            free: (0..count as u32).rev().collect(),
        })
    }

    /// Slots in all.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }

    /// Takes a free slot, the one given back last.
    #[inline]
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives a slot back.
    #[inline]
    pub(crate) fn give(&mut self, slot: u32) {
        debug_assert!(!self.free.contains(&slot), "slot given back twice");
        self.free.push(slot);
    }

    /// The address of a slot. Slots of a pool that is not empty lie within its memory; others have
    /// no address.
    #[inline]
    pub(crate) fn address(&self, slot: u32) -> *mut u8 {
        assert!(self.has(slot), "slot {slot} is not of this pool");
        let offset = slot as usize * self.slot_bytes;
        self.memory.ptr.as_ptr().wrapping_add(offset)
    }

    /// Whether there is a slot of that number.
    #[inline]
    pub(crate) fn has(&self, slot: u32) -> bool {
        slot < self.count
    }

    /// Size of a slot in bytes.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// Key of the region.
    #[inline]
    pub(crate) fn lkey(&self) -> u32 {
        self.mr.lkey()
    }
}

/// Zeroed pages that the pool owns.
struct SlotMemory {
    ptr: NonNull<u8>,
    layout: Layout,
    /// `MADV_DONTFORK` is set.
    is_kept_from_children: bool,
    birth: Birth,
}

// SAFETY: it owns its memory; access goes through raw pointers under the domain's lock.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    /// Allocates at least `len` bytes. If neither the kernel nor libibverbs does so, the pages are
    /// kept from children: else the first write after a fork would give the process another page
    /// than the one that the device has.
    fn allocate(len: usize, safety: ForkSafety) -> Result<Self> {
        let too_large = || {
            Error::new(
                Errno::ENOMEM,
                "allocate",
                format!("{len} bytes of message buffers"),
            )
        };
        let layout = Layout::from_size_align(len.max(1), PAGE_BYTES)
            .map(|layout| layout.pad_to_align())
            .map_err(|_| too_large())?;
        // SAFETY: the size is not 0.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(too_large)?;
        let is_kept_from_children = safety == ForkSafety::Unprotected && {
            // SAFETY: the pool's own pages, which no other object shares: their size is padded.
            let rc =
                unsafe { libc::madvise(ptr.as_ptr().cast(), layout.size(), libc::MADV_DONTFORK) };
            rc == 0
        };
        Ok(Self {
            ptr,
            layout,
            is_kept_from_children,
            birth: Birth::here(),
        })
    }
}

impl Drop for SlotMemory {
    fn drop(&mut self) {
        if !self.birth.is_this_process() {
            // The pages may be missing in a child.
            return;
        }
        if self.is_kept_from_children {
            // SAFETY: the pool's own pages. They go back to the allocator as they came.
            unsafe {
                libc::madvise(
                    self.ptr.as_ptr().cast(),
                    self.layout.size(),
                    libc::MADV_DOFORK,
                )
            };
        }
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}
