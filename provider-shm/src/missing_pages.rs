//! Pages that never come, for tests: a fault in them waits for a handler that does not exist.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use memmap2::{MmapMut, MmapOptions};

const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_ZEROPAGE: libc::c_ulong = 0xc020_aa04;
const DONT_WAKE: u64 = 1;
/// Protocol of the descriptor, and faults for pages that are missing.
const API: u64 = 0xaa;
const MISSING: u64 = 1;

/// A number of bytes that is whole pages on every machine.
const WHOLE_PAGES: usize = 64 << 10;

/// Pages that are missing. A read of them waits until this is dropped.
pub(crate) struct MissingPages {
    /// Dropped first: that ends all waits.
    faults: OwnedFd,
    pages: MmapMut,
}

impl MissingPages {
    /// `None` if the kernel refuses.
    pub(crate) fn map(len: usize) -> Option<Self> {
        let len = len.next_multiple_of(WHOLE_PAGES);
        let mut pages = MmapOptions::new().len(len).map_anon().unwrap();
        // SAFETY: the pages are ours. A kernel without huge pages refuses the advice.
        unsafe { libc::madvise(pages.as_mut_ptr().cast(), len, libc::MADV_NOHUGEPAGE) };
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            eprintln!("skipped: no userfaultfd");
            return None;
        }
        // SAFETY: the kernel just made it, and nobody else has it.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = [API, 0, 0];
        let mut range = [pages.as_ptr() as u64, len as u64, MISSING, 0];
        for (request, argument) in [
            (UFFDIO_API, api.as_mut_ptr()),
            (UFFDIO_REGISTER, range.as_mut_ptr()),
        ] {
            // SAFETY: the arguments are as long as the requests say.
            let done = unsafe { libc::ioctl(faults.as_raw_fd(), request, argument) };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
        Some(Self { faults, pages })
    }

    pub(crate) fn addr(&self) -> u64 {
        self.pages.as_ptr() as u64
    }

    /// Maps pages of zeroes in place of those that are missing. Who waits for one goes on waiting.
    pub(crate) fn come(&self) {
        let mut range = [self.addr(), self.pages.len() as u64, DONT_WAKE, 0];
        // SAFETY: the argument has the length of the request. It fails where pages are present.
        unsafe { libc::ioctl(self.faults.as_raw_fd(), UFFDIO_ZEROPAGE, range.as_mut_ptr()) };
    }

    /// Unmaps the pages: they are missing again.
    pub(crate) fn leave(&self) {
        let (at, len) = (self.addr() as *mut libc::c_void, self.pages.len());
        // SAFETY: the pages are ours, and no reference into them exists.
        let done = unsafe { libc::madvise(at, len, libc::MADV_DONTNEED) };
        assert_eq!(done, 0);
    }
}
