//! Memory of one side that the other one reads and writes.

use std::sync::Arc;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_runtime::fabric::{Domain, MemoryBacking, Mr, MrAttr, SharedMemory};
use memmap2::{MmapMut, MmapRaw};

use crate::failure::{Failure, Result};

/// The key of each region: a side has one at a time.
pub(super) const KEY: u64 = 0xbe7c;

/// The memory of a region: all zeros at first.
pub(super) enum RegionMemory {
    /// Memory of this process alone.
    Own(MmapRaw),
    /// Memory that peers of this node can map, and the bytes of it that the region has.
    Mapped(SharedMemory, usize),
}

impl RegionMemory {
    /// Memory of this number of bytes, and of one at least.
    ///
    /// # Errors
    ///
    /// When there is not so much.
    pub(super) fn new(bytes: usize, mapped: bool) -> Result<Self> {
        if mapped {
            return Ok(Self::Mapped(SharedMemory::new(bytes)?, bytes.max(1)));
        }
        let no_memory = |e| Failure::io(format!("make a region of {bytes} bytes"), e);
        let mut memory = MmapMut::map_anon(bytes.max(1)).map_err(no_memory)?;
        // Memory that nobody has written to is all one page.
        memory.fill(0);
        Ok(Self::Own(memory.into()))
    }

    #[inline(always)]
    fn as_buf(&self) -> IoBuf {
        match self {
            Self::Own(memory) => IoBuf::new(memory.as_ptr(), memory.len()),
            Self::Mapped(memory, len) => IoBuf::new(memory.as_ptr().as_ptr(), *len),
        }
    }

    fn backing(&self) -> Option<MemoryBacking> {
        match self {
            Self::Own(_) => None,
            Self::Mapped(memory, _) => Some(memory.backing(0)),
        }
    }
}

/// A region, whose places count from 0.
pub(crate) struct LinkRegion {
    // The region goes before its memory.
    mr: Arc<dyn Mr>,
    memory: RegionMemory,
}

impl LinkRegion {
    /// Makes memory a region, after `fill` has changed it.
    ///
    /// # Errors
    ///
    /// When it can not be registered.
    pub(super) fn open(
        domain: &dyn Domain,
        memory: RegionMemory,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let buf = memory.as_buf();
        // SAFETY: nothing but this thread uses the memory yet, which outlives the call.
        fill(unsafe { std::slice::from_raw_parts_mut(buf.as_mut_ptr(), buf.len) });
        let attr = MrAttr {
            key: Some(KEY),
            backing: memory.backing(),
            ..MrAttr::new(buf, Flags::REMOTE_READ | Flags::REMOTE_WRITE)
        };
        // SAFETY: the region goes before the memory, to which there is no reference until then.
        let mr = unsafe { domain.register_region(&attr)? };
        Ok(Self { mr, memory })
    }

    /// The byte at a place, as it is now.
    #[inline(always)]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        let buf = self.memory.as_buf();
        assert!(at < buf.len, "a place outside of the region");
        // SAFETY: the byte is in the memory, which no thread of this process writes to meanwhile:
        // this thread alone drives the domain.
        unsafe { buf.as_ptr().add(at).read_volatile() }
    }

    /// Ends the region. Then the memory is this side's, which `look` gets.
    pub(crate) fn close<T>(self, look: impl FnOnce(&mut [u8]) -> T) -> T {
        let Self { mr, memory } = self;
        drop(mr);
        let buf = memory.as_buf();
        // SAFETY: the region is over, so nothing but this thread uses the memory, which outlives
        // the call.
        look(unsafe { std::slice::from_raw_parts_mut(buf.as_mut_ptr(), buf.len) })
    }
}
