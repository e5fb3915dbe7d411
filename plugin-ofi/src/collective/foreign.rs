//! Calls of objects of the host's other providers, by their tables.

use std::ffi::{c_int, c_void};
use std::ptr::{NonNull, null_mut};

use ferrofabric_contracts::error::Errno;
use ferrofabric_system::cancel::Uncancelled;

use crate::abi::fid;

/// Calls an entry of an object's table; `None` if the table has none.
macro_rules! foreign {
    ($object:expr, $table:ident . $entry:ident ( $($argument:expr),* )) => {{
        let _uncancelled = ferrofabric_system::cancel::Uncancelled::begin();
        let object = $object;
        (*(*object).$table).$entry.map(|entry| entry(object, $($argument),*))
    }};
}
pub(crate) use foreign;

/// The result of a call that returns 0 or a negative errno.
///
/// # Errors
///
/// The error; `ENOSYS`: there is no such call.
pub(crate) fn checked(result: Option<c_int>) -> Result<(), Errno> {
    match result {
        Some(0) => Ok(()),
        Some(error) => Err(Errno(error.wrapping_neg())),
        None => Err(Errno::ENOSYS),
    }
}

/// The object of a call that opens one.
///
/// # Errors
///
/// As of [`checked`].
pub(crate) fn opened<T>(result: Option<c_int>, object: *mut T) -> Result<NonNull<T>, Errno> {
    checked(result)?;
    NonNull::new(object).ok_or(Errno::ENOSYS)
}

/// `fi_close`. An object that does not close is lost.
///
/// # Safety
///
/// It is an object of another provider, and not used any more.
pub(crate) unsafe fn close(object: *mut fid) {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: as the caller says.
    let closed = unsafe { (*(*object).ops).close.map(|close| close(object)) };
    if let Err(errno) = checked(closed) {
        tracing::warn!("an object of another provider does not close: {errno}");
    }
}

/// `fi_ep_bind`.
///
/// # Errors
///
/// As of [`checked`].
///
/// # Safety
///
/// Both are open objects of other providers.
pub(crate) unsafe fn bind(ep: *mut fid, to: *mut fid, flags: u64) -> Result<(), Errno> {
    let _uncancelled = Uncancelled::begin();
    // SAFETY: as the caller says.
    checked(unsafe { (*(*ep).ops).bind.map(|bind| bind(ep, to, flags)) })
}

/// `fi_enable`.
///
/// # Errors
///
/// As of [`checked`].
///
/// # Safety
///
/// It is an open endpoint of another provider.
pub(crate) unsafe fn enable(ep: *mut fid) -> Result<(), Errno> {
    let _uncancelled = Uncancelled::begin();
    let argument: *mut c_void = null_mut();
    // SAFETY: as the caller says.
    checked(unsafe {
        (*(*ep).ops)
            .control
            .map(|control| control(ep, crate::abi::FI_ENABLE, argument))
    })
}
