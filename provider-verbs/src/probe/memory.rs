//! The memory that requests of a probe name.

use std::ptr::NonNull;
use std::sync::Arc;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_verbs_sys::ibv_sge;
use memmap2::MmapMut;

use crate::mr::{Access, Mr};
use crate::pd::Pd;
use crate::post::RemoteMemory;

/// Bytes of the memory.
const BYTES: usize = 4096;

/// Registered memory, seen as 64-bit words.
pub(super) struct ProbeMemory {
    // Deregistered before the memory is freed.
    region: Mr,
    words: NonNull<u64>,
    _memory: MmapMut,
}

/// A word of the memory.
pub(super) struct ProbeWord<'m> {
    memory: &'m ProbeMemory,
    at: NonNull<u64>,
}

impl ProbeMemory {
    pub(super) fn register(pd: &Arc<Pd>, access: Access) -> Result<Self> {
        let mut memory = MmapMut::map_anon(BYTES)
            .map_err(|error| Error::from_io(&error, "map", "memory of a probe"))?;
        let start = memory.as_mut_ptr();
        let words = NonNull::new(start.cast::<u64>())
            .ok_or_else(|| Error::new(Errno::ENOMEM, "map", "memory of a probe"))?;
        Ok(Self {
            // SAFETY: the memory is unmapped after the region is deregistered, and nobody holds a
            // reference to its bytes.
            region: unsafe { Mr::register(pd, start, BYTES, access)? },
            words,
            _memory: memory,
        })
    }

    /// The key that peers name it by.
    pub(super) fn key(&self) -> u32 {
        self.region.rkey()
    }

    /// The word of a number.
    pub(super) fn word(&self, number: usize) -> ProbeWord<'_> {
        assert!(
            number < BYTES / size_of::<u64>(),
            "word {number} is beyond the memory"
        );
        ProbeWord {
            memory: self,
            // SAFETY: it lies within the memory.
            at: unsafe { self.words.add(number) },
        }
    }

    /// An entry for the first `bytes` bytes.
    pub(super) fn start(&self, bytes: usize) -> ibv_sge {
        assert!(bytes <= BYTES, "{bytes} bytes are more than the memory has");
        self.entry(self.words.as_ptr() as usize, bytes)
    }

    fn entry(&self, addr: usize, bytes: usize) -> ibv_sge {
        ibv_sge {
            addr: addr as u64,
            length: bytes as u32,
            lkey: self.region.lkey(),
        }
    }
}

impl ProbeWord<'_> {
    /// The entry that names it.
    pub(super) fn entry(&self) -> ibv_sge {
        self.memory
            .entry(self.at.as_ptr() as usize, size_of::<u64>())
    }

    /// The word as the target of a write or an atomic.
    pub(super) fn remote(&self) -> RemoteMemory {
        RemoteMemory {
            addr: self.at.as_ptr() as u64,
            rkey: self.memory.region.rkey(),
        }
    }

    /// Its value. The device writes it behind the compiler's back.
    pub(super) fn get(&self) -> u64 {
        // SAFETY: mapped as long as the memory; any bits are a number.
        unsafe { self.at.as_ptr().read_volatile() }
    }

    pub(super) fn set(&self, value: u64) {
        // SAFETY: as above; no request is under way.
        unsafe { self.at.as_ptr().write_volatile(value) };
    }
}
