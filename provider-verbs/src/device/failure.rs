//! Errors of verbs calls, with advice where the number alone is not enough.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use ferrofabric_contracts::error::{Errno, Error};
use ferrofabric_verbs_sys::LoadError;

/// The thread's errno, after a call that returned null or -1.
pub(crate) fn last_errno() -> i32 {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Forgets the thread's errno before a call whose failure may leave it as it was: some drivers
/// refuse to create a queue pair and set none.
pub(crate) fn clear_errno() {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = 0 };
}

/// The error of a verbs call. Drivers return errno positive or negative.
#[cold]
pub(crate) fn failed(errno: i32, doing: &'static str, object: impl Into<String>) -> Error {
    let errno = errno.abs();
    let error = Error::new(Errno(errno), doing, object);
    match advice(errno) {
        Some(mend) => error.mend(mend),
        None => error,
    }
}

/// The error of a library that could not be loaded.
#[cold]
pub(crate) fn not_loaded(error: LoadError) -> Error {
    match error {
        LoadError::Open {
            library,
            reason,
            mend,
        } => Error::new(Errno::ENOENT, "load", format!("{library} ({reason})")).mend(mend),
        LoadError::Symbol {
            library,
            symbol,
            mend,
            ..
        } => Error::new(
            Errno::ENOSYS,
            "load",
            format!("{library}, which lacks {symbol}"),
        )
        .mend(mend),
    }
}

/// The reason of operations that end because their device failed.
pub(crate) fn device_failed(name: &str) -> &'static str {
    constant(format!(
        "device {name} failed: reset or replace it (the kernel's log has the cause), then open the \
         domain again"
    ))
}

/// The reason of operations that end because a queue of their endpoint failed.
pub(crate) fn device_queue_failed(name: &str) -> &'static str {
    constant(format!(
        "a queue of the endpoint on device {name} failed: close the endpoint and open it again"
    ))
}

/// A text that lives as long as the process, as the reasons of failed operations do. It is kept
/// once, so there is one for each device.
fn constant(text: String) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(&*text) {
        return known;
    }
    let kept = Box::leak(text.into_boxed_str());
    texts.insert(kept);
    kept
}

fn advice(errno: i32) -> Option<&'static str> {
    Some(match errno {
        libc::EACCES | libc::EPERM => {
            "this user needs read and write access to /dev/infiniband/uverbs* (often: membership of the group rdma)"
        }
        libc::ENODEV | libc::EIO => "the device may have been removed or reset: open it again",
        libc::EMFILE => "raise the limit of open files (ulimit -n)",
        libc::EOPNOTSUPP | libc::ENOSYS => "this device or its driver does not have the feature",
        libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH => {
            "the address was not resolved: check that the peer's host answers on this network (ip neigh)"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_errno_is_read_as_its_positive() {
        assert_eq!(failed(-libc::ENOMEM, "post", "x").errno(), Errno::ENOMEM);
    }

    #[test]
    fn a_missing_library_says_what_to_install() {
        let text = not_loaded(LoadError::Open {
            library: "libibverbs.so.1",
            reason: "no such file".into(),
            mend: "install libibverbs1",
        })
        .to_string();
        assert!(
            text.contains("no such file") && text.contains("install libibverbs1"),
            "{text}"
        );
    }
}
