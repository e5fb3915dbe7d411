//! The memory of a table's pieces, for the modules that store entries: from the process itself, or
//! from the file of a named table, whose head has the place of each piece.
//!
//! A piece is made once, never moves, and stays mapped as long as the table is open. In a file its
//! memory is allocated before any process can find it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::errno::Errno as Sys;
use nix::fcntl::{FallocateFlags, fallocate, posix_fallocate};

use super::words::{ALIGN, MappedWords};
use ferrofabric_contracts::error::{Errno, Error, Result};
use ferrofabric_system::file_size;
use ferrofabric_system::sync::{AtomicU64, OnceLock, Ordering};

/// Pieces of one kind, each made once and mapped when first used.
pub(super) type ArenaPieces = [OnceLock<MappedWords>; PIECES];

/// Pieces of one kind at most: each is twice as long as the one before.
pub(super) const PIECES: usize = if cfg!(loom) { 3 } else { 32 };

/// Bytes that are set aside by one call: a signal ends a call, and what it has done is undone.
const AT_ONCE: u64 = 4 << 20;

/// The source of pieces.
pub(super) enum PieceArena {
    /// Memory of this process.
    Private,
    /// A file, of which this word says how long it is in bytes.
    File(File),
}

impl PieceArena {
    /// Makes piece `number`, writes to `offset` where it lies, and returns it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, `ENOSPC`: there is no room.
    pub(super) fn create<'a>(
        &self,
        pieces: &'a ArenaPieces,
        number: usize,
        bytes: usize,
        (end, offset): (&AtomicU64, &AtomicU64),
    ) -> Result<&'a MappedWords> {
        if let PieceArena::File(file) = self {
            if offset.load(Ordering::Relaxed) == 0 {
                let at = end.load(Ordering::Relaxed).next_multiple_of(ALIGN);
                let new_end = (at + bytes as u64).next_multiple_of(ALIGN);
                // Before any process finds the piece: access to memory that the file system has not
                // got kills a process.
                self.allocate(at, new_end - at)
                    .map_err(|e| no_room(&e, file))?;
                end.store(new_end, Ordering::Relaxed);
                offset.store(at, Ordering::Release);
            }
        } else {
            offset.store(ALIGN, Ordering::Release);
        }
        self.piece(pieces, number, bytes, offset)
    }

    /// Has the file system set this part of a file aside; where it has no room for all of it, for
    /// none of it.
    pub(super) fn allocate(&self, at: u64, bytes: u64) -> io::Result<()> {
        let PieceArena::File(file) = self else {
            return Ok(());
        };
        let end = at + bytes;
        let mut from = at;
        while from < end {
            let len = (end - from).min(AT_ONCE);
            match file_size::without_signal(|| posix_fallocate(file, from as i64, len as i64)) {
                Ok(()) => from += len,
                Err(Sys::EINTR) => {}
                Err(error) => {
                    let hole =
                        FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                    if from != at {
                        // Memory that the file system does not take back goes with the file.
                        let _ = fallocate(file, hole, at as i64, (from - at) as i64);
                    }
                    return Err(io::Error::from_raw_os_error(error as i32));
                }
            }
        }
        Ok(())
    }

    /// Piece `number`, which was made before, by this process or another.
    ///
    /// # Errors
    ///
    /// `ENOENT`: it was not made. `ENOMEM`: it can not be mapped.
    #[cold]
    pub(super) fn piece<'a>(
        &self,
        pieces: &'a ArenaPieces,
        number: usize,
        bytes: usize,
        offset: &AtomicU64,
    ) -> Result<&'a MappedWords> {
        let what = || format!("{bytes} bytes of an address vector");
        let slot = pieces
            .get(number)
            .ok_or_else(|| Error::new(Errno::ENOSPC, "grow", "address vector"))?;
        if let Some(words) = slot.get() {
            return Ok(words);
        }
        let words = match (self, offset.load(Ordering::Acquire)) {
            (_, 0) => return Err(Error::new(Errno::ENOENT, "map", what())),
            (PieceArena::Private, _) => MappedWords::private(bytes),
            (PieceArena::File(file), at) => MappedWords::shared(file, at, bytes),
        }
        .map_err(|e| Error::from_io(&e, "map", what()))?;
        // Another thread may have been quicker: its mapping is as good.
        Ok(slot.get_or_init(|| words))
    }
}

/// The error of a file that can not grow.
pub(super) fn no_room(error: &io::Error, file: &File) -> Error {
    let error = Error::from_io(error, "grow", "named address vector");
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    match (error.errno(), std::fs::read_link(link)) {
        (Errno::ENOSPC, Ok(path)) => error.mend(format!("there is no room for {}", path.display())),
        _ => error,
    }
}
