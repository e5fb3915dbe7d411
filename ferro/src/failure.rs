//! Why a command ended: one line for the user.

use std::fmt;

use ferrofabric_core::error::{Error, OpError};

/// What is printed after `ferro: ` before the process exits with 1.
#[derive(Debug)]
pub(crate) struct Failure(String);

/// The result of whatever a command does.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The failure that `text` tells.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A system call's failure while `doing` something.
    pub(crate) fn io(doing: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self(format!("{doing}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Self {
        Self(format!("drive the endpoint: {error}"))
    }
}
