//! The memory of boards: one memfd for a domain, which peers map for reading.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::shared_memory::{SIZE_SEALS, allocate};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::{BoardEntry, BoardRegion, ENTRIES, bucket_of};

/// Bytes of a board.
const BOARD_BYTES: usize = ENTRIES * size_of::<BoardEntry>();

/// `F_SEAL_FUTURE_WRITE` (Linux 5.1): the mapping that exists is the last one for writes.
pub(crate) const SEAL_FUTURE_WRITE: SealFlag = SealFlag::from_bits_retain(0x10);

/// The seals of a board: it stays as long as it is, and its owner alone writes.
const SEALS: SealFlag = SIZE_SEALS.union(SEAL_FUTURE_WRITE);

/// The board of a domain of this process.
#[derive(Debug)]
pub(crate) struct BoardMemory {
    map: MmapRaw,
    fd: OwnedFd,
}

impl BoardMemory {
    /// Makes an empty board.
    pub(crate) fn create() -> Result<Self> {
        let fail = |e: nix::Error, doing| Error::new(Errno(e as i32), doing, "a board of regions");
        let fd = memfd_create(
            c"ferrofabric-board",
            MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING,
        )
        .map_err(|e| fail(e, "create"))?;
        allocate(fd.as_fd(), BOARD_BYTES).map_err(|e| fail(e, "size"))?;
        let map = MmapOptions::new()
            .len(BOARD_BYTES)
            .map_raw(fd.as_raw_fd())
            .map_err(|e| Error::from_io(&e, "map", "a board of regions"))?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS)).map_err(|e| fail(e, "seal"))?;
        Ok(Self { map, fd })
    }

    /// The descriptor for peers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The entry with this number.
    pub(crate) fn entry(&self, number: usize) -> &BoardEntry {
        entry_of(&self.map, number)
    }

    /// Shows a region; the number of its entry. `None`: its bucket is full.
    pub(crate) fn show(&self, region: &BoardRegion) -> Option<usize> {
        let number = bucket_of(region.key).find(|number| self.entry(*number).is_free())?;
        self.entry(number).show(region);
        Some(number)
    }
}

/// The board of a peer's domain.
#[derive(Debug)]
pub(crate) struct PeerBoard {
    map: MmapRaw,
    /// The entry of the last operation.
    last: usize,
}

impl PeerBoard {
    /// Maps the board of another process, after a check of its seals and its size.
    pub(crate) fn accept(fd: BorrowedFd<'_>) -> Result<Self> {
        let refuse = |why: &str| {
            let whose = format!("a board from another process: {why}");
            Error::new(Errno::EPROTO, "map", whose)
        };
        let has = fcntl(fd, FcntlArg::F_GET_SEALS)
            .map_err(|_| refuse("it is not a memfd"))
            .map(SealFlag::from_bits_retain)?;
        if !has.contains(SEALS) {
            return Err(refuse("it is not sealed as it should be"));
        }
        let size = nix::sys::stat::fstat(fd)
            .map_err(|_| refuse("its size is unknown"))?
            .st_size;
        if size != BOARD_BYTES as i64 {
            return Err(refuse("it has the wrong size"));
        }
        allocate(fd, BOARD_BYTES).map_err(|_| refuse("there is no memory for it"))?;
        let map = MmapOptions::new()
            .len(BOARD_BYTES)
            .map_raw_read_only(fd.as_raw_fd())
            .map_err(|e| Error::from_io(&e, "map", "a board from another process"))?;
        Ok(Self { map, last: 0 })
    }

    /// The entry with this number.
    pub(crate) fn entry(&self, number: usize) -> &BoardEntry {
        entry_of(&self.map, number)
    }

    /// The region with a key: the number of its entry, its generation, and its words, which count
    /// if the entry [is still](BoardEntry::is_still) the same afterwards.
    pub(crate) fn find(&mut self, key: u64) -> Option<(usize, u64, BoardRegion)> {
        let read = |number: usize| {
            let (generation, region) = self.entry(number).read(key)?;
            Some((number, generation, region))
        };
        let found = read(self.last).or_else(|| bucket_of(key).find_map(read))?;
        self.last = found.0;
        Some(found)
    }
}

fn entry_of(map: &MmapRaw, number: usize) -> &BoardEntry {
    assert!(number < ENTRIES);
    // SAFETY: the mapping has as many entries, at the start of a page, and lives as long as the
    // result. An entry has atomics alone, and a reader of a peer's board stores nothing.
    unsafe { &*map.as_ptr().cast::<BoardEntry>().add(number) }
}
