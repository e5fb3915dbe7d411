//! Room behind an operations table.

use ferrofabric_contracts::error::Errno;

/// How many operations a later libfabric may add to a table. 2.1 to 2.6 added none; the development
/// tree after it adds one to each of five tables.
const LATER: usize = 8;

/// A table of operations, and behind it answers for those that a later libfabric adds at its end.
///
/// Applications call operations by inline functions of the headers they were built with, many of
/// which do not look at the table's `size`. Such a program calls the words behind our table as
/// operations: each returns `-FI_ENOSYS`.
#[repr(C)]
#[derive(Debug)]
pub struct Roomy<T> {
    /// The table as the bindings have it; its `size` is its own, without the room.
    pub table: T,
    later: [unsafe extern "C" fn() -> isize; LATER],
}

impl<T> Roomy<T> {
    /// Adds the room.
    pub const fn new(table: T) -> Self {
        Self {
            table,
            later: [unsupported; LATER],
        }
    }

    /// The table, as objects refer to it.
    pub const fn as_ptr(&'static self) -> *mut T {
        // From a reference to the whole, so that the pointer may reach the padding too.
        std::ptr::from_ref(self).cast::<T>().cast_mut()
    }
}

/// For operations of any arguments, which the caller clears away by the C calling conventions of
/// Unix, and of either result: an `int` is the lower half of this one.
unsafe extern "C" fn unsupported() -> isize {
    -(Errno::ENOSYS.0 as isize)
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use super::*;
    use crate::abi::{fi_ops_domain, fid_domain};

    #[test]
    fn an_operation_that_is_added_later_is_not_supported() {
        /// As a later header might have it.
        #[repr(C)]
        struct Later {
            known: fi_ops_domain,
            added: unsafe extern "C" fn(*mut fid_domain, *mut u8, *mut u8, u64) -> c_int,
        }
        static OPS: Roomy<fi_ops_domain> = Roomy::new(fi_ops_domain {
            size: size_of::<fi_ops_domain>(),
            av_open: None,
            cq_open: None,
            endpoint: None,
            scalable_ep: None,
            cntr_open: None,
            poll_open: None,
            stx_ctx: None,
            srx_ctx: None,
            query_atomic: None,
            query_collective: None,
            endpoint2: None,
        });
        let null = std::ptr::null_mut();
        // SAFETY: tables hold function pointers only, and there is room for eight more.
        let later = unsafe { &*OPS.as_ptr().cast::<Later>() };
        assert_eq!(later.known.size, size_of::<fi_ops_domain>());
        // SAFETY: it looks at no argument.
        let answer = unsafe { (later.added)(null, null.cast(), null.cast(), 0) };
        assert_eq!(answer, -38);
    }
}
