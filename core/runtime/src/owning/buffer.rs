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

/// Memory for messages: page-aligned, zeroed, of one [capacity](Self::capacity) for its life.
///
/// Its length is that of its bytes: what a send or a write sends, and what peers reach of a region.
/// A receive takes messages up to the capacity. Its buffer comes back with the length of the
/// message, so the bytes behind, which may be those of an earlier message, are never sent on.
/// [`resize`](Self::resize) makes room for a longer message.
///
/// ```
/// # use ferrofabric_runtime::owning::Buffer;
/// let mut buffer = Buffer::copy_of(b"a secret")?;
/// buffer.resize(2)?;
/// assert_eq!((&buffer[..], buffer.capacity()), (&b"a "[..], 8));
/// buffer.resize(4)?;
/// assert_eq!(buffer[..], *b"a \0\0");
/// assert!(buffer.resize(9).is_err());
/// # Ok::<(), ferrofabric_contracts::error::Error>(())
/// ```
pub struct Buffer {
    // The registration ends before the memory does.
    pub(super) mr: Option<Arc<dyn Mr>>,
    pub(super) ptr: NonNull<u8>,
    /// At most the capacity.
    len: usize,
    capacity: usize,
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
            capacity: len,
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
            capacity: len,
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

    /// The bytes of its memory: the length that it was allocated with.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes its length. Bytes that it gains are zeros, whatever the memory had there.
    ///
    /// # Errors
    ///
    /// `EINVAL` for more than the [capacity](Self::capacity).
    pub fn resize(&mut self, len: usize) -> Result<()> {
        if len > self.capacity {
            let buffer = format!("buffer of {} bytes", self.capacity);
            return Err(Error::new(Errno::EINVAL, "resize", buffer)
                .mend(format!("allocate one of {len} bytes")));
        }
        let before = std::mem::replace(&mut self.len, len);
        if let Some(gained) = self.get_mut(before..) {
            gained.fill(0);
        }
        Ok(())
    }

    /// Gives it the length of a message that was received into it.
    pub(super) fn set_received(&mut self, len: usize) {
        self.len = len.min(self.capacity);
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
        if self.capacity == 0 {
            // Nothing to move, and devices refuse empty regions.
            return Ok(());
        }
        let access = Flags::SEND | Flags::RECV;
        // SAFETY: the memory is freed after the region (`drop`), and while an operation on it is
        // under way nobody holds a reference, for the endpoint owns the buffer then. Peers have no
        // right: a key of such memory would let them read while this side writes.
        self.mr = Some(unsafe { domain.register(self.memory(), access)? });
        Ok(())
    }

    /// Its first `len` bytes, or all of them if it has fewer.
    pub(super) fn io(&self, len: usize) -> IoBuf {
        IoBuf::new(self.ptr.as_ptr(), len.min(self.len))
    }

    /// All of its memory.
    pub(super) fn memory(&self) -> IoBuf {
        IoBuf::new(self.ptr.as_ptr(), self.capacity)
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
        if let (None, Ok(layout)) = (&self.shared, Self::layout(self.capacity)) {
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
