//! userfaultfd(2), used for its reports of unmapped memory (ioctl_userfaultfd(2)).
//!
//! Memory is registered for write protection and never protected, so that no access ever faults:
//! only the events remain, and they need no privilege.

use std::fs::File;
use std::io::{Error, Result};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use linux_raw_sys::general as raw;
use linux_raw_sys::ioctl::{UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER};

/// Makes a descriptor of `/dev/userfaultfd`, which may be allowed if the system call is not:
/// `USERFAULTFD_IOC_NEW`.
const DEVICE_NEW: libc::c_ulong = 0xaa00;

const EVENTS: u32 =
    raw::UFFD_FEATURE_EVENT_UNMAP | raw::UFFD_FEATURE_EVENT_REMOVE | raw::UFFD_FEATURE_EVENT_REMAP;

/// Events that one read returns at most.
/// Each makes two entries of the log at most.
pub(super) const AT_A_TIME: usize = ferrofabric_system::event_log::MOST_AT_ONCE / 2;

/// Some memory that is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct UnmapEvent {
    /// Its former range.
    pub(super) range: Range<u64>,
    /// Its new address, if it was moved.
    pub(super) moved_to: Option<u64>,
    /// It is about to go: the thread that gives it up goes on to that once the event is read.
    pub(super) goes_later: bool,
}

/// A descriptor that reports which memory of this process is unmapped.
#[derive(Debug)]
pub(super) struct Userfault(OwnedFd);

impl Userfault {
    /// Opens a descriptor.
    ///
    /// # Errors
    ///
    /// The kernel has no such events, or does not allow them to this process.
    pub(super) fn open() -> Result<Self> {
        let wanted = EVENTS | raw::UFFD_FEATURE_PAGEFAULT_FLAG_WP;
        // The kernel reports huge pages and shared memory since Linux 5.19, other files since 6.7.
        let of_shared = wanted | raw::UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
        Self::with_features(of_shared | raw::UFFD_FEATURE_WP_ASYNC)
            .or_else(|_| Self::with_features(of_shared))
            .or_else(|_| Self::with_features(wanted))
    }

    fn with_features(features: u32) -> Result<Self> {
        let this = Self(Self::descriptor()?);
        let mut api = raw::uffdio_api {
            api: raw::UFFD_API.into(),
            features: features.into(),
            ioctls: 0,
        };
        this.ask(UFFDIO_API, &mut api)?;
        Ok(this)
    }

    fn descriptor() -> Result<OwnedFd> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | raw::UFFD_USER_MODE_ONLY as i32;
        // SAFETY: takes flags alone.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) } as i32;
        let fd = if fd < 0 {
            let refused = Error::last_os_error();
            let device = File::open("/dev/userfaultfd").map_err(|_| refused)?;
            // SAFETY: an open descriptor, and flags.
            unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_NEW as _, flags) }
        } else {
            fd
        };
        match fd {
            0.. => {
                // SAFETY: the descriptor is new and has no other owner.
                Ok(unsafe { OwnedFd::from_raw_fd(fd) })
            }
            _ => Err(Error::last_os_error()),
        }
    }

    /// Watches these whole pages: the descriptor reports from now on when any of them is unmapped.
    ///
    /// # Errors
    ///
    /// Some of the pages are not mapped, or are of a kind that the kernel does not report, or another descriptor watches them.
    pub(super) fn watch(&self, pages: Range<u64>) -> Result<()> {
        let mut registration = raw::uffdio_register {
            range: range(pages),
            mode: raw::UFFDIO_REGISTER_MODE_WP.into(),
            ioctls: 0,
        };
        self.ask(UFFDIO_REGISTER, &mut registration)
    }

    /// Ends the reports of these pages.
    ///
    /// # Errors
    ///
    /// None of the pages is watched, or a part cannot be.
    pub(super) fn unwatch(&self, pages: Range<u64>) -> Result<()> {
        self.ask(UFFDIO_UNREGISTER, &mut range(pages))
    }

    fn ask<T>(&self, request: u32, argument: &mut T) -> Result<()> {
        // SAFETY: each request gets the structure that it takes, which lives as long as the call.
        match unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, &raw mut *argument) } {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        }
    }

    /// Reads the events that are there, without waiting; each thread that caused one goes on then.
    /// Allocates nothing and takes no lock.
    pub(super) fn read(&self, mut report: impl FnMut(UnmapEvent)) {
        // SAFETY: plain numbers, for which zeros will do.
        let mut events: [raw::uffd_msg; AT_A_TIME] = unsafe { std::mem::zeroed() };
        // SAFETY: the buffer has the stated length.
        let bytes = unsafe {
            libc::read(
                self.0.as_raw_fd(),
                events.as_mut_ptr().cast(),
                size_of_val(&events),
            )
        };
        let there = usize::try_from(bytes).unwrap_or(0) / size_of::<raw::uffd_msg>();
        for event in events.iter().take(there) {
            let argument = event.arg;
            match u32::from(event.event) {
                kind @ (raw::UFFD_EVENT_UNMAP | raw::UFFD_EVENT_REMOVE) => {
                    // SAFETY: the member of these events; any bits are a number.
                    let gone = unsafe { argument.remove };
                    report(UnmapEvent {
                        range: gone.start..gone.end,
                        moved_to: None,
                        goes_later: kind == raw::UFFD_EVENT_REMOVE,
                    });
                }
                raw::UFFD_EVENT_REMAP => {
                    // SAFETY: the member of this event; any bits are a number.
                    let moved = unsafe { argument.remap };
                    report(UnmapEvent {
                        range: moved.from..moved.from.saturating_add(moved.len),
                        moved_to: Some(moved.to),
                        goes_later: false,
                    });
                }
                // Other events were not requested.
                _ => {}
            }
        }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn range(pages: Range<u64>) -> raw::uffdio_range {
    raw::uffdio_range {
        start: pages.start,
        len: pages.end - pages.start,
    }
}
