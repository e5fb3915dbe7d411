//! Memory of operations.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::fabric::{Domain, Mr};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::{IoBuf, MrDesc};
use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};

const PAGE_BYTES: usize = 4096;

/// Memory for messages: page-aligned, zeroed, of one size for its life.
pub struct Buffer {
    // The registration ends before the memory does.
    pub(super) mr: Option<Arc<dyn Mr>>,
    pub(super) ptr: NonNull<u8>,
    len: usize,
    /// The memory, if other processes may map it. Else it lies on the heap.
    shared: Option<Box<SharedMemory>>,
}

// SAFETY: a `Buffer` owns its memory as a `Box<[u8]>` does.
unsafe impl Send for Buffer {}
// SAFETY: as above; `&Buffer` gives shared reads only.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Memory of `len` bytes.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a length that no allocation can have.
    pub fn new(len: usize) -> Result<Self> {
        let layout = Self::layout(len)?;
        // SAFETY: the layout's size is not 0.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else {
            handle_alloc_error(layout);
        };
        Ok(Self {
            mr: None,
            ptr,
            len,
            shared: None,
        })
    }

    /// Memory of `len` bytes that the processes of this node can map. As a region, peers on the
    /// node read it and write to it by loads and stores of their own, without a system call and
    /// without this process. For all else it is like that of [`new`](Self::new), but costs more to
    /// allocate: a file descriptor, and all its pages at once.
    ///
    /// Processes of the same user can map all of it, at any time. A child of fork(2) has no copy,
    /// as it has of other memory, but the same bytes: it must not write to them, and it reads zeros
    /// once the parent has dropped the buffer.
    ///
    /// # Errors
    ///
    /// `EINVAL` for a length that no allocation can have. `ENOMEM` or `ENOSPC`: the machine has not
    /// so much memory. `EMFILE` or `ENFILE`: there are too many open files.
    pub fn shared(len: usize) -> Result<Self> {
        let memory = SharedMemory::new(len)?;
        Ok(Self {
            mr: None,
            ptr: memory.as_ptr(),
            len,
            shared: Some(Box::new(memory)),
        })
    }

    /// Memory that holds a copy of `bytes`.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    pub fn copy_of(bytes: &[u8]) -> Result<Self> {
        let mut copy = Self::new(bytes.len())?;
        copy.copy_from_slice(bytes);
        Ok(copy)
    }

    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len.max(1), PAGE_BYTES)
            .map_err(|_| Error::new(Errno::EINVAL, "allocate", format!("buffer of {len} bytes")))
    }

    /// Registers the memory with a domain, so that devices move it without copying.
    ///
    /// # Errors
    ///
    /// As [`Domain::register`].
    pub fn register(&mut self, domain: &dyn Domain) -> Result<()> {
        if self.len == 0 {
            // Nothing to move, and devices refuse empty regions.
            return Ok(());
        }
        let access = Flags::SEND | Flags::RECV;
        // SAFETY: the memory is freed after the region (`drop`), and while an operation on it is
        // under way nobody holds a reference, for the endpoint owns the buffer then. Peers have no
        // right: a key of such memory would let them read while this side writes.
        self.mr = Some(unsafe { domain.register(self.io(self.len), access)? });
        Ok(())
    }

    pub(super) fn io(&self, len: usize) -> IoBuf {
        IoBuf::new(self.ptr.as_ptr(), len.min(self.len))
    }

    /// Where other processes find it, if they can map it.
    pub(super) fn backing(&self) -> Option<MemoryBacking> {
        self.shared.as_ref().map(|memory| memory.backing(0))
    }

    pub(super) fn desc(&self) -> MrDesc {
        self.mr.as_ref().map_or(MrDesc::NONE, |mr| mr.desc())
    }
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory is allocated, initialized, and ours: peers that have it mapped use it
        // while it is a region alone, and then there is no such slice.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.mr = None;
        if let (None, Ok(layout)) = (&self.shared, Self::layout(self.len)) {
            // SAFETY: allocated in `new` with the same layout.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer of {} bytes", self.len)
    }
}
