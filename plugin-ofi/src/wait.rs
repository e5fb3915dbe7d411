//! Wait objects of queues and counters (fi_control(3) with `FI_GETWAIT`), and how long calls wait.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use ferrofabric_contracts::error::{Errno, OpError};

use crate::abi::{FI_GETWAIT, FI_GETWAITOBJ, fi_ops, fi_wait_obj, fid};
use crate::fid::{Object, object_of};
use crate::guard::{Refused, control as controlled};

/// How the application waits for entries of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitObject {
    /// Not at all, or in calls of libfabric: it asked for this one.
    Calls(fi_wait_obj),
    /// On a descriptor.
    Fd,
}

impl WaitObject {
    /// Of objects that are opened without attributes.
    pub(crate) const NONE: Self = Self::Calls(fi_wait_obj::FI_WAIT_NONE);

    /// The wait object of an object's attributes.
    ///
    /// # Errors
    ///
    /// `ENOSYS`: wait sets, mutexes and lists of descriptors, which libfabric 2 calls deprecated or
    /// leaves to the provider.
    pub(crate) fn of(asked: fi_wait_obj) -> Result<Self, Errno> {
        match asked {
            fi_wait_obj::FI_WAIT_NONE
            | fi_wait_obj::FI_WAIT_UNSPEC
            | fi_wait_obj::FI_WAIT_YIELD => Ok(Self::Calls(asked)),
            fi_wait_obj::FI_WAIT_FD => Ok(Self::Fd),
            _ => Err(Errno::ENOSYS),
        }
    }

    fn number(self) -> fi_wait_obj {
        match self {
            Self::Calls(asked) => asked,
            Self::Fd => fi_wait_obj::FI_WAIT_FD,
        }
    }
}

/// An object that one can wait for.
pub(crate) trait Waitable {
    fn wait_object(&self) -> WaitObject;
    fn wait_fd(&self) -> Result<BorrowedFd<'_>, Refused>;
    /// Prepares a wait on the descriptor; `Again` says to read first.
    fn try_wait(&self) -> Result<(), OpError>;
}

/// Operations of an object that can be waited for.
pub(crate) const fn ops_of<T: Object + Waitable>() -> fi_ops {
    fi_ops {
        control: Some(control::<T>),
        ..crate::fid::ops_of::<T>()
    }
}

/// `fi_control` of an object that can be waited for.
unsafe extern "C" fn control<T: Object + Waitable>(
    fid: *mut fid,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    controlled(|| {
        if arg.is_null() {
            return Err(Refused(Errno::EINVAL));
        }
        // SAFETY: as C calls us: an object of this kind, not closed.
        let this = unsafe { object_of::<T>(fid.cast()) };
        match (command, this.wait_object()) {
            (FI_GETWAIT, WaitObject::Fd) => {
                let fd = this.wait_fd()?.as_raw_fd();
                // SAFETY: the argument points to room for a descriptor.
                unsafe { arg.cast::<c_int>().write(fd) };
            }
            (FI_GETWAIT, WaitObject::Calls(_)) => return Err(Refused(Errno::ENODATA)),
            (FI_GETWAITOBJ, wait) => {
                // SAFETY: the argument points to room for the number.
                unsafe { arg.cast::<fi_wait_obj>().write(wait.number()) };
            }
            _ => return Err(Refused(Errno::ENOSYS)),
        }
        Ok(())
    })
}

/// Prepares a wait on the descriptor of an object; `EAGAIN` says to read first.
///
/// # Errors
///
/// `EINVAL` too: the object was opened for no descriptor.
pub(crate) fn try_wait(waitable: &dyn Waitable) -> Result<(), Refused> {
    match waitable.wait_object() {
        WaitObject::Fd => {
            // The application may call this before it reads the descriptor.
            waitable.wait_fd()?;
            Ok(waitable.try_wait()?)
        }
        WaitObject::Calls(_) => Err(Refused(Errno::EINVAL)),
    }
}

/// Milliseconds as libfabric has them: negative ones never end.
pub(crate) fn timeout(ms: c_int) -> Option<Duration> {
    u64::try_from(ms).ok().map(Duration::from_millis)
}
