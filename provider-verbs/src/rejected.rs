//! Errors of a queue that rejects a request.

use ferrofabric_contracts::error::{Errno, OpError};

/// The reason why posting stopped, and the place in the list. Requests before `first` were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rejected<W> {
    /// [`OpError::Again`] when the queue is full.
    pub reason: OpError,
    /// The first request that was not posted (null where the driver did not say).
    pub first: *mut W,
}

#[cold]
pub(crate) fn rejected<W>(errno: i32, first: *mut W) -> Rejected<W> {
    Rejected {
        reason: post_error(errno),
        first,
    }
}

/// Some drivers return errno negative; a full queue is `ENOMEM` with most.
#[cold]
pub(crate) fn post_error(errno: i32) -> OpError {
    match errno.wrapping_abs() {
        libc::ENOMEM | libc::EAGAIN => OpError::Again,
        errno => OpError::Failed(Errno(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_is_back_pressure_whatever_the_sign() {
        for errno in [libc::ENOMEM, -libc::ENOMEM, libc::EAGAIN] {
            assert_eq!(post_error(errno), OpError::Again);
        }
        assert_eq!(post_error(-libc::EINVAL), OpError::Failed(Errno::EINVAL));
        assert_eq!(post_error(i32::MIN), OpError::Failed(Errno(i32::MIN)));
    }
}
