//! The memory of a peer that a link has mapped: the regions there are reached by loads and stores
//! (`docs/adr/0067`).

use std::ptr::NonNull;

use ferrofabric_contracts::types::{IoBuf, RmaKind};
use ferrofabric_system::shared_memory::MemoryBacking;

use super::pause::Pause;
use crate::copy::{load_shared, store_shared};
use crate::peer_memory::PeerMemory;

/// Most memfds of a peer that are mapped at one time.
const MOST_MAPPED: usize = 64;

/// Most bytes of them together.
const MOST_BYTES: usize = 1 << 40;

/// A memory that was not used for this number of operations gives its place away without a pause.
const UNUSED_FOR: u64 = 1024;

/// The memory of a peer that is mapped.
pub(super) struct MappedMemories {
    pid: i32,
    /// The last one that was used comes first.
    memories: Vec<UsedMemory>,
    bytes: usize,
    operations: u64,
    /// After a memory that could not be mapped, or that took the place of another.
    pause: Pause,
}

struct UsedMemory {
    memory: PeerMemory,
    /// The number of its last operation.
    used: u64,
}

impl MappedMemories {
    /// Those of a process: none yet.
    pub(super) fn of(pid: i32) -> Self {
        Self {
            pid,
            memories: Vec::new(),
            bytes: 0,
            operations: 0,
            pause: Pause::default(),
        }
    }

    /// Where `len` bytes of the peer's memory lie for this process. They are mapped if they are not
    /// yet. `None`: another way has to do.
    ///
    /// The caller protects the region against its close.
    pub(super) fn find(&mut self, backing: &MemoryBacking, len: usize) -> Option<NonNull<u8>> {
        let is_it = |one: &UsedMemory| one.memory.inode() == backing.inode;
        if !self.memories.first().is_some_and(is_it) {
            self.bring_to_front(backing)?;
        }
        self.operations += 1;
        let first = self.memories.first_mut()?;
        first.used = self.operations;
        first.memory.part(backing.offset, len)
    }

    #[cold]
    fn bring_to_front(&mut self, backing: &MemoryBacking) -> Option<()> {
        let is_it = |one: &UsedMemory| one.memory.inode() == backing.inode;
        if let Some(at) = self.memories.iter().position(is_it) {
            self.memories[..=at].rotate_right(1);
            return Some(());
        }
        if self.pause.takes_one() {
            return None;
        }
        let memory = match PeerMemory::map(self.pid, backing, MOST_BYTES) {
            Ok(memory) => memory,
            Err(error) => {
                tracing::debug!(%error, "memory of a peer is not mapped");
                self.pause.begin();
                return None;
            }
        };
        self.bytes += memory.len();
        if self.memories.len() < MOST_MAPPED {
            self.pause.end();
        }
        while self.memories.len() >= MOST_MAPPED || self.bytes > MOST_BYTES {
            let Some(last) = self.memories.pop() else {
                break;
            };
            self.bytes -= last.memory.len();
            match self.operations - last.used < UNUSED_FOR {
                true => self.pause.begin(),
                false => self.pause.end(),
            }
        }
        let used = self.operations;
        self.memories.insert(0, UsedMemory { memory, used });
        Some(())
    }
}

/// Carries out an operation on memory from `at` on.
///
/// # Safety
///
/// The buffers are valid: for writes if the operation is a read, else for reads. The memory has as
/// many bytes as they.
pub(super) unsafe fn copy_mapped(kind: RmaKind, at: NonNull<u8>, iov: &[IoBuf]) {
    let mut at = at.as_ptr();
    for buf in iov {
        // SAFETY: the caller's contract.
        unsafe {
            match kind {
                RmaKind::Read => load_shared(at, buf.as_mut_ptr(), buf.len),
                RmaKind::Write => store_shared(buf.as_ptr(), at, buf.len),
            }
            at = at.add(buf.len);
        }
    }
}
