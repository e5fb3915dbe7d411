//! The pages of a process that are in memory, as `/proc/PID/pagemap` lists them.
//!
//! A look takes a microsecond, as long as a copy of 4 KiB. So a result stays valid for as long as
//! the proof of the process's identity: copies out of the same few buffers cost one look in a
//! millisecond. A peer that unmaps its memory in that time goes unnoticed.

use std::fs::File;
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

/// The pages of a process.
#[derive(Debug)]
pub(super) struct PresentPages {
    map: File,
    found: [Option<PresentRange>; RANGES],
    next: usize,
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
        })
    }

    /// Whether all pages of a range are present for a use, or were a moment ago.
    pub(super) fn are_present(&mut self, of: PageUse, addr: u64, len: usize, now: Instant) -> bool {
        let Some(end) = addr.checked_add(len as u64) else {
            return false;
        };
        len == 0 || self.is_known(addr, end, now) || self.look_and_remember(of, addr, end, now)
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
}
