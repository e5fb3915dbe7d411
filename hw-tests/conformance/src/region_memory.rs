//! The memory of endpoints and of their regions: that of the heap, or memory that peers can map.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use ferrofabric_contracts::flags::Flags;
use ferrofabric_contracts::types::IoBuf;
use ferrofabric_runtime::fabric::MrAttr;
use ferrofabric_system::shared_memory::{MemoryBacking, SharedMemory};

/// Less memory than this lies on the heap in any case.
const LEAST_MAPPED: usize = 1 << 16;

/// Whether memory is such that peers can map it.
static IS_MAPPED: AtomicBool = AtomicBool::new(false);

/// Mapped memory of this process, by its first address: its end, and where it is found.
static MAPPED: Mutex<BTreeMap<usize, (usize, MemoryBacking)>> = Mutex::new(BTreeMap::new());

/// From now on the memory of regions in this process is such that peers can map it.
pub fn use_mapped_memory() {
    IS_MAPPED.store(true, Ordering::Relaxed);
}

/// The attributes of a region, which says where its memory is found, if peers can map it.
pub fn region_of(memory: IoBuf, rights: Flags) -> MrAttr<'static> {
    let mapped = MAPPED.lock().unwrap();
    let within = |(start, (end, backing)): (&usize, &(usize, MemoryBacking))| {
        (memory.addr + memory.len <= *end).then(|| MemoryBacking {
            offset: (memory.addr - start) as u64,
            ..*backing
        })
    };
    MrAttr {
        backing: mapped.range(..=memory.addr).next_back().and_then(within),
        ..MrAttr::new(memory, rights)
    }
}

/// Memory of an endpoint.
pub(crate) enum EndMemory {
    Heap(Box<[u8]>),
    Mapped(SharedMemory, usize),
}

impl EndMemory {
    /// Memory of `len` bytes, all of them `fill`.
    pub(crate) fn new(len: usize, fill: u8) -> Self {
        if !IS_MAPPED.load(Ordering::Relaxed) || len < LEAST_MAPPED {
            return Self::Heap(vec![fill; len].into());
        }
        let memory = SharedMemory::new(len).unwrap();
        let start = memory.as_ptr().as_ptr();
        // SAFETY: nobody else uses the memory yet.
        unsafe { start.write_bytes(fill, len) };
        let found = (start.addr() + memory.len(), memory.backing(0));
        MAPPED.lock().unwrap().insert(start.addr(), found);
        Self::Mapped(memory, len)
    }

    pub(crate) fn buf(&self) -> IoBuf {
        match self {
            Self::Heap(bytes) => IoBuf::new(bytes.as_ptr(), bytes.len()),
            Self::Mapped(memory, len) => IoBuf::new(memory.as_ptr().as_ptr(), *len),
        }
    }
}

impl Drop for EndMemory {
    fn drop(&mut self) {
        if let Self::Mapped(memory, _) = self {
            MAPPED.lock().unwrap().remove(&memory.as_ptr().addr().get());
        }
    }
}
