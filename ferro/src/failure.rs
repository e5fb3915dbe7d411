//! The reason why a command ended: one line for the user, and the exit code.

use std::fmt;
use std::process::ExitCode;

use ferrofabric_contracts::error::{Error, OpError};

/// The exit code of wrong usage; every other failure has [`ExitCode::FAILURE`].
const WRONG_USAGE: u8 = 2;

/// The text that follows `ferro: ` before the process exits.
#[derive(Debug)]
pub struct Failure {
    text: String,
    kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    /// Something went wrong.
    Run,
    /// The user gave options that cannot work, whatever the machine does.
    Usage,
    /// Something went wrong, and the partner prints it.
    PrintedByPartner,
}

/// The result of a command or of a step of it.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    /// A failure with this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind: FailureKind::Run,
        }
    }

    /// Wrong usage that the parser of options cannot see.
    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind: FailureKind::Usage,
        }
    }

    /// A system call's failure while `doing` something.
    pub fn io(doing: impl fmt::Display, error: impl fmt::Display) -> Self {
        Self::new(format!("{doing}: {error}"))
    }

    /// The same failure, which the partner prints.
    pub(crate) fn printed_by_partner(mut self) -> Self {
        self.kind = FailureKind::PrintedByPartner;
        self
    }

    /// The same failure where another process has chosen the options.
    pub(crate) fn of_partners_options(mut self) -> Self {
        self.kind = FailureKind::Run;
        self
    }

    /// Whether the partner prints it.
    pub(crate) fn is_printed_by_partner(&self) -> bool {
        self.kind == FailureKind::PrintedByPartner
    }

    /// The exit code of the process.
    pub fn exit_code(&self) -> ExitCode {
        match self.kind {
            FailureKind::Usage => ExitCode::from(WRONG_USAGE),
            FailureKind::Run | FailureKind::PrintedByPartner => ExitCode::FAILURE,
        }
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
