//! Entries of operation tables that stand for calls which this provider does not offer.
//!
//! libfabric's inline functions call most entries without a look at whether they are there, so
//! every one must be.

use std::ffi::c_int;

use ferrofabric_contracts::error::Errno;

/// A function pointer of an operation table.
pub(crate) trait Unsupported {
    /// Answers every call with `-FI_ENOSYS`.
    const ENOSYS: Self;
}

/// The result type of a C call: an `int`, a `ssize_t` or the value of a counter, negative for an
/// error.
pub(crate) trait Negative {
    /// `-FI_ENOSYS`.
    const ENOSYS: Self;
}

impl Negative for c_int {
    const ENOSYS: Self = -Errno::ENOSYS.0;
}

impl Negative for isize {
    const ENOSYS: Self = -(Errno::ENOSYS.0 as isize);
}

impl Negative for u64 {
    const ENOSYS: Self = -(Errno::ENOSYS.0 as i64) as u64;
}

macro_rules! unsupported {
    ($($argument:ident)*) => {
        impl<R: Negative, $($argument),*> Unsupported for unsafe extern "C" fn($($argument),*) -> R {
            const ENOSYS: Self = {
                unsafe extern "C" fn answer<R: Negative, $($argument),*>($(_: $argument),*) -> R {
                    R::ENOSYS
                }
                answer::<R, $($argument),*>
            };
        }
    };
}

unsupported!(A);
unsupported!(A B);
unsupported!(A B C);
unsupported!(A B C D);
unsupported!(A B C D E);
unsupported!(A B C D E F);
unsupported!(A B C D E F G);
unsupported!(A B C D E F G H);
unsupported!(A B C D E F G H I);
unsupported!(A B C D E F G H I J);
unsupported!(A B C D E F G H I J K);
unsupported!(A B C D E F G H I J K L);
unsupported!(A B C D E F G H I J K L M);
unsupported!(A B C D E F G H I J K L M N);
unsupported!(A B C D E F G H I J K L M N O);
unsupported!(A B C D E F G H I J K L M N O P);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{fi_ops_cm, fi_ops_msg};

    #[test]
    fn every_signature_answers_that_it_is_not_supported() {
        let setname: Option<unsafe extern "C" fn(_, _, _) -> _> = fi_ops_cm {
            setname: Some(Unsupported::ENOSYS),
            ..fi_ops_cm::default()
        }
        .setname;
        let inject = fi_ops_msg {
            inject: Some(Unsupported::ENOSYS),
            ..fi_ops_msg::default()
        }
        .inject;
        let null = std::ptr::null_mut();
        // SAFETY: the answer looks at no argument.
        unsafe {
            assert_eq!(setname.map(|f| f(null, null.cast(), 0)), Some(-38));
            assert_eq!(inject.map(|f| f(null.cast(), null.cast(), 0, 0)), Some(-38));
        }
    }
}
