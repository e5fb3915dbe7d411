use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// Pages that a test owns and may unmap in any way.
struct TestPages {
    at: u64,
    bytes: u64,
}

impl TestPages {
    fn map(count: u64) -> Self {
        let bytes = count * page_bytes();
        // SAFETY: a new mapping, written once.
        let at = unsafe {
            let at = libc::mmap(
                ptr::null_mut(),
                bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            ptr::write_bytes(at.cast::<u8>(), 1, bytes as usize);
            at as u64
        };
        Self { at, bytes }
    }

    fn range(&self) -> Range<u64> {
        self.at..self.at + self.bytes
    }

    fn as_ptr(&self) -> *mut libc::c_void {
        self.at as *mut libc::c_void
    }
}

/// A watcher, or none if the kernel or a container does not allow it.
fn watcher() -> Option<Watcher> {
    match Watcher::start() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            println!("SKIP {error}");
            None
        }
    }
}

type UnmapWay = (&'static str, fn(&TestPages));

/// Each way in which a mapping can lose memory.
const WAYS: [UnmapWay; 5] = [
    ("munmap", |pages| {
        // SAFETY: the test's own mapping, which nobody refers to.
        let done = unsafe { libc::munmap(pages.as_ptr(), pages.bytes as usize) };
        assert_eq!(done, 0);
    }),
    ("MADV_DONTNEED", |pages| {
        // SAFETY: as above.
        let done =
            unsafe { libc::madvise(pages.as_ptr(), pages.bytes as usize, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }),
    ("MADV_FREE", |pages| {
        // SAFETY: as above.
        let done = unsafe { libc::madvise(pages.as_ptr(), pages.bytes as usize, libc::MADV_FREE) };
        assert_eq!(done, 0);
    }),
    ("mmap over it", |pages| {
        // SAFETY: as above.
        let at = unsafe {
            libc::mmap(
                pages.as_ptr(),
                pages.bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_eq!(at, pages.as_ptr());
    }),
    ("mremap", |pages| {
        let elsewhere = TestPages::map(pages.bytes / page_bytes());
        // SAFETY: as above, and so is the range that it moves to.
        let at = unsafe {
            libc::mremap(
                pages.as_ptr(),
                pages.bytes as usize,
                pages.bytes as usize,
                libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
                elsewhere.as_ptr(),
            )
        };
        assert_eq!(at, elsewhere.as_ptr());
    }),
];

/// After any call that takes memory away, the next look reports it, or reports that the log is
/// incomplete.
#[test]
fn unmapped_memory_is_reported_before_the_call_returns() {
    let Some(mut watcher) = watcher() else {
        return;
    };
    for (way, go) in WAYS {
        for round in 0..100 {
            let pages = TestPages::map(4);
            assert!(watcher.watch(pages.range()), "{way}");
            go(&pages);
            let mut told = false;
            let looked = watcher.catch_up(|gone| match gone {
                Unmapped::Range(range) | Unmapped::Soon(range) => {
                    told |= range.start <= pages.at && pages.range().end <= range.end;
                }
                Unmapped::Much => told = true,
            });
            assert!(told || !looked, "{way}, round {round}");
            if !told {
                assert!(
                    is_reported(&mut watcher.follower, &pages.range()),
                    "{way}, round {round}"
                );
            }
        }
    }
}

/// If several threads unmap at full speed, with the allocator's locks held at times, no thread
/// waits for ever and no range is missed.
#[test]
fn concurrent_unmaps_all_go_on() {
    let Some(watcher) = watcher() else {
        return;
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let unmapping: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut follower = watcher.follower();
                    for _ in 0..500 {
                        let pages = TestPages::map(2);
                        assert!(watcher.watch(pages.range()));
                        // Unmapped when it is freed.
                        let long = vec![1u8; 1 << 20];
                        let at = long.as_ptr() as u64;
                        assert!(watcher.watch(at..at + long.len() as u64));
                        drop(long);
                        WAYS[0].1(&pages);
                        assert!(is_reported(&mut follower, &pages.range()));
                    }
                })
            })
            .collect();
        let allocating = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop((1..64).map(|n| vec![0u8; n << 12]).collect::<Vec<_>>());
            }
        });
        for thread in unmapping {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        over.store(true, Ordering::Relaxed);
        allocating
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

/// After the last watcher nobody reads events; a thread that unmaps formerly watched memory still
/// goes on, even while a child has the descriptor.
#[test]
fn unmapping_continues_after_the_last_watcher() {
    if watcher().is_none() {
        return;
    }
    // This monitor has no other user, so it ends.
    let monitor = Monitor::start().unwrap();
    let pages: Vec<_> = WAYS.iter().map(|_| TestPages::map(3)).collect();
    for pages in &pages {
        assert!(monitor.watch(pages.range()));
    }
    // As a child's descriptor would be: it keeps the kernel's object alive.
    let childs = monitor
        .source
        .userfault
        .as_fd()
        .try_clone_to_owned()
        .unwrap();
    drop(monitor);
    for ((_, go), pages) in WAYS.iter().zip(&pages) {
        go(pages);
    }
    drop(childs);
}

/// A child that closes its copy of the parent's watcher does not change the parent's.
#[test]
fn a_child_ends_nothing_of_its_parents() {
    if watcher().is_none() {
        return;
    }
    let monitor = Monitor::start().unwrap();
    let mut follower = monitor.follower();
    let pages = TestPages::map(2);
    assert!(monitor.watch(pages.range()));
    // SAFETY: the child drops objects made before the fork, and ends without a return.
    match unsafe { libc::fork() } {
        0 => {
            drop(monitor);
            // SAFETY: ends the child alone.
            unsafe { libc::_exit(0) };
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for a child of this process.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    }
    WAYS[0].1(&pages);
    assert!(is_reported(&mut follower, &pages.range()));
}

/// The kernel reports no event when a file is unmapped: files are not watched.
#[test]
fn files_without_reports_are_not_watched() {
    let Some(watcher) = watcher() else {
        return;
    };
    // Of the program's file.
    let code = files_without_reports_are_not_watched as *const () as u64;
    assert!(!watcher.watch(code..code + 1));
    assert!(!watcher.watch(u64::MAX - 1..u64::MAX));
}

/// A file, in memory or not, can be punched or truncated through any of its descriptors, and a
/// child can change memory that it shares: the kernel does not report that, so such memory is not
/// watched.
#[test]
fn shared_memory_is_not_watched() {
    let Some(watcher) = watcher() else {
        return;
    };
    let page = page_bytes() as usize;
    // SAFETY: takes a name and flags.
    let file = unsafe { libc::memfd_create(c"shared".as_ptr(), 0) };
    assert!(file >= 0);
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(file, 4 * page as i64) }, 0);
    let kinds = [
        ("a shared mapping of a file", libc::MAP_SHARED, file),
        ("a private mapping of a file", libc::MAP_PRIVATE, file),
        (
            "a shared mapping of none",
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
        ),
    ];
    for (what, flags, file) in kinds {
        // Between pages that only this process can reach, in one range with them and alone.
        let pages = TestPages::map(6);
        let inner = pages.at + page as u64;
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: replaces pages that the test owns, to which nothing refers.
        let at = unsafe {
            libc::mmap(
                inner as _,
                4 * page,
                rights,
                flags | libc::MAP_FIXED,
                file,
                0,
            )
        };
        assert_eq!(at as u64, inner, "{}", std::io::Error::last_os_error());
        let shared = inner..inner + 4 * page as u64;
        assert!(!watcher.watch(shared.clone()), "{what} is watched");
        assert!(
            !watcher.watch(shared.start + 100..shared.start + 200),
            "a part of {what} is watched"
        );
        assert!(
            !watcher.watch(pages.range()),
            "{what} is watched together with the memory around it"
        );
        assert!(
            watcher.watch(pages.at..inner),
            "the page before {what} is not"
        );
        assert!(
            watcher.watch(shared.end..pages.range().end),
            "the page behind {what} is not"
        );
        WAYS[0].1(&pages);
    }
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::close(file) }, 0);
}

#[test]
fn what_is_watched_is_noted_joined() {
    let mut watched = BTreeMap::new();
    for range in [10..20, 30..40, 20..25, 24..31, 50..60] {
        note(&mut watched, range);
    }
    assert_eq!(watched, BTreeMap::from([(10, 40), (50, 60)]));
    note(&mut watched, 0..100);
    assert_eq!(watched, BTreeMap::from([(0, 100)]));
}
