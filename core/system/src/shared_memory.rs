//! Memory of this process that others may map: a sealed memfd (memfd_create(2)).
//!
//! The seals fix its size, and its pages are there from the start, so no access to it can fault for
//! want of a page. A process that maps it reads and writes all of it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;

use ferrofabric_contracts::error::{Errno, Error, Result};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno as Sys;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl, posix_fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

use crate::cancel::Uncancelled;
use crate::file_size;
use crate::forked::Birth;

/// The seals of memory that another process maps: its size stays what it is.
pub const SIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// Zeroed memory in a memfd of its own, mapped for this process.
///
/// A drop frees the pages, also for processes that still have them mapped. A child of fork(2)
/// shares the pages with its parent, and a drop there frees nothing.
#[derive(Debug)]
pub struct SharedMemory {
    map: MmapRaw,
    fd: OwnedFd,
    inode: u64,
    birth: Birth,
}

/// How other processes find a range of such memory, as long as the memory exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBacking {
    /// The descriptor of the memfd in the process that has made it.
    pub descriptor: RawFd,
    /// The inode of the memfd. Until the next boot no other memfd gets the same one.
    pub inode: u64,
    /// Where in the memfd the range begins, in bytes.
    pub offset: u64,
}

impl SharedMemory {
    /// Memory of `len` bytes and up to the end of the last page, at least one page.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no allocation can have this length. `ENOMEM`, `ENOSPC`: the system has not so much
    /// memory. `EMFILE`, `ENFILE`: there are too many open files.
    pub fn new(len: usize) -> Result<Self> {
        let fail =
            |errno: Errno, doing| Error::new(errno, doing, format!("shared memory of {len} bytes"));
        let page = page_bytes();
        let bytes = (len.max(1).checked_next_multiple_of(page))
            .filter(|bytes| isize::try_from(*bytes).is_ok())
            .ok_or_else(|| fail(Errno::EINVAL, "allocate"))?;
        // The kernel would take pages from all processes before it finds that there are too few.
        if bytes / page > physical_pages() {
            return Err(fail(Errno::ENOMEM, "allocate").mend("the machine has less memory"));
        }
        let of_call = |doing| move |e: Sys| fail(Errno(e as i32), doing);
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(c"ferrofabric-memory", flags).map_err(of_call("create"))?;
        allocate(fd.as_fd(), bytes).map_err(of_call("allocate"))?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SIZE_SEALS)).map_err(of_call("seal"))?;
        let inode = nix::sys::stat::fstat(&fd)
            .map_err(of_call("look up"))?
            .st_ino;
        let map = (MmapOptions::new().len(bytes).map_raw(fd.as_raw_fd()))
            .map_err(|e| Error::from_io(&e, "map", format!("shared memory of {len} bytes")))?;
        Ok(Self {
            map,
            fd,
            inode,
            birth: Birth::here(),
        })
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> NonNull<u8> {
        // No mapping of the kernel's choice begins at address 0.
        NonNull::new(self.map.as_mut_ptr()).unwrap_or(NonNull::dangling())
    }

    /// Its length in bytes: whole pages.
    #[allow(clippy::len_without_is_empty, reason = "it has a page at least")]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// How other processes find the bytes from `offset` on.
    pub fn backing(&self, offset: usize) -> MemoryBacking {
        MemoryBacking {
            descriptor: self.fd.as_raw_fd(),
            inode: self.inode,
            offset: offset as u64,
        }
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if self.birth.is_this_process() {
            let whole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            // Without it the pages go with the last mapping.
            let _ = fallocate(&self.fd, whole, 0, self.map.len() as i64);
        }
    }
}

/// Reserves the pages of a memfd. Without this, the first process that touches a page is killed if
/// the system has no memory left.
///
/// # Errors
///
/// As posix_fallocate(3).
pub fn allocate(fd: BorrowedFd<'_>, bytes: usize) -> nix::Result<()> {
    // The C library writes the pages if the file system can not reserve them.
    let _uncancelled = Uncancelled::begin();
    file_size::without_signal(|| {
        loop {
            match posix_fallocate(fd, 0, bytes as i64) {
                Err(Sys::EINTR) => {}
                allocated => return allocated,
            }
        }
    })
}

/// The size of a page, in bytes.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: reads a number.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    // Linux always says it.
    usize::try_from(bytes).unwrap_or(4096)
}

/// The pages of the machine's memory.
fn physical_pages() -> usize {
    // SAFETY: reads a number.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    usize::try_from(pages).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn bytes(memory: &MmapRaw) -> &[u8] {
        // SAFETY: the mapping lives as long, and no other thread uses it.
        unsafe { std::slice::from_raw_parts(memory.as_ptr(), memory.len()) }
    }

    /// Another mapping of the memory, as a peer has it.
    fn mapped(memory: &SharedMemory) -> MmapRaw {
        (MmapOptions::new().len(memory.len()))
            .map_raw(memory.fd.as_raw_fd())
            .unwrap()
    }

    #[test]
    fn another_mapping_has_the_same_bytes_until_the_memory_is_freed() {
        let memory = SharedMemory::new(5000).unwrap();
        assert_eq!(memory.len(), 5000usize.next_multiple_of(page_bytes()));
        let theirs = mapped(&memory);
        assert!(bytes(&theirs).iter().all(|byte| *byte == 0));
        // SAFETY: the byte is in the memory, to which there is no reference now.
        unsafe { memory.as_ptr().add(4999).write_volatile(7) };
        assert_eq!(bytes(&theirs)[4999], 7);
        let fd = memory.fd.try_clone().unwrap();
        drop(memory);
        assert_eq!(nix::sys::stat::fstat(&fd).unwrap().st_blocks, 0);
        assert_eq!(bytes(&theirs)[4999], 0);
    }

    #[test]
    fn its_size_does_not_change_and_all_pages_are_there() {
        let memory = SharedMemory::new(1).unwrap();
        let seals = fcntl(&memory.fd, FcntlArg::F_GET_SEALS).unwrap();
        // A kernel may be set to add others.
        assert!(SealFlag::from_bits_retain(seals).contains(SIZE_SEALS));
        for size in [0, 2 * page_bytes() as i64] {
            assert!(nix::unistd::ftruncate(&memory.fd, size).is_err());
        }
        let stat = nix::sys::stat::fstat(&memory.fd).unwrap();
        let page = page_bytes() as i64;
        assert_eq!((stat.st_size, stat.st_blocks), (page, page / 512));
        let found = MemoryBacking {
            descriptor: memory.fd.as_raw_fd(),
            inode: stat.st_ino,
            offset: 100,
        };
        assert_eq!(memory.backing(100), found);
    }

    #[test]
    fn lengths_that_no_machine_has_are_refused() {
        for (len, errno) in [
            (usize::MAX, Errno::EINVAL),
            (isize::MAX as usize, Errno::EINVAL),
            (1 << 60, Errno::ENOMEM),
        ] {
            let refused = SharedMemory::new(len).unwrap_err();
            assert_eq!(refused.errno(), errno, "{len}");
        }
        assert_eq!(SharedMemory::new(0).unwrap().len(), page_bytes());
    }

    /// A child's drop leaves the parent's bytes.
    #[test]
    fn a_child_frees_nothing() {
        let memory = SharedMemory::new(100).unwrap();
        // SAFETY: no reference to the memory exists.
        unsafe { memory.as_ptr().write_volatile(7) };
        // SAFETY: the child makes calls of the system and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(memory);
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        // SAFETY: the byte is in the memory.
        assert_eq!(unsafe { memory.as_ptr().read_volatile() }, 7);
    }
}
