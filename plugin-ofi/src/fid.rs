//! Objects that C holds by a pointer to their `fid`.
//!
//! Each is an `Arc` that was given away: an object holds those that it was opened on or bound to,
//! and `fi_close` refuses an object that others still hold (`-FI_EBUSY`).

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Arc;

use ferrofabric_contracts::error::Errno;

use crate::abi::{fi_ops, fid};
use crate::guard::{Refused, control};
use crate::unsupported::Unsupported;

/// An object to which C has a pointer.
///
/// # Safety
///
/// `Raw` starts with a `fid`, and [`Object::raw`] puts the given one there.
pub(crate) unsafe trait Object: Sized + 'static {
    /// libfabric's structure.
    type Raw: Copy;
    /// The number of the kind of object (`FI_CLASS_CQ`, …).
    const CLASS: usize;
    /// The operations that all kinds of objects have: one static of this type, by whose address
    /// objects of this provider are known.
    const FID_OPS: &'static fi_ops;

    /// libfabric's structure of an object, which begins with this `fid`.
    fn raw(&self, fid: fid) -> Self::Raw;
}

/// An object that C has a pointer to.
#[repr(C)]
pub(crate) struct Given<T: Object> {
    /// C's to use: nothing of ours reads it after the object is made.
    raw: UnsafeCell<T::Raw>,
    object: T,
}

// SAFETY: nothing of ours reads what is C's, and C keeps its own rules for it.
unsafe impl<T: Object + Send> Send for Given<T> {}
// SAFETY: as above.
unsafe impl<T: Object + Sync> Sync for Given<T> {}

impl<T: Object> Deref for Given<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.object
    }
}

/// An object that C has a pointer to, and that others of ours hold.
pub(crate) type SharedObject<T> = Arc<Given<T>>;

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

/// Gives a new object to C, by way of the pointer that the call fills in.
///
/// # Safety
///
/// `out` may be written.
pub(crate) unsafe fn hand_out<T: Object>(object: T, context: *mut c_void, out: *mut *mut T::Raw) {
    let fid = fid {
        fclass: T::CLASS,
        context,
        ops: std::ptr::from_ref(T::FID_OPS).cast_mut(),
    };
    let given = Arc::new(Given {
        raw: UnsafeCell::new(object.raw(fid)),
        object,
    });
    let raw = Arc::into_raw(given).cast::<T::Raw>().cast_mut();
    // SAFETY: as the caller says.
    unsafe { out.write(raw) };
}

/// Opens an object on one that C has, and gives it to C.
///
/// # Safety
///
/// As [`object_of`], of `parent`; `out` may be written.
pub(crate) unsafe fn open_on<P: Object, T: Object>(
    parent: *const P::Raw,
    context: *mut c_void,
    out: *mut *mut T::Raw,
    open: impl FnOnce(SharedObject<P>) -> Result<T, Refused>,
) -> c_int {
    control(|| {
        // SAFETY: as the caller says.
        let object = open(unsafe { share(parent) })?;
        // SAFETY: as the caller says.
        unsafe { hand_out(object, context, out) };
        Ok::<_, Refused>(())
    })
}

/// The object of a pointer that C has.
///
/// # Safety
///
/// `raw` came from [`hand_out`] of that type and is not closed while the result is used.
#[inline]
pub(crate) unsafe fn object_of<'a, T: Object>(raw: *const T::Raw) -> &'a T {
    // SAFETY: the structure is the first field of the `Given` that C got.
    unsafe { &*raw.cast::<Given<T>>() }
}

/// As [`object_of`], to keep.
///
/// # Safety
///
/// As [`object_of`].
pub(crate) unsafe fn share<T: Object>(raw: *const T::Raw) -> SharedObject<T> {
    let object = raw.cast::<Given<T>>();
    // SAFETY: it is an `Arc`'s, which C holds.
    unsafe {
        Arc::increment_strong_count(object);
        Arc::from_raw(object)
    }
}

/// As [`share`], for an object of any kind: `None` when it is of another one, or of another
/// provider.
///
/// # Safety
///
/// `fid` is that of an object that is not closed.
pub(crate) unsafe fn share_if<T: Object>(fid: *const fid) -> Option<SharedObject<T>> {
    // SAFETY: as the caller says.
    unsafe { is_a::<T>(fid).then(|| share::<T>(fid.cast())) }
}

/// As [`object_of`], for an object of any kind: `None` as of [`share_if`].
///
/// # Safety
///
/// `fid` is that of an object that is not closed while the result is used.
pub(crate) unsafe fn object_if<'a, T: Object>(fid: *const fid) -> Option<&'a T> {
    // SAFETY: as the caller says.
    unsafe { is_a::<T>(fid).then(|| object_of::<T>(fid.cast())) }
}

/// Whether [`hand_out`] made the object, of this type: others do not have its operations.
///
/// # Safety
///
/// `fid` is that of an object that is not closed.
unsafe fn is_a<T: Object>(fid: *const fid) -> bool {
    // SAFETY: as the caller says; every object starts with a `fid`.
    std::ptr::eq(unsafe { (*fid).ops }, T::FID_OPS)
}

/// Whether objects of ours hold one that C has.
///
/// # Safety
///
/// As [`object_of`].
pub(crate) unsafe fn is_held<T: Object>(raw: *const T::Raw) -> bool {
    // SAFETY: as the caller says; the count of C's pointer stays as it is.
    let object = unsafe { ManuallyDrop::new(Arc::from_raw(raw.cast::<Given<T>>())) };
    Arc::strong_count(&object) > 1
}

/// `fi_close`.
pub(crate) unsafe extern "C" fn close<T: Object>(fid: *mut fid) -> c_int {
    control(|| {
        // SAFETY: C gives back what `hand_out` gave it.
        let object = unsafe {
            if is_held::<T>(fid.cast()) {
                return Err(Errno::EBUSY);
            }
            Arc::from_raw(fid.cast::<Given<T>>().cast_const())
        };
        drop(object);
        Ok(())
    })
}
