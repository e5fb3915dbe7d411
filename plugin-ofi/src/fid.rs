//! Objects that C holds by a pointer to their `fid`.
//!
//! Each is an `Arc` that was given away: an object holds those that it was opened on or bound to,
//! and `fi_close` refuses an object that others still hold (`-FI_EBUSY`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use ferrofabric_contracts::error::Errno;

use crate::abi::{fi_ops, fid};
use crate::guard::control;
use crate::unsupported::Unsupported;

/// libfabric's structure at the beginning of an object. It is C's to use: nothing of ours reads it
/// after the object is made.
#[repr(transparent)]
pub(crate) struct Given<T>(UnsafeCell<T>);

// SAFETY: nothing of ours reads what is in there, and C keeps its own rules for it.
unsafe impl<T: Copy> Send for Given<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Given<T> {}

impl<T: Copy> Given<T> {
    pub(crate) fn new(raw: T) -> Self {
        Self(UnsafeCell::new(raw))
    }
}

/// An object whose first field is libfabric's structure for it, which starts with a `fid`.
///
/// # Safety
///
/// The type is `repr(C)` with a `Given<Raw>` first; `Raw` starts with a `fid`, whose class is
/// `CLASS`.
pub(crate) unsafe trait Object: Sized + 'static {
    /// libfabric's structure.
    type Raw;
    /// The number of the kind of object (`FI_CLASS_CQ`, …).
    const CLASS: usize;
}

/// The `fid` of a new object.
pub(crate) fn new_fid<T: Object>(context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid {
        fclass: T::CLASS,
        context,
        ops: std::ptr::from_ref(ops).cast_mut(),
    }
}

/// Operations of an object that can only be closed.
pub(crate) const fn ops_of<T: Object>() -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close::<T>),
        bind: Some(Unsupported::ENOSYS),
        control: Some(Unsupported::ENOSYS),
        ops_open: Some(Unsupported::ENOSYS),
        tostr: Some(Unsupported::ENOSYS),
        ops_set: Some(Unsupported::ENOSYS),
    }
}

/// Gives an object to C, by way of the pointer that the call fills in.
///
/// # Safety
///
/// `out` may be written.
pub(crate) unsafe fn hand_out<T: Object>(object: Arc<T>, out: *mut *mut T::Raw) {
    let raw = Arc::into_raw(object).cast::<T::Raw>().cast_mut();
    // SAFETY: as the caller says.
    unsafe { out.write(raw) };
}

/// The object of a pointer that C has.
///
/// # Safety
///
/// `raw` came from [`hand_out`] of that type and is not closed while the result is used.
#[inline]
pub(crate) unsafe fn object<'a, T: Object>(raw: *const T::Raw) -> &'a T {
    // SAFETY: the structure is the object's first field.
    unsafe { &*raw.cast::<T>() }
}

/// As [`object`], to keep.
///
/// # Safety
///
/// As [`object`].
pub(crate) unsafe fn share<T: Object>(raw: *const T::Raw) -> Arc<T> {
    let object = raw.cast::<T>();
    // SAFETY: it is an `Arc`'s, which C holds.
    unsafe {
        Arc::increment_strong_count(object);
        Arc::from_raw(object)
    }
}

/// As [`share`], for an object of any kind: `None` when it is of another one.
///
/// # Safety
///
/// `fid` is that of one of our objects, and not closed.
pub(crate) unsafe fn share_if<T: Object>(fid: *const fid) -> Option<Arc<T>> {
    // SAFETY: as the caller says; every object starts with a `fid`.
    unsafe { ((*fid).fclass == T::CLASS).then(|| share::<T>(fid.cast())) }
}

/// `fi_close`.
unsafe extern "C" fn close<T: Object>(fid: *mut fid) -> c_int {
    control(|| {
        // SAFETY: C gives back what `hand_out` gave it.
        let object = unsafe { Arc::from_raw(fid.cast::<T>().cast_const()) };
        if Arc::strong_count(&object) > 1 {
            let _ = Arc::into_raw(object);
            return Err(Errno::EBUSY);
        }
        drop(object);
        Ok(())
    })
}
