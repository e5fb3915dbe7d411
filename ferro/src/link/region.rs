//! Memory of one side that the other one reads and writes.

use std::sync::Arc;

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_runtime::fabric::{Domain, Mr, MrAttr};
use memmap2::{MmapMut, MmapRaw};

use crate::failure::{Failure, Result};

/// The key of each region: a side has one at a time.
pub(super) const KEY: u64 = 0xbe7c;

/// A region, whose places count from 0.
pub(crate) struct LinkRegion {
    // The region goes before its memory.
    mr: Arc<dyn Mr>,
    memory: MmapRaw,
}

impl LinkRegion {
    /// Makes memory of zeros, which `fill` changes before the peer reaches it.
    ///
    /// # Errors
    ///
    /// When there is no memory, or it can not be registered.
    pub(super) fn open(
        domain: &dyn Domain,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Self> {
        let no_memory = |e| Failure::io(format!("make a region of {bytes} bytes"), e);
        let mut mapped = MmapMut::map_anon(bytes.max(1)).map_err(no_memory)?;
        // Memory that nobody has written to is all one page.
        mapped.fill(0);
        fill(&mut mapped[..bytes]);
        let memory = MmapRaw::from(mapped);
        let attr = MrAttr {
            key: Some(KEY),
            ..MrAttr::new(
                IoBuf::new(memory.as_ptr(), memory.len()),
                Flags::REMOTE_READ | Flags::REMOTE_WRITE,
            )
        };
        // SAFETY: the region goes before the memory, to which there is no reference until then.
        let mr = unsafe { domain.register_region(&attr)? };
        Ok(Self { mr, memory })
    }

    /// The byte at a place, as it is now.
    #[inline(always)]
    pub(crate) fn byte(&self, at: usize) -> u8 {
        assert!(at < self.memory.len(), "a place outside of the region");
        // SAFETY: the byte is in the memory, which no thread of this process writes to meanwhile:
        // this thread alone drives the domain.
        unsafe { self.memory.as_ptr().add(at).read_volatile() }
    }

    /// Ends the region. Then the memory is this side's, which `look` gets.
    pub(crate) fn close<T>(self, look: impl FnOnce(&mut [u8]) -> T) -> T {
        let Self { mr, memory } = self;
        drop(mr);
        // SAFETY: the region is over, so nothing but this thread uses the memory, which outlives
        // the call.
        look(unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr(), memory.len()) })
    }
}
