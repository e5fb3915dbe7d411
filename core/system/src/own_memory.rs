//! Whether memory of this process is there, so that an access to it ends in no signal.

use std::ffi::c_void;

use nix::errno::Errno;

use crate::shared_memory::page_bytes;

/// Whether each byte of a range can be read, or written, now. Its pages are there afterwards.
///
/// Kernels before 5.14 say of each page only whether it is mapped.
pub fn is_there(addr: usize, len: usize, to_be_written: bool) -> bool {
    let page = page_bytes();
    let Some(end) = addr.checked_add(len) else {
        return false;
    };
    if len == 0 {
        return true;
    }
    let first = addr - addr % page;
    let Some(len) = (end - first).checked_next_multiple_of(page) else {
        return false;
    };
    let advice = match to_be_written {
        true => libc::MADV_POPULATE_WRITE,
        false => libc::MADV_POPULATE_READ,
    };
    let at = std::ptr::without_provenance_mut::<c_void>(first);
    loop {
        // SAFETY: it changes no byte: pages that are mapped get what they would get at an access.
        match Errno::result(unsafe { libc::madvise(at, len, advice) }) {
            Ok(_) => return true,
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(Errno::EINVAL) if !is_known(advice) => return is_mapped(first, len / page, page),
            // There is no page, or it does not allow the access.
            Err(_) => return false,
        }
    }
}

/// Whether the kernel knows an advice: it takes that for no bytes at all.
fn is_known(advice: i32) -> bool {
    // SAFETY: no memory is concerned.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, advice) == 0 }
}

/// Whether pages are mapped.
fn is_mapped(first: usize, pages: usize, page: usize) -> bool {
    const AT_ONCE: usize = 4096;
    let mut residence = [0; AT_ONCE];
    (0..pages).step_by(AT_ONCE).all(|done| {
        let at = std::ptr::without_provenance_mut(first + done * page);
        let count = AT_ONCE.min(pages - done);
        // SAFETY: there is a byte for each page.
        let looked = unsafe { libc::mincore(at, count * page, residence.as_mut_ptr()) };
        looked == 0
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    /// Three pages, of which the one in the middle is not mapped.
    fn with_a_hole(protection: i32) -> (usize, usize) {
        let page = page_bytes();
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory, of which nobody else knows.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), 3 * page, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at.byte_add(page), page), 0);
            (at.addr(), page)
        }
    }

    #[test]
    fn memory_is_there_or_not() {
        let (at, page) = with_a_hole(libc::PROT_READ | libc::PROT_WRITE);
        for write in [false, true] {
            assert!(is_there(at, page, write) && is_there(at + 1, page - 1, write));
            assert!(is_there(at + 2 * page + 7, 3, write));
            assert!(!is_there(at, page + 1, write) && !is_there(at + page - 1, 2, write));
            assert!(!is_there(at + page, 1, write) && !is_there(at, 3 * page, write));
            assert!(!is_there(16, 8, write) && !is_there(usize::MAX - 8, 8, write));
            assert!(!is_there(usize::MAX - 8, 9, write) && !is_there(at, usize::MAX, write));
            assert!(is_there(0, 0, write));
        }
        assert!(is_mapped(at, 1, page) && !is_mapped(at, 2, page));
    }

    #[test]
    fn memory_that_is_read_only_is_not_written() {
        let (at, page) = with_a_hole(libc::PROT_READ);
        assert!(is_there(at, page, false));
        assert!(!is_there(at, page, true));
    }
}
