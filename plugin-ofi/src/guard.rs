//! The way of every call from C: results become numbers, a panic ends here, and no thread is
//! cancelled in here (see [`crate::cancel`]).

use std::any::Any;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ferrofabric_contracts::error::{Errno, Error, OpError};
use ferrofabric_system::cancel::Uncancelled;

/// Why a call is refused, as the number that C gets. Errors that explain themselves are logged on
/// their way here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) Errno);

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        Self(errno)
    }
}

impl From<OpError> for Refused {
    fn from(error: OpError) -> Self {
        Self(error.errno())
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        tracing::warn!("{error}");
        Self(error.errno())
    }
}

/// A call that returns 0 or a negative error.
pub(crate) fn control<E: Into<Refused>>(call: impl FnOnce() -> Result<(), E>) -> c_int {
    counted(|| call().map(|()| 0))
}

/// A call that returns a count or a negative error.
pub(crate) fn counted<E: Into<Refused>>(call: impl FnOnce() -> Result<c_int, E>) -> c_int {
    let _uncancelled = Uncancelled::begin();
    match catch_unwind(AssertUnwindSafe(|| call().map_err(Into::into))) {
        Ok(Ok(count)) => count,
        Ok(Err(Refused(errno))) => -errno.0,
        Err(payload) => panicked(payload) as c_int,
    }
}

/// A call on the data path. It puts cancellation off only where it calls other libraries that may
/// be cancelled.
#[inline(always)]
pub(crate) fn data(call: impl FnOnce() -> Result<isize, OpError>) -> isize {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(count)) => count,
        Ok(Err(error)) => -(error.errno().0 as isize),
        Err(payload) => panicked(payload),
    }
}

/// A call whose result has no room for an error, which does no more than a call on the data path.
#[inline(always)]
pub(crate) fn value<T>(or: T, call: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        panicked(payload);
        or
    })
}

/// The panic itself was reported by the panic hook.
#[cold]
#[inline(never)]
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> isize {
    // Nobody catches what its destructor might throw.
    std::mem::forget(payload);
    tracing::error!("a defect of the provider ended a call; the operation is not done");
    -(Errno::EOTHER.0 as isize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_and_panics_become_numbers() {
        assert_eq!(control(|| Ok::<_, Errno>(())), 0);
        assert_eq!(control(|| Err(Errno::EBUSY)), -16);
        assert_eq!(counted(|| Ok::<_, Errno>(7)), 7);
        assert_eq!(control(|| Err(Error::new(Errno::ENODEV, "open", "x"))), -19);
        assert_eq!(data(|| Err(OpError::Again)), -11);
        assert_eq!(data(|| Ok(3)), 3);
        assert_eq!(
            control(|| -> Result<(), Errno> { panic!("on purpose") }),
            -256
        );
        assert_eq!(data(|| panic!("on purpose")), -256);
        assert_eq!(value(5, || panic!("on purpose")), 5);
    }

    #[test]
    fn what_panics_on_its_way_out_does_not_get_out() {
        struct Unfit;
        impl From<Unfit> for Refused {
            fn from(_: Unfit) -> Self {
                panic!("on purpose")
            }
        }
        struct Thrown;
        impl Drop for Thrown {
            fn drop(&mut self) {
                panic!("on purpose")
            }
        }
        assert_eq!(control(|| Err(Unfit)), -256);
        assert_eq!(data(|| std::panic::panic_any(Thrown)), -256);
    }
}
