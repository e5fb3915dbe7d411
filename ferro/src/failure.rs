//! Why a command ended: one line for the user.

use std::fmt;

use ferrofabric_contracts::error::{Error, OpError};

/// What is printed after `ferro: ` before the process exits with 1.
#[derive(Debug)]
pub(crate) struct Failure {
    text: String,
    told: bool,
}

/// The result of whatever a command does.
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// The failure that `text` tells.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            told: false,
        }
    }

    /// A system call's failure while `doing` something.
    pub(crate) fn io(doing: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::new(format!("{doing}: {error}"))
    }

    /// The same failure, which the partner tells the user.
    pub(crate) fn told(mut self) -> Self {
        self.told = true;
        self
    }

    /// Whether the user hears of it from the partner.
    pub(crate) fn is_told(&self) -> bool {
        self.told
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<OpError> for Failure {
    fn from(error: OpError) -> Self {
        Self::new(format!("drive the endpoint: {error}"))
    }
}
