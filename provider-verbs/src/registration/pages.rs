//! The page numbers of memory, as far as the kernel reports them (`/proc/self/pagemap`: to
//! privileged processes alone).

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::watcher::page_bytes;

/// In an entry: the page is in memory.
const PRESENT: u64 = 1 << 63;

/// In an entry: the page's number.
const NUMBER: u64 = (1 << 55) - 1;

/// The pages of a range of memory at some time.
#[derive(Debug)]
pub(super) struct PageNumbers {
    range: Range<u64>,
    /// The number of each page, 0 if the kernel does not report it.
    numbers: Vec<u64>,
}

impl PageNumbers {
    /// Reads the numbers of the pages that the range has now.
    pub(super) fn of(range: Range<u64>) -> Self {
        Self {
            numbers: numbers(&range),
            range,
        }
    }

    /// Whether the range still has the same pages.
    pub(super) fn are_there(&self) -> bool {
        let now = numbers(&self.range);
        let same = |(was, now): (&u64, &u64)| *was == 0 || was == now;
        self.numbers.iter().zip(&now).all(same)
    }
}

fn numbers(range: &Range<u64>) -> Vec<u64> {
    let page = page_bytes();
    let first = range.start / page;
    let count = range.end.div_ceil(page) - first;
    let mut entries = vec![0; count as usize * 8];
    // A page that cannot be read counts as unknown.
    let _ =
        File::open("/proc/self/pagemap").and_then(|map| map.read_exact_at(&mut entries, first * 8));
    let entries = entries.chunks_exact(8).map(|entry| {
        let entry = entry.try_into().map_or(0, u64::from_ne_bytes);
        if entry & PRESENT == 0 {
            0
        } else {
            entry & NUMBER
        }
    });
    entries.collect()
}
