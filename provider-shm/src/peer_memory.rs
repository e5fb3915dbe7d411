//! Memory of another process that this one has mapped (`docs/adr/0067`).
//!
//! The other process's board says which memfd it is. The board may say anything, so nothing is
//! opened before it has proven to be that memfd, and nothing is mapped that could shrink. Accesses
//! can fault only if the machine has no memory left for a page that a process has removed.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::OnceLock;

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::shared_memory::{MemoryBacking, SIZE_SEALS};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno as Sys;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::geteuid;

use crate::board::SEAL_FUTURE_WRITE;

/// The start of the name that /proc shows of a memfd.
const MEMFD_NAME: &[u8] = b"/memfd:";
/// The unit of `st_blocks`, in bytes.
const BLOCK_BYTES: i64 = 512;

/// A mapped memfd of another process.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    map: MmapRaw,
    inode: u64,
}

/// A file: its device, its number there, and the user that it belongs to.
struct FileIdentity {
    device: [u32; 2],
    inode: u64,
    owner: u32,
}

impl PeerMemory {
    /// Maps the memfd that a process's board names, if it has `most` bytes at most.
    ///
    /// # Errors
    ///
    /// `EPROTO`: it is not that memfd, is another user's, has other seals, misses pages or is too
    /// long. Else the error of a call of the system, for example where the process can not be seen.
    pub(crate) fn map(pid: i32, backing: &MemoryBacking, most: usize) -> Result<Self> {
        let whose = || format!("memory {} of process {pid}", backing.inode);
        let refuse = |why: &str| Error::new(Errno::EPROTO, "map", whose()).mend(why.to_owned());
        let fail = |doing| move |e: Sys| Error::new(Errno(e as i32), doing, whose());
        if pid <= 0 {
            return Err(fail("find")(Sys::ESRCH));
        }
        let named = format!("/proc/{pid}/fd/{}", backing.descriptor);
        let name = std::fs::read_link(&named).map_err(|error| fail("find")(of_io(&error)))?;
        if !name.as_os_str().as_bytes().starts_with(MEMFD_NAME) {
            return Err(refuse("it is another file"));
        }
        // Without `O_PATH`, the file that a hostile process has there could let this one wait.
        let named = open_at(&named, OFlag::O_PATH).map_err(fail("find"))?;
        let memfds = device_of_memfds().map_err(fail("compare"))?;
        let found = identity_of(named.as_fd()).map_err(fail("look up"))?;
        if (found.device, found.inode) != (memfds, backing.inode) {
            return Err(refuse("it is another file"));
        }
        if found.owner != geteuid().as_raw() {
            return Err(refuse("it is another user's"));
        }
        let own_path = format!("/proc/self/fd/{}", named.as_raw_fd());
        let fd = open_at(&own_path, OFlag::O_RDWR).map_err(fail("open"))?;
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(fail("check"))?;
        let seals = SealFlag::from_bits_retain(seals);
        if !seals.contains(SIZE_SEALS)
            || seals.intersects(SealFlag::F_SEAL_WRITE | SEAL_FUTURE_WRITE)
        {
            return Err(refuse("it is not sealed as it should be"));
        }
        let stat = fstat(&fd).map_err(fail("size"))?;
        if stat.st_blocks.saturating_mul(BLOCK_BYTES) < stat.st_size {
            return Err(refuse("it misses pages"));
        }
        let bytes = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
        if bytes == 0 || bytes > most {
            return Err(refuse("it has no bytes, or too many"));
        }
        let map = (MmapOptions::new().len(bytes).map_raw(fd.as_raw_fd()))
            .map_err(|e| Error::from_io(&e, "map", whose()))?;
        Ok(Self {
            map,
            inode: backing.inode,
        })
    }

    /// The inode of the memfd.
    pub(crate) fn inode(&self) -> u64 {
        self.inode
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// The start of `len` bytes at an offset. `None`: it has no such bytes.
    pub(crate) fn part(&self, offset: u64, len: usize) -> Option<NonNull<u8>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (end <= self.map.len()).then_some(())?;
        NonNull::new(self.map.as_mut_ptr().wrapping_add(start))
    }
}

/// By the standard library: its `open64` is no cancellation point in the plugin.
fn open_at(path: &str, flags: OFlag) -> nix::Result<OwnedFd> {
    let opened = OpenOptions::new()
        .read(true)
        .write(flags.contains(OFlag::O_RDWR))
        .custom_flags((flags & OFlag::O_PATH).bits())
        .open(path);
    opened.map(OwnedFd::from).map_err(|error| of_io(&error))
}

fn of_io(error: &std::io::Error) -> Sys {
    Sys::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}

/// The device that all memfds of the kernel lie on, but those of huge pages.
fn device_of_memfds() -> nix::Result<[u32; 2]> {
    static DEVICE: OnceLock<[u32; 2]> = OnceLock::new();
    if let Some(device) = DEVICE.get() {
        return Ok(*device);
    }
    let fd = memfd_create(c"ferrofabric-device", MFdFlags::MFD_CLOEXEC)?;
    let device = identity_of(fd.as_fd())?.device;
    Ok(*DEVICE.get_or_init(|| device))
}

/// The identity of a file. The kernel answers from its cache where the file system has one.
fn identity_of(fd: BorrowedFd<'_>) -> nix::Result<FileIdentity> {
    // SAFETY: all zeroes is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: an empty path, and room for the answer.
    let done = unsafe {
        libc::statx(
            fd.as_raw_fd(),
            c"".as_ptr(),
            flags,
            libc::STATX_INO | libc::STATX_UID,
            &raw mut found,
        )
    };
    Sys::result(done)?;
    Ok(FileIdentity {
        device: [found.stx_dev_major, found.stx_dev_minor],
        inode: found.stx_ino,
        owner: found.stx_uid,
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use ferrofabric_system::shared_memory::{SharedMemory, allocate};
    use nix::unistd::{ftruncate, pipe};

    const ALL: usize = 1 << 30;

    fn own() -> i32 {
        std::process::id() as i32
    }

    /// The name that a board would have for a file of this process.
    fn named(fd: &OwnedFd) -> MemoryBacking {
        MemoryBacking {
            descriptor: fd.as_raw_fd(),
            inode: identity_of(fd.as_fd()).unwrap().inode,
            offset: 0,
        }
    }

    fn memfd(bytes: usize, seals: SealFlag, flags: MFdFlags) -> OwnedFd {
        let fd = memfd_create(c"test", flags | MFdFlags::MFD_ALLOW_SEALING).unwrap();
        if bytes != 0 {
            allocate(fd.as_fd(), bytes).unwrap();
        }
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        fd
    }

    #[test]
    fn both_sides_see_one_memory() {
        let memory = SharedMemory::new(10_000).unwrap();
        let theirs = PeerMemory::map(own(), &memory.backing(0), ALL).unwrap();
        assert_eq!(theirs.len(), memory.len());
        let at = theirs.part(9_999, 1).unwrap();
        assert_ne!(at, memory.as_ptr());
        // SAFETY: the byte is in both mappings, which live here.
        let seen = unsafe {
            at.write_volatile(7);
            memory.as_ptr().add(9_999).read_volatile()
        };
        assert_eq!(seen, 7);
    }

    #[test]
    fn parts_lie_in_the_memory() {
        let memory = SharedMemory::new(4096).unwrap();
        let theirs = PeerMemory::map(own(), &memory.backing(0), ALL).unwrap();
        let all = memory.len();
        for (offset, len, fits) in [
            (0, all, true),
            (all as u64, 0, true),
            (1, all, false),
            (all as u64, 1, false),
            (u64::MAX, 1, false),
            (1, usize::MAX, false),
        ] {
            assert_eq!(theirs.part(offset, len).is_some(), fits, "{offset} {len}");
        }
    }

    #[test]
    fn files_that_are_not_what_the_board_says_are_refused() {
        let none = MFdFlags::MFD_CLOEXEC;
        let (reader, _writer) = pipe().unwrap();
        let sparse = memfd(0, SealFlag::empty(), none);
        ftruncate(&sparse, 1 << 20).unwrap();
        fcntl(&sparse, FcntlArg::F_ADD_SEALS(SIZE_SEALS)).unwrap();
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        for (fd, why) in [
            (memfd(4096, SealFlag::empty(), none), "sealed"),
            (memfd(4096, SealFlag::F_SEAL_SHRINK, none), "sealed"),
            (
                memfd(4096, SIZE_SEALS | SealFlag::F_SEAL_WRITE, none),
                "sealed",
            ),
            (memfd(4096, SIZE_SEALS | SEAL_FUTURE_WRITE, none), "sealed"),
            (memfd(0, SIZE_SEALS, none), "no bytes"),
            (memfd(ALL / 1024 + 4096, SIZE_SEALS, none), "too many"),
            (sparse, "misses pages"),
            (reader, "another file"),
            (file, "another file"),
        ] {
            let refused = PeerMemory::map(own(), &named(&fd), ALL / 1024).unwrap_err();
            assert_eq!(refused.errno(), Errno::EPROTO);
            assert!(refused.to_string().contains(why), "{refused}");
        }
    }

    #[test]
    fn memory_of_another_user_is_refused() {
        const NOBODY: u32 = 65_534;

        let fd = memfd(4096, SIZE_SEALS, MFdFlags::MFD_CLOEXEC);
        let changed = std::os::unix::fs::fchown(&fd, Some(NOBODY), None);
        if changed.is_err() && !geteuid().is_root() {
            eprintln!("skipped: only root can give a file to another user");
            return;
        }
        changed.unwrap();
        let refused = PeerMemory::map(own(), &named(&fd), ALL).unwrap_err();
        assert_eq!(refused.errno(), Errno::EPROTO);
        assert!(refused.to_string().contains("another user's"), "{refused}");
    }

    /// Another memfd has the number by now, or none has, or the process is gone.
    #[test]
    fn a_number_that_is_another_files_is_refused() {
        let memory = SharedMemory::new(4096).unwrap();
        let other = SharedMemory::new(4096).unwrap();
        let (backing, other) = (memory.backing(0), other.backing(0));
        for (pid, descriptor, errno) in [
            (own(), other.descriptor, Errno::EPROTO),
            (own(), i32::MAX - 1, Errno::ENOENT),
            (own(), -1, Errno::ENOENT),
            (i32::MAX, backing.descriptor, Errno::ENOENT),
            (0, backing.descriptor, Errno(libc::ESRCH)),
            (-1, backing.descriptor, Errno(libc::ESRCH)),
        ] {
            let named = MemoryBacking {
                descriptor,
                ..backing
            };
            let refused = PeerMemory::map(pid, &named, ALL).unwrap_err();
            assert_eq!(refused.errno(), errno, "{refused}");
        }
    }
}
