//! Memory that ends where nothing may be touched: a structure at its end is read to its end and no
//! further, or the test dies.

use std::ptr::{NonNull, null_mut};

/// A page, and behind it one without access.
#[derive(Debug)]
pub struct GuardedPage {
    start: *mut u8,
    page: usize,
}

impl GuardedPage {
    /// Maps both.
    pub fn new() -> Self {
        // SAFETY: a new mapping, whose second page nobody may touch.
        unsafe {
            let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
            let (rw, private) = (
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            );
            let start = libc::mmap(null_mut(), 2 * page, rw, private, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            let start = start.cast::<u8>();
            assert_eq!(
                libc::mprotect(start.add(page).cast(), page, libc::PROT_NONE),
                0
            );
            Self { start, page }
        }
    }

    /// The first `bytes` of a structure, so that they end where the page does. There is nothing
    /// behind them to read or write.
    pub fn first_bytes<T>(&self, of: &T, bytes: usize) -> *mut T {
        assert!(bytes <= size_of::<T>() && bytes <= self.page && bytes % align_of::<T>() == 0);
        // SAFETY: it is within the page.
        unsafe {
            let to = self.start.add(self.page - bytes);
            to.copy_from(std::ptr::from_ref(of).cast(), bytes);
            to.cast()
        }
    }

    /// A whole structure there.
    pub fn whole<T>(&self, of: &T) -> *mut T {
        self.first_bytes(of, size_of::<T>())
    }

    /// A whole structure that nobody may write to, as constants of a program are.
    pub fn constant<T>(&self, of: &T) -> *mut T {
        let at = self.whole(of);
        // SAFETY: the first page is this one's.
        let protected = unsafe { libc::mprotect(self.start.cast(), self.page, libc::PROT_READ) };
        assert_eq!(protected, 0);
        at
    }

    /// Where nothing may be touched.
    pub fn forbidden(&self) -> NonNull<u8> {
        NonNull::new(self.start.wrapping_add(self.page)).unwrap()
    }
}

impl Drop for GuardedPage {
    fn drop(&mut self) {
        // SAFETY: both pages are this one's.
        unsafe { libc::munmap(self.start.cast(), 2 * self.page) };
    }
}
