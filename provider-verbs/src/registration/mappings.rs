//! Whether memory is this process's alone, by its mappings. Another process can take pages away
//! from shared memory and from files, and the kernel reports none of that.

use std::fs::File;
use std::io::{BufRead, BufReader, Seek};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// The request that queries one mapping (`PROCMAP_QUERY`, since Linux 6.11).
const QUERY: u32 = 0xc068_6611;

/// Flag of the query: the mapping at the address, or else the next one.
const COVERING_OR_NEXT: u64 = 0x10;

/// Flag of the answer: changes reach the file, or each process that shares the memory.
const SHARED: u64 = 0x08;

/// The kernel's name for the file of private huge pages, of which no other process has a
/// descriptor.
const HUGE_PAGES: &str = "/anon_hugepage";

/// The beginning of its names for System V segments.
const SEGMENTS: &str = "/SYSV";

/// `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Default)]
#[allow(dead_code, reason = "the kernel's layout")]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 0x68);

/// One mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MemoryMapping {
    range: Range<u64>,
    owner: MemoryOwner,
}

/// Who can take the pages of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum MemoryOwner {
    /// Another process or this one, and the kernel does not report that this one detaches it.
    Segment,
    /// Whoever has the file, or shares the memory.
    Shared,
    /// This process.
    Private,
}

/// The mappings of this process, read from the kernel.
#[derive(Debug)]
pub(super) struct Mappings {
    file: File,
    /// Whether the kernel answers for one address at a time; else it lists all mappings.
    answers: AtomicBool,
}

impl Mappings {
    /// Opens the list.
    ///
    /// # Errors
    ///
    /// There is no `/proc`.
    pub(super) fn open() -> std::io::Result<Self> {
        Ok(Self {
            file: File::open("/proc/self/maps")?,
            answers: AtomicBool::new(true),
        })
    }

    /// Whether the kernel is known to answer for one address at a time, in a microsecond. The list
    /// takes longer, the more mappings there are.
    pub(super) fn has_quick_answer(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }

    /// Whether no page of the range, all of which is mapped, belongs to a file or is shared with
    /// another process. `false` if the kernel gives no answer.
    pub(super) fn are_private(&self, range: &Range<u64>) -> bool {
        self.are_all(range, MemoryOwner::Private)
    }

    /// Whether all of the range is mapped, and the kernel reports it when this process unmaps it.
    /// `false` if the kernel gives no answer.
    pub(super) fn are_reported(&self, range: &Range<u64>) -> bool {
        self.are_all(range, MemoryOwner::Shared)
    }

    fn are_all(&self, range: &Range<u64>, least: MemoryOwner) -> bool {
        if self.answers.load(Ordering::Relaxed) {
            match self.ask(range, least) {
                Ok(private) => return private,
                Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                    self.answers.store(false, Ordering::Relaxed);
                }
                Err(_) => return false,
            }
        }
        self.read(range, least).unwrap_or(false)
    }

    /// Queries mapping by mapping.
    fn ask(&self, range: &Range<u64>, least: MemoryOwner) -> std::io::Result<bool> {
        let mut at = range.start;
        while at < range.end {
            let mut name = [0u8; 64];
            let mut query = ProcmapQuery {
                size: size_of::<ProcmapQuery>() as u64,
                query_flags: COVERING_OR_NEXT,
                query_addr: at,
                ..ProcmapQuery::default()
            };
            self.query(&mut query)?;
            if query.vma_start > at || query.vma_end <= at {
                return Ok(false);
            }
            let is_shared = query.vma_flags & SHARED != 0;
            // Shared memory without a file has an inode, too.
            if is_shared || query.inode != 0 {
                query.query_addr = at;
                (query.vma_name_size, query.vma_name_addr) =
                    (name.len() as u32, name.as_mut_ptr() as u64);
                // A name that does not fit is another name.
                let name = match self.query(&mut query) {
                    Ok(()) => name.split(|byte| *byte == 0).next().unwrap_or_default(),
                    Err(_) => &[],
                };
                if owner_of(is_shared, true, name) < least {
                    return Ok(false);
                }
            }
            at = query.vma_end;
        }
        Ok(true)
    }

    fn query(&self, query: &mut ProcmapQuery) -> std::io::Result<()> {
        // SAFETY: the request takes this structure, in this length; the name has the length that it
        // states.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), QUERY as _, &raw mut *query) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Reads all mappings from the first one to the end of the range.
    fn read(&self, range: &Range<u64>, least: MemoryOwner) -> std::io::Result<bool> {
        let mut file = &self.file;
        file.rewind()?;
        let mut lines = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        let mut at = range.start;
        while at < range.end {
            line.clear();
            if lines.read_until(b'\n', &mut line)? == 0 {
                return Ok(false);
            }
            let Some(mapping) = parse(&String::from_utf8_lossy(&line)) else {
                return Ok(false);
            };
            if mapping.range.end <= at {
                continue;
            }
            if mapping.range.start > at || mapping.owner < least {
                return Ok(false);
            }
            at = mapping.range.end;
        }
        Ok(true)
    }
}

/// Who can take the pages of a mapping, if it is of a file of this name.
fn owner_of(is_shared: bool, is_file: bool, name: &[u8]) -> MemoryOwner {
    if name.starts_with(SEGMENTS.as_bytes()) {
        return MemoryOwner::Segment;
    }
    let is_own_file = name == HUGE_PAGES.as_bytes() || name == b"/anon_hugepage (deleted)";
    match !is_shared && (!is_file || is_own_file) {
        true => MemoryOwner::Private,
        false => MemoryOwner::Shared,
    }
}

/// A line of `/proc/self/maps`: `start-end rwxp offset device inode   name`.
fn parse(line: &str) -> Option<MemoryMapping> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    let range = number(start)?..number(end)?;
    let is_shared = words.next()?.ends_with('s');
    let inode = words.nth(2)?;
    let name = words.next().unwrap_or("");
    Some(MemoryMapping {
        range,
        owner: owner_of(is_shared, inode != "0", name.as_bytes()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_say_whose_a_mapping_is() {
        let cases = [
            (
                "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n",
                Some(true),
            ),
            (
                "7f0000000000-7f0000001000 rw-p 00000000 00:00 0                          [heap]\n",
                Some(true),
            ),
            (
                "7f0000000000-7f0000001000 rw-s 00000000 00:01 1027                       /dev/zero (deleted)\n",
                Some(false),
            ),
            (
                "7f0000000000-7f0000001000 rw-p 00000000 00:01 1027                       /memfd:x (deleted)\n",
                Some(false),
            ),
            (
                "7f0000000000-7f0000001000 rw-p 00000000 00:0f 9                          /anon_hugepage (deleted)\n",
                Some(true),
            ),
            (
                "7f0000000000-7f0000001000 rw-s 00000000 00:0f 9                          /anon_hugepage (deleted)\n",
                Some(false),
            ),
            (
                "7f0000000000-7f0000001000 rw-p 00000000 00:0f 9                          /anon_hugepages\n",
                Some(false),
            ),
            ("7f0000000000 rw-p", None),
            ("", None),
        ];
        for (line, is_private) in cases {
            let range = 0x7f00_0000_0000..0x7f00_0000_1000;
            let parsed = parse(line);
            assert!(
                parsed.iter().all(|mapping| mapping.range == range),
                "{line}"
            );
            let parsed = parsed.map(|mapping| mapping.owner == MemoryOwner::Private);
            assert_eq!(parsed, is_private, "{line}");
        }
    }

    /// A System V segment counts as shared by both kinds of query: the kernel may not report its
    /// `shmdt`.
    #[test]
    fn segments_are_shared() {
        const BYTES: usize = 1 << 16;
        // SAFETY: a new segment at a free place, which goes with its attachment.
        let at = unsafe {
            let segment = libc::shmget(libc::IPC_PRIVATE, BYTES, 0o600);
            assert!(segment >= 0, "{}", std::io::Error::last_os_error());
            let at = libc::shmat(segment, std::ptr::null(), 0);
            libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
            at
        };
        assert_ne!(at as isize, -1, "{}", std::io::Error::last_os_error());
        let range = at as u64..at as u64 + BYTES as u64;
        let mappings = Mappings::open().unwrap();
        let read = |least| mappings.read(&range, least).unwrap();
        let private = [mappings.are_private(&range), read(MemoryOwner::Private)];
        let reported = [mappings.are_reported(&range), read(MemoryOwner::Shared)];
        // SAFETY: attached above, and nobody refers to it.
        assert_eq!(unsafe { libc::shmdt(at) }, 0);
        assert_eq!((private, reported), ([false; 2], [false; 2]));
    }

    /// The two kinds of query agree about the mappings of this program, and about ranges across
    /// them.
    #[test]
    fn answers_and_lists_agree() {
        let mappings = Mappings::open().unwrap();
        if mappings.ask(&(0..1), MemoryOwner::Private).is_err() {
            println!("SKIP: this kernel has no PROCMAP_QUERY");
            return;
        }
        let all = std::fs::read_to_string("/proc/self/maps").unwrap();
        let all: Vec<_> = all.lines().filter_map(parse).collect();
        let (mut private, mut other) = (0, 0);
        for mapping in &all {
            let Range { start, end } = mapping.range;
            // Other tests' threads map and unmap: ranges that have changed since are not compared.
            let [inside, across] = [start..end, start..end + 1].map(|range| {
                [MemoryOwner::Private, MemoryOwner::Shared]
                    .iter()
                    .all(|&least| {
                        let read = mappings.read(&range, least).unwrap();
                        mappings.ask(&range, least).is_ok_and(|asked| asked == read)
                    })
            });
            let same = inside && across;
            let is_private = mapping.owner == MemoryOwner::Private;
            private += usize::from(same && is_private);
            other += usize::from(same && !is_private);
        }
        assert!(
            private > 0 && other > 0,
            "{private} and {other} of {}",
            all.len()
        );
        assert!(
            private + other >= all.len() * 9 / 10,
            "{private} and {other} of {}",
            all.len()
        );
    }
}
