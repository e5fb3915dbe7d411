//! The pages of a process that are in memory, as `/proc/PID/pagemap` lists them.
//!
//! A look takes a microsecond, as long as a copy of 4 KiB. So short copies, which wait for a page
//! of a file or of swap at most, remember that pages were present for as long as the proof of the
//! process's identity counts: those out of the same few buffers cost one look in a millisecond.
//! Long copies may wait for ever, and look each time.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Instant;

use nix::errno::Errno as Sys;

use super::PROOF_LASTS;

/// Number of remembered ranges.
const RANGES: usize = 4;
/// Largest number of pages in one look.
const PAGES: usize = 64;
/// Bit of a page's entry: the page is in memory.
const PRESENT: u64 = 1 << 63;
/// It is a page of a file, or of shared memory.
const OF_FILE: u64 = 1 << 61;
/// Writes to it wait for a handler of userfaultfd(2).
const WRITES_WAIT: u64 = 1 << 57;

/// The request of [`PageScan`], and its categories of pages.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const IS_WRITTEN: u64 = 1 << 1;
const IS_PRESENT: u64 = 1 << 3;

/// The use of pages that are present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PageUse {
    Read,
    /// The kernel may have to copy the page, or to inform the file system of the write. A file
    /// system in user space may let it wait, so a page of a file does not count as present.
    Write,
}

impl PageUse {
    fn is_present(self, entry: u64) -> bool {
        let hindered = match self {
            Self::Read => 0,
            Self::Write => OF_FILE | WRITES_WAIT,
        };
        entry & (PRESENT | hindered) == PRESENT
    }
}

/// A range whose pages were present for every use.
#[derive(Clone, Copy, Debug)]
struct PresentRange {
    start: u64,
    end: u64,
    at: Instant,
}

/// A search for pages (`struct pm_scan_arg` of `linux/fs.h`).
#[repr(C)]
#[derive(Debug, Default)]
struct PageScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    found: u64,
    found_len: u64,
    max_pages: u64,
    inverted: u64,
    all_of: u64,
    any_of: u64,
    returned: u64,
}

/// The pages of a process.
#[derive(Debug)]
pub(super) struct PresentPages {
    map: File,
    found: [Option<PresentRange>; RANGES],
    next: usize,
    /// The kernel searches for pages (Linux 6.7).
    scans: bool,
}

impl PresentPages {
    /// The pages of the process with this ID.
    pub(super) fn of(pid: libc::pid_t) -> Result<Self, Sys> {
        let map = File::open(format!("/proc/{pid}/pagemap"))
            .map_err(|error| Sys::from_raw(error.raw_os_error().unwrap_or_default()))?;
        Ok(Self {
            map,
            found: [None; RANGES],
            next: 0,
            scans: true,
        })
    }

    /// Whether all pages of a range are present for a use, or were a moment ago.
    pub(super) fn are_present(&mut self, of: PageUse, addr: u64, len: usize, now: Instant) -> bool {
        let Some(end) = addr.checked_add(len as u64) else {
            return false;
        };
        len == 0 || self.is_known(addr, end, now) || self.look_and_remember(of, addr, end, now)
    }

    /// Whether all pages of a range are present for a use at this moment. That no file has the pages of a write may be known from a moment ago.
    pub(super) fn are_present_now(
        &mut self,
        of: PageUse,
        addr: u64,
        len: usize,
        now: Instant,
    ) -> bool {
        let Some(end) = addr.checked_add(len as u64) else {
            return false;
        };
        if len == 0 {
            return true;
        }
        if of == PageUse::Read || self.is_known(addr, end, now) {
            match self.scan(of, addr, end) {
                Ok(present) => return present,
                Err(error) => self.scans &= error != Sys::ENOTTY,
            }
        }
        self.look_and_remember(of, addr, end, now)
    }

    /// Whether all pages of a range were present for every use a moment ago.
    fn is_known(&self, start: u64, end: u64, now: Instant) -> bool {
        let known = |found: &PresentRange| {
            found.start <= start
                && end <= found.end
                && now.saturating_duration_since(found.at) < PROOF_LASTS
        };
        self.found.iter().flatten().any(known)
    }

    /// Lets the kernel search for present pages: for many pages that is faster than their entries.
    /// All are present if it finds one range, which is the whole: an address space that no process
    /// has any more has none. Whether a page is of a file would take as long as the entries do.
    fn scan(&self, of: PageUse, start: u64, end: u64) -> nix::Result<bool> {
        if !self.scans {
            return Err(Sys::ENOTTY);
        }
        let size = page_bytes();
        let wanted = match of {
            PageUse::Read => IS_PRESENT,
            // Pages that userfaultfd(2) protects are those that are not written.
            PageUse::Write => IS_PRESENT | IS_WRITTEN,
        };
        let mut found = [0u64; 3];
        let start = start - start % size;
        let end = end.checked_next_multiple_of(size).ok_or(Sys::EFAULT)?;
        let mut scan = PageScan {
            size: size_of::<PageScan>() as u64,
            start,
            end,
            found: found.as_mut_ptr() as u64,
            found_len: 1,
            all_of: wanted,
            returned: IS_PRESENT,
            ..PageScan::default()
        };
        // SAFETY: the argument is as long as the request says, and has room for one range.
        let ranges = unsafe { libc::ioctl(self.map.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let ranges = Sys::result(ranges)?;
        // The kernel wrote to it behind the compiler's back.
        let found = std::hint::black_box(found);
        Ok(ranges == 1 && found[..2] == [start, end])
    }

    /// Pages of files are not remembered: a file system may drop them at any time.
    #[cold]
    fn look_and_remember(&mut self, of: PageUse, start: u64, end: u64, now: Instant) -> bool {
        let Some(found) = self.look(start, end) else {
            return false;
        };
        if found == PageUse::Write {
            self.found[self.next] = Some(PresentRange {
                start,
                end,
                at: now,
            });
            self.next = (self.next + 1) % RANGES;
        }
        found >= of
    }

    /// The most demanding use that all pages of a range are present for.
    fn look(&self, start: u64, end: u64) -> Option<PageUse> {
        let size = page_bytes();
        let (mut page, last) = (start / size, (end - 1) / size);
        let mut entries = [[0u8; 8]; PAGES];
        let mut found = PageUse::Write;
        while page <= last {
            let n = PAGES.min((last - page + 1) as usize);
            let wanted = entries[..n].as_flattened_mut();
            self.map.read_exact_at(wanted, page * 8).ok()?;
            for entry in &entries[..n] {
                let entry = u64::from_ne_bytes(*entry);
                if !found.is_present(entry) {
                    found = PageUse::Read;
                    PageUse::Read.is_present(entry).then_some(())?;
                }
            }
            page += n as u64;
        }
        Some(found)
    }
}

fn page_bytes() -> u64 {
    static BYTES: OnceLock<u64> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // SAFETY: takes a number.
        let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        u64::try_from(bytes).unwrap_or(4096).max(1)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::time::Duration;

    use ferrofabric_system::shared_memory::SharedMemory;
    use memmap2::{MmapMut, MmapOptions};

    use super::*;

    #[test]
    fn a_page_is_there_once_it_was_touched() {
        const MANY: usize = 3 * PAGES;
        let size = page_bytes();
        let len = MANY * size as usize;
        let mut memory = MmapOptions::new().len(len).map_anon().unwrap();
        let advise = |memory: &mut MmapMut, advice| {
            // SAFETY: the range is ours, and nobody has a reference into it.
            let done = unsafe { libc::madvise(memory.as_mut_ptr().cast(), len, advice) };
            assert!(done == 0 || advice == libc::MADV_NOHUGEPAGE);
        };
        advise(&mut memory, libc::MADV_NOHUGEPAGE);
        // A range that is not mapped, and one that can not be mapped.
        let mut pages = PresentPages::of(std::process::id() as i32).unwrap();
        let now = Instant::now();
        for addr in [0, 1, u64::MAX - 100, u64::MAX / 2] {
            assert!(!pages.are_present(PageUse::Read, addr, 50, now), "{addr}");
        }
        let start = memory.as_ptr() as u64;
        assert!(!pages.are_present(PageUse::Read, start, 1, now));
        memory[size as usize] = 1;
        assert!(!pages.are_present(PageUse::Read, start + size - 1, 2, now));
        assert!(pages.are_present(PageUse::Read, start + size, size as usize, now));
        assert!(!pages.are_present(PageUse::Read, start + size, size as usize + 1, now));
        memory.fill(1);
        assert!(pages.are_present(PageUse::Read, start, len, now));

        // The last result counts for a moment.
        advise(&mut memory, libc::MADV_DONTNEED);
        assert!(pages.are_present(PageUse::Read, start + 5, 10, now));
        assert!(!pages.are_present(PageUse::Read, start + 5, 10, now + PROOF_LASTS));
        assert!(PROOF_LASTS <= Duration::from_millis(1));
    }

    /// Both ways to look agree, and neither remembers.
    #[test]
    fn a_look_at_this_moment_sees_each_change() {
        const MANY: usize = 3 * PAGES;
        let size = page_bytes() as usize;
        let len = MANY * size;
        let mut memory = MmapOptions::new().len(len).map_anon().unwrap();
        let start = memory.as_ptr() as u64;
        // SAFETY: the range is ours. A kernel without huge pages refuses the advice.
        unsafe { libc::madvise(memory.as_mut_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
        let of_file = SharedMemory::new(len).unwrap();
        // SAFETY: the memory is as long.
        unsafe { of_file.as_ptr().write_bytes(1, len) };
        let own = std::process::id() as i32;
        for scans in [true, false] {
            let mut pages = PresentPages::of(own).unwrap();
            pages.scans &= scans;
            let now = Instant::now();
            let mut are = |of, addr, len| pages.are_present_now(of, addr, len, now);
            for of in [PageUse::Read, PageUse::Write] {
                memory.fill(1);
                assert!(are(of, start, len) && are(of, start + 5, len - 5));
                let last = (MANY - 1) * size;
                // SAFETY: the page is ours, and nobody has a reference into it.
                unsafe {
                    let page = memory.as_mut_ptr().add(last);
                    libc::madvise(page.cast(), size, libc::MADV_DONTNEED);
                }
                assert!(are(of, start, last) && !are(of, start + 5, last));
                assert!(!are(of, u64::MAX - 100, 50) && !are(of, u64::MAX, 2));
            }
            let at = of_file.as_ptr().addr().get() as u64;
            assert!(are(PageUse::Read, at, len) && !are(PageUse::Write, at, len));
            assert!(!pages.are_present(PageUse::Write, at, len, now));
        }
    }
}
