//! The array that the `map_addr` of a named address vector points to: `fi_addr_t` values, by entry,
//! in the file of the address vector.
//!
//! Entries are taken lowest first, so the array is in order of insertion; the place of a removed
//! address has `FI_ADDR_NOTAVAIL` until the next insertion takes it. A process has one mapping of
//! the array for all its holders of the file, for reading only.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use super::words::{ALIGN, MappedWords};
use ferrofabric_contracts::types::FiAddr;
use ferrofabric_system::sync::Ordering::{Relaxed, Release};

/// Addresses that the array has room for. Its unused part takes neither memory nor room of the
/// file.
const MOST: usize = 1 << 27;

/// Bytes of the array.
pub(super) const BYTES: u64 = 8 * MOST as u64;

/// Where it lies in the file.
pub(super) const OFFSET: u64 = ALIGN;

/// Addresses of which none was listed before the first of them is.
const BLOCK: usize = 512;

/// The part of the file that the addresses of `len` entries from `first` on take: where it starts,
/// and its bytes. Whole blocks.
pub(super) fn room(first: usize, len: usize) -> (u64, u64) {
    let from = first.min(MOST) / BLOCK * BLOCK;
    let to = (first + len).min(MOST).next_multiple_of(BLOCK);
    (OFFSET + 8 * from as u64, 8 * (to - from) as u64)
}

/// Device and inode of a file.
type FileId = (u64, u64);

/// The mappings of this process.
static MAPPED: Mutex<Vec<(FileId, Weak<ListingMapping>)>> = Mutex::new(Vec::new());

/// The array of one address vector.
pub(super) struct AddrListing {
    words: MappedWords,
    mapping: Arc<ListingMapping>,
}

/// The array as the application reads it.
struct ListingMapping {
    at: NonNull<std::ffi::c_void>,
}

// SAFETY: nobody reads or writes through the pointer here.
unsafe impl Send for ListingMapping {}
// SAFETY: the same.
unsafe impl Sync for ListingMapping {}

impl Drop for ListingMapping {
    fn drop(&mut self) {
        // SAFETY: it is our mapping, and that long. By the documentation of `map_addr` the
        // application stops reading when it closes the address vector.
        let _ = unsafe { munmap(self.at, BYTES as usize) };
    }
}

impl AddrListing {
    /// Maps the array of a file, at `wanted` if that is a multiple of the page size and free.
    ///
    /// # Errors
    ///
    /// When the system can not map it.
    pub(super) fn map(file: &File, wanted: usize) -> io::Result<Self> {
        let about = file.metadata()?;
        let id = (about.dev(), about.ino());
        let words = MappedWords::shared(file, OFFSET, BYTES as usize)?;
        let mut mapped = MAPPED.lock().unwrap_or_else(PoisonError::into_inner);
        mapped.retain(|(_, mapping)| mapping.strong_count() != 0);
        let known = mapped.iter().find(|(other, _)| *other == id);
        let mapping = match known.and_then(|(_, mapping)| mapping.upgrade()) {
            Some(mapping) => mapping,
            None => {
                let mapping = Arc::new(ListingMapping::new(file, wanted)?);
                mapped.push((id, Arc::downgrade(&mapping)));
                mapping
            }
        };
        Ok(Self { words, mapping })
    }

    /// Where the application finds it.
    pub(super) fn at(&self) -> usize {
        self.mapping.at.as_ptr() as usize
    }

    /// Writes the address of an entry. For writers.
    pub(super) fn list(&self, entry: u32, addr: FiAddr) {
        let (entry, block) = (entry as usize, entry as usize / BLOCK * BLOCK);
        if entry >= MOST {
            return;
        }
        let words = self.words.u64s(8 * block, BLOCK);
        // No address but that of the first entry is 0.
        if words.last().is_some_and(|last| last.load(Relaxed) == 0) {
            for word in words {
                word.store(FiAddr::NOTAVAIL.0, Relaxed);
            }
        }
        if let Some(word) = words.get(entry - block) {
            word.store(addr.0, Release);
        }
    }
}

impl ListingMapping {
    fn new(file: &File, wanted: usize) -> io::Result<Self> {
        let map = |at: Option<NonZeroUsize>, flags| {
            let length = NonZeroUsize::new(BYTES as usize).ok_or(io::ErrorKind::InvalidInput)?;
            // SAFETY: no mapping is replaced: the address is left open, or must be free.
            let mapped = unsafe {
                mmap(
                    at,
                    length,
                    ProtFlags::PROT_READ,
                    flags,
                    file,
                    OFFSET as nix::libc::off_t,
                )
            };
            mapped.map_err(|errno| io::Error::from_raw_os_error(errno as i32))
        };
        let fixed = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE;
        let there = match NonZeroUsize::new(wanted) {
            // Older kernels take the address for a hint.
            Some(_) => map(NonZeroUsize::new(wanted), fixed).ok(),
            None => None,
        };
        let at = match there {
            Some(at) => at,
            None => map(None, MapFlags::MAP_SHARED)?,
        };
        Ok(Self { at })
    }
}

/// The values that an application reads at a `map_addr`.
#[cfg(test)]
pub(super) fn read(at: usize, n: usize) -> Vec<FiAddr> {
    // SAFETY: the mapping has room for more, and nobody writes.
    unsafe { std::slice::from_raw_parts(at as *const FiAddr, n) }.to_vec()
}

// Two attributes: clippy 1.85 does not see from one that these are tests.
#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> File {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(OFFSET + BYTES).unwrap();
        file
    }

    /// Covers: AV-6
    #[test]
    fn an_entry_that_was_never_listed_is_none() {
        let file = file("listing");
        let listing = AddrListing::map(&file, 0).unwrap();
        for addr in [FiAddr(0), FiAddr::NOTAVAIL, FiAddr(7 << 32)] {
            listing.list(0, addr);
            let all = read(listing.at(), BLOCK);
            assert_eq!(all[0], addr);
            assert!(all[1..].iter().all(|one| *one == FiAddr::NOTAVAIL));
        }
        listing.list(MOST as u32 - 1, FiAddr(5));
        listing.list(MOST as u32, FiAddr(5));
        assert_eq!(read(listing.at() + 8 * (MOST - 1), 1), [FiAddr(5)]);
    }

    /// Covers: AV-6
    #[test]
    fn a_process_has_one_mapping_of_a_file_where_it_is_wanted() {
        let (one, other) = (file("one"), file("other"));
        let first = AddrListing::map(&one, 0x6fff_0000_0000).unwrap();
        assert_eq!(first.at(), 0x6fff_0000_0000);
        assert_eq!(AddrListing::map(&one, 0).unwrap().at(), first.at());
        let elsewhere = AddrListing::map(&other, first.at()).unwrap();
        assert_ne!(elsewhere.at(), first.at());
        assert_ne!(AddrListing::map(&other, 1).unwrap().at(), 1);
    }
}
