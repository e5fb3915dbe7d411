//! Which pages of a process are in memory, as `/proc/PID/pagemap` says.
//!
//! Asking takes a microsecond, half of what it takes to read 8 KiB. So what was found lasts for as
//! long as the proof of who the process is: messages that come out of the same few buffers are
//! asked after once a millisecond. A peer that takes its memory away in that time is not noticed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::Instant;

use nix::errno::Errno as Sys;

use super::PROOF_LASTS;

/// Ranges that are remembered.
const RANGES: usize = 4;
/// Pages that are asked after in one call.
const PAGES: usize = 64;
/// Of a page's entry: it is in memory.
const PRESENT: u64 = 1 << 63;

/// A range that was there.
#[derive(Clone, Copy, Debug)]
struct Found {
    start: u64,
    end: u64,
    at: Instant,
}

/// The pages of a process.
#[derive(Debug)]
pub(super) struct Pages {
    map: File,
    found: [Option<Found>; RANGES],
    next: usize,
}

impl Pages {
    /// Those of the process with this ID.
    pub(super) fn of(pid: libc::pid_t) -> Result<Self, Sys> {
        let map = File::open(format!("/proc/{pid}/pagemap"))
            .map_err(|error| Sys::from_raw(error.raw_os_error().unwrap_or_default()))?;
        Ok(Self {
            map,
            found: [None; RANGES],
            next: 0,
        })
    }

    /// Whether all pages of a range are there, or were a moment ago.
    pub(super) fn are_there(&mut self, addr: u64, len: usize, now: Instant) -> bool {
        let Some(end) = addr.checked_add(len as u64) else {
            return false;
        };
        let known = |found: &Found| {
            found.start <= addr
                && end <= found.end
                && now.saturating_duration_since(found.at) < PROOF_LASTS
        };
        if len == 0 || self.found.iter().flatten().any(known) {
            return true;
        }
        self.look(addr, end, now)
    }

    #[cold]
    fn look(&mut self, start: u64, end: u64, now: Instant) -> bool {
        let size = page_bytes();
        let (mut page, last) = (start / size, (end - 1) / size);
        let mut entries = [[0u8; 8]; PAGES];
        while page <= last {
            let n = PAGES.min((last - page + 1) as usize);
            let wanted = entries[..n].as_flattened_mut();
            if self.map.read_exact_at(wanted, page * 8).is_err() {
                return false;
            }
            let is_missing = |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & PRESENT == 0;
            if entries[..n].iter().any(is_missing) {
                return false;
            }
            page += n as u64;
        }
        self.found[self.next] = Some(Found {
            start,
            end,
            at: now,
        });
        self.next = (self.next + 1) % RANGES;
        true
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
        // Where nothing is, and where nothing can be.
        let mut pages = Pages::of(std::process::id() as i32).unwrap();
        let now = Instant::now();
        for addr in [0, 1, u64::MAX - 100, u64::MAX / 2] {
            assert!(!pages.are_there(addr, 50, now), "{addr}");
        }
        let start = memory.as_ptr() as u64;
        assert!(!pages.are_there(start, 1, now));
        memory[size as usize] = 1;
        assert!(!pages.are_there(start + size - 1, 2, now));
        assert!(pages.are_there(start + size, size as usize, now));
        assert!(!pages.are_there(start + size, size as usize + 1, now));
        memory.fill(1);
        assert!(pages.are_there(start, len, now));

        // It is believed for a moment.
        advise(&mut memory, libc::MADV_DONTNEED);
        assert!(pages.are_there(start + 5, 10, now));
        assert!(!pages.are_there(start + 5, 10, now + PROOF_LASTS));
        assert!(PROOF_LASTS <= Duration::from_millis(1));
    }
}
