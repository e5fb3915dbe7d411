//! Findings of the doctor, each with a severity and a remedy.

use std::fmt;

use ferrofabric_contracts::error::Error;
use serde::Serialize;

use crate::report::wrapped;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// Something works less well than it could.
    Warning,
    /// Messages over a device, or through shared memory, cannot work.
    Error,
}

/// A line of the doctor's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The part of the machine.
    about: String,
    found: String,
    /// One sentence.
    remedy: Option<String>,
}

impl Finding {
    /// Something is as it should be.
    pub(super) fn ok(about: impl Into<String>, found: impl Into<String>) -> Self {
        Self {
            severity: Severity::Ok,
            about: about.into(),
            found: found.into(),
            remedy: None,
        }
    }

    /// Something is not as it could be.
    pub(super) fn new(
        severity: Severity,
        about: impl Into<String>,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            remedy: Some(remedy.into()),
            ..Self::ok(about, found)
        }
    }

    /// Something failed. The error has the remedy, or else the caller.
    pub(super) fn failed(
        severity: Severity,
        about: impl Into<String>,
        error: &Error,
        remedy: &str,
    ) -> Self {
        let remedy = error.advice().unwrap_or(remedy);
        Self::new(severity, about, error.problem(), remedy)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match self.severity {
            Severity::Ok => "ok       ",
            Severity::Note => "note     ",
            Severity::Warning => "warning  ",
            Severity::Error => "error    ",
        };
        let remedy = self.remedy.as_ref();
        let remedy = remedy.map_or(String::new(), |remedy| format!(". Remedy: {remedy}"));
        let line = format!("{}: {}{remedy}", self.about, self.found);
        f.write_str(&wrapped(&line, label, &" ".repeat(label.len())))
    }
}

#[cfg(test)]
mod tests {
    use ferrofabric_contracts::error::Errno;

    use super::*;

    #[test]
    fn a_line_has_the_severity_in_front_and_the_remedy_behind() {
        let fine = Finding::ok("kernel", "Linux 6.12").to_string();
        assert_eq!(fine, "ok       kernel: Linux 6.12\n");
        let error = Error::new(Errno::ENOENT, "load", "a library").mend("install it");
        let bad = Finding::failed(Severity::Note, "library", &error, "none").to_string();
        let words = bad.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words.starts_with("note library: load a library:"),
            "{words}"
        );
        assert!(words.ends_with(". Remedy: install it"), "{words}");
    }

    #[test]
    fn the_worst_comes_last() {
        assert!(Severity::Error > Severity::Warning && Severity::Note > Severity::Ok);
    }
}
