//! Whether an object belongs to this process, or was inherited by a fork.
//!
//! A child has its parent's objects: the same sockets, the same shared memory, but none of its
//! threads. A use of such an object by the child would hit the parent. Each object that reaches
//! beyond its process keeps the [`Birth`] of its process, and does nothing in any other one.

use std::os::fd::RawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::thread::JoinHandle;

/// Forks between the first process that counts and this one. The handler that counts them runs in
/// each child.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// The process in which an object was made. Comparing it costs one load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Birth {
    generation: u32,
    /// The process ID, where forks can not be counted; else 0.
    pid: u32,
}

impl Birth {
    /// This process.
    pub fn here() -> Self {
        let pid = match counts_forks() {
            true => 0,
            false => std::process::id(),
        };
        Self {
            generation: GENERATION.load(Ordering::Relaxed),
            pid,
        }
    }

    /// Whether it is this process that runs now. Safe to call in a child that has just been forked.
    #[inline]
    pub fn is_this_process(&self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
            && (self.pid == 0 || self.pid == std::process::id())
    }
}

/// Ends threads when the object that they work for goes: says to them that they are to end with
/// `stop`, and waits for them. A child of fork has none of them, and knows their handles alone: it
/// leaves the threads as well as the handles alone.
pub fn end_threads<T>(
    birth: Birth,
    threads: impl IntoIterator<Item = JoinHandle<T>>,
    stop: impl FnOnce(),
) {
    if !birth.is_this_process() {
        threads.into_iter().for_each(std::mem::forget);
        return;
    }
    stop();
    for thread in threads {
        // It panics no more than what it does for the application.
        let _ = thread.join();
    }
}

/// Has children counted, from the first call on; false where the system has no memory for that.
fn counts_forks() -> bool {
    static COUNTS: OnceLock<bool> = OnceLock::new();
    // SAFETY: the handler is a function of this library, which takes the handler back when it is
    // unloaded; the handler does nothing but count, which is allowed in a child.
    *COUNTS.get_or_init(|| unsafe { libc::pthread_atfork(None, None, Some(is_child)) } == 0)
}

/// Runs in each child before `fork` returns there: it has one thread, and no order of memory
/// matters.
unsafe extern "C" fn is_child() {
    let parent = GENERATION.fetch_add(1, Ordering::Relaxed);
    let mut next = UNSHARED.load(Ordering::Acquire);
    // SAFETY: entries live as long as the process, and what is done here is allowed in a child.
    while let Some(entry) = unsafe { next.as_ref() } {
        // Only those of the parent: the numbers of others may be other files by now.
        let is_parents = entry.generation.load(Ordering::Relaxed) == parent;
        if entry.state.load(Ordering::Acquire) == IN_USE && is_parents {
            let stand_in = entry.stand_in.load(Ordering::Relaxed);
            let descriptor = entry.descriptor.load(Ordering::Relaxed);
            // SAFETY: both are open, for the entry is in use. Should it fail, both processes have it.
            unsafe { libc::dup3(stand_in, descriptor, libc::O_CLOEXEC) };
        }
        next = entry.next.load(Ordering::Relaxed);
    }
}

/// A descriptor that children of fork do not share: in a child its number stands for another file.
/// So the locks of its open file description end with this process, however long a child lives.
///
/// A child that is made by `clone(2)` itself, without the C library, shares it all the same.
#[derive(Debug)]
pub struct Unshared(&'static UnsharedEntry);

/// An entry is used again, and never freed.
#[derive(Debug)]
struct UnsharedEntry {
    /// `VACANT`, `CLAIMED` while it is filled in, or `IN_USE`.
    state: AtomicU32,
    descriptor: AtomicI32,
    stand_in: AtomicI32,
    /// The generation of the process whose descriptor it is.
    generation: AtomicU32,
    next: AtomicPtr<UnsharedEntry>,
}

const VACANT: u32 = 0;
const CLAIMED: u32 = 1;
const IN_USE: u32 = 2;

/// The first entry. The handler in a child can take no lock, so none guards them.
static UNSHARED: AtomicPtr<UnsharedEntry> = AtomicPtr::new(std::ptr::null_mut());

impl Unshared {
    /// In children, `descriptor` is replaced by a copy of `stand_in`. Both stay open as long as this
    /// value lives.
    pub fn new(descriptor: RawFd, stand_in: RawFd) -> Self {
        counts_forks();
        let entry = Self::claim();
        entry.descriptor.store(descriptor, Ordering::Relaxed);
        entry.stand_in.store(stand_in, Ordering::Relaxed);
        let generation = GENERATION.load(Ordering::Relaxed);
        entry.generation.store(generation, Ordering::Relaxed);
        entry.state.store(IN_USE, Ordering::Release);
        Self(entry)
    }

    /// An entry that no other thread gets.
    fn claim() -> &'static UnsharedEntry {
        let mut next = UNSHARED.load(Ordering::Acquire);
        // SAFETY: entries live as long as the process.
        while let Some(entry) = unsafe { next.as_ref() } {
            let claimed = (entry.state).compare_exchange(
                VACANT,
                CLAIMED,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if claimed.is_ok() {
                return entry;
            }
            next = entry.next.load(Ordering::Relaxed);
        }
        let new = Box::leak(Box::new(UnsharedEntry {
            state: AtomicU32::new(CLAIMED),
            descriptor: AtomicI32::new(-1),
            stand_in: AtomicI32::new(-1),
            generation: AtomicU32::new(0),
            next: AtomicPtr::default(),
        }));
        let mut first = UNSHARED.load(Ordering::Relaxed);
        loop {
            new.next.store(first, Ordering::Relaxed);
            let swapped =
                UNSHARED.compare_exchange_weak(first, new, Ordering::Release, Ordering::Relaxed);
            match swapped {
                Ok(_) => return new,
                Err(other) => first = other,
            }
        }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        self.0.state.store(VACANT, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    /// Forks, and has the child say yes or no. The child may do no more than compare, for other
    /// threads hold locks.
    fn child_says(question: impl FnOnce() -> bool) -> bool {
        // SAFETY: the child compares numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(question());
            // SAFETY: ends the child without running what belongs to the parent.
            unsafe { libc::_exit(status) };
        }
        let mut status = 0;
        // SAFETY: our own child, and a place for its status.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(waited, child);
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_child_is_another_process_and_a_grandchild_a_third_one() {
        let birth = Birth::here();
        assert!(birth.is_this_process());
        assert!(!child_says(|| birth.is_this_process()));
        assert!(child_says(|| {
            let own = Birth::here();
            own.is_this_process() && own != birth
        }));
        assert!(child_says(|| {
            let own = Birth::here();
            !child_says(|| own.is_this_process() || birth.is_this_process())
        }));
        assert!(birth.is_this_process());
    }

    #[test]
    fn without_counted_forks_the_process_id_decides() {
        let mut birth = Birth::here();
        birth.pid = std::process::id();
        assert!(birth.is_this_process());
        birth.pid += 1;
        assert!(!birth.is_this_process());
    }

    /// In a child the number stands for another file; in this process and after the drop it is what
    /// it was.
    #[test]
    fn a_child_gets_another_file() {
        let own = std::fs::File::open("/dev/null").unwrap();
        let stand_in = std::fs::File::open("/proc/self/stat").unwrap();
        let inode_of = |number: RawFd| {
            // SAFETY: all zeroes is a valid record, and there is a place for it.
            unsafe {
                let mut about: libc::stat = std::mem::zeroed();
                assert_eq!(libc::fstat(number, &raw mut about), 0);
                (about.st_dev, about.st_ino)
            }
        };
        let (own, stand_in) = (own.as_raw_fd(), stand_in.as_raw_fd());
        let (before, other) = (inode_of(own), inode_of(stand_in));
        assert_ne!(before, other);
        let child_has = |wanted| child_says(|| inode_of(own) == wanted);
        assert!(child_has(before));
        for _ in 0..2 {
            let unshared = Unshared::new(own, stand_in);
            assert!(child_has(other));
            assert_eq!(inode_of(own), before);
            drop(unshared);
            assert!(child_has(before));
        }
        // A child of a child may have the number for something else by then.
        let _unshared = Unshared::new(own, stand_in);
        assert!(child_says(|| {
            // SAFETY: puts a third file there.
            let third = unsafe { libc::dup2(1, own) };
            third == own && child_says(|| inode_of(own) == inode_of(1))
        }));
    }
}
