//! Errors: libfabric's numbers, a small copyable error for the data path, and one for the control
//! path that names the operation, its object, the reason of the failure and a remedy.

use std::fmt;

/// A positive fabric error number (`fi_errno(3)`): the system's numbers, and libfabric's own from
/// 256 on.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident = $value:literal, $text:literal;)*) => {
        impl Errno {
            $(#[doc = concat!("`FI_", stringify!($name), "`: ", $text, ".")]
            pub const $name: Self = Self($value);)*

            fn known(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($value => Some((concat!("FI_", stringify!($name)), $text)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM = 1, "operation not permitted";
    ENOENT = 2, "no such entry";
    EINTR = 4, "interrupted by a signal";
    EIO = 5, "input or output error";
    EBADF = 9, "bad file descriptor";
    EAGAIN = 11, "resource temporarily unavailable, try again";
    ENOMEM = 12, "out of memory";
    EACCES = 13, "permission denied";
    EFAULT = 14, "bad address";
    EBUSY = 16, "object in use";
    ENODEV = 19, "no such device";
    EINVAL = 22, "invalid argument";
    EMFILE = 24, "too many open files";
    ENOSPC = 28, "no space left";
    ENOSYS = 38, "not supported by this provider";
    ENOMSG = 42, "no message found";
    ENODATA = 61, "no data available";
    EMSGSIZE = 90, "message too long";
    EPROTO = 71, "protocol error";
    EOVERFLOW = 75, "value too large";
    EOPNOTSUPP = 95, "operation not supported";
    EADDRINUSE = 98, "address in use";
    EADDRNOTAVAIL = 99, "address not available";
    ENETUNREACH = 101, "network unreachable";
    ECONNABORTED = 103, "connection aborted";
    ECONNRESET = 104, "connection reset by peer";
    ESHUTDOWN = 108, "endpoint is shut down";
    ETIMEDOUT = 110, "timed out";
    ECONNREFUSED = 111, "connection refused";
    EHOSTDOWN = 112, "host is down";
    EHOSTUNREACH = 113, "no route to host";
    EALREADY = 114, "already in progress";
    EREMOTEIO = 121, "remote input or output error";
    ECANCELED = 125, "operation cancelled";
    EKEYREJECTED = 129, "key rejected";
    EOTHER = 256, "unspecified error";
    ETOOSMALL = 257, "buffer too small";
    EOPBADSTATE = 258, "operation not permitted in this state";
    EAVAIL = 259, "error available";
    EBADFLAGS = 260, "flags not supported";
    ENOEQ = 261, "no event queue";
    EDOMAIN = 262, "invalid resource domain";
    ENOCQ = 263, "no completion queue";
    ETRUNC = 265, "truncated";
    ENOKEY = 266, "required key not available";
}

impl Errno {
    /// The meaning of the error, in words.
    pub fn message(self) -> String {
        match self.known() {
            Some((_, text)) => text.to_owned(),
            None if self.0 < 256 => std::io::Error::from_raw_os_error(self.0).to_string(),
            None => format!("unknown error {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((name, text)) => write!(f, "{text} ({name})"),
            None => f.write_str(&self.message()),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why a data-path call was not taken. Small and `Copy`; [`OpError::Again`] is back-pressure, not a
/// failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpError {
    /// No resource now: read the completion queue, then try again (`-FI_EAGAIN`).
    Again,
    /// The call can not be served; trying again will not help.
    Failed(Errno),
}

impl OpError {
    /// The number that libfabric reports for it.
    pub fn errno(self) -> Errno {
        match self {
            Self::Again => Errno::EAGAIN,
            Self::Failed(errno) => errno,
        }
    }
}

impl fmt::Display for OpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errno().fmt(f)
    }
}

impl std::error::Error for OpError {}

impl From<Errno> for OpError {
    fn from(errno: Errno) -> Self {
        if errno == Errno::EAGAIN {
            Self::Again
        } else {
            Self::Failed(errno)
        }
    }
}

/// A control-path error: the action, its object, the reason, and advice for the user.
///
/// `Debug` prints the sentence of `Display`, because a `main` that returns an error prints it by
/// `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    errno: Errno,
    doing: &'static str,
    object: String,
    mend: Option<String>,
}

impl Error {
    /// The error `errno` while `doing` ("register", "open device") something to `object` ("4096
    /// bytes at …").
    pub fn new(errno: Errno, doing: &'static str, object: impl Into<String>) -> Self {
        Self {
            errno,
            doing,
            object: object.into(),
            mend: None,
        }
    }

    /// The same error of a system call that failed.
    pub fn from_io(error: &std::io::Error, doing: &'static str, object: impl Into<String>) -> Self {
        Self::new(
            Errno(error.raw_os_error().unwrap_or(Errno::EIO.0)),
            doing,
            object,
        )
    }

    /// The same error with advice for the user.
    #[must_use]
    pub fn mend(mut self, advice: impl Into<String>) -> Self {
        self.mend = Some(advice.into());
        self
    }

    /// The error number.
    pub fn errno(&self) -> Errno {
        self.errno
    }

    /// The sentence without the advice: the action, its object, and the reason.
    pub fn problem(&self) -> String {
        format!("{} {}: {}", self.doing, self.object, self.errno)
    }

    /// The advice for the user, if there is one.
    pub fn advice(&self) -> Option<&str> {
        self.mend.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem())?;
        match &self.mend {
            Some(advice) => write!(f, "; {advice}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

/// The result of a control-path call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_object_and_a_remedy() {
        let e = Error::new(Errno::ENODEV, "open", "device mlx9_0").mend("devices here: rxe0");
        assert_eq!(
            e.to_string(),
            "open device mlx9_0: no such device (FI_ENODEV); devices here: rxe0"
        );
    }

    #[test]
    fn system_numbers_without_a_name_of_ours_are_explained_too() {
        assert_eq!(
            Errno(18).to_string(),
            "Invalid cross-device link (os error 18)"
        );
        assert_eq!(OpError::from(Errno::EAGAIN), OpError::Again);
    }
}
