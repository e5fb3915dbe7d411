//! What an endpoint has done, left as a file when it closes (setting `stats`): for tests, and for
//! users who ask what carried their traffic.
//!
//! The file is one JSON object; its name is the process's number and the endpoint's number in the
//! process. It appears whole or not at all.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Endpoints of this process so far, of all domains.
static ENDPOINTS: AtomicU64 = AtomicU64::new(0);

/// Where an endpoint's file goes, and what it says besides the counters.
#[derive(Debug)]
pub(super) struct Report {
    folder: PathBuf,
    domain: String,
    address: String,
    endpoint: u64,
}

impl Report {
    /// A report for an endpoint that has just been opened.
    pub(super) fn new(folder: &Path, domain: &str, address: &dyn std::fmt::Display) -> Self {
        Self {
            folder: folder.to_owned(),
            domain: domain.to_owned(),
            address: address.to_string(),
            endpoint: ENDPOINTS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Writes the file. A folder that can not be written is a warning in the log.
    pub(super) fn write(&self, counters: &[(&'static str, u64)]) {
        let process = std::process::id();
        let name = format!("{process}-{}", self.endpoint);
        if let Err(error) = self.place(&name, &self.text(process, counters)) {
            tracing::warn!(
                "counters of an endpoint not written to {}: {error} (setting stats)",
                self.folder.display()
            );
        }
    }

    fn place(&self, name: &str, text: &str) -> io::Result<()> {
        std::fs::create_dir_all(&self.folder)?;
        let unfinished = self.folder.join(format!(".{name}.tmp"));
        let written = std::fs::write(&unfinished, text)
            .and_then(|()| std::fs::rename(&unfinished, self.folder.join(format!("{name}.json"))));
        if written.is_err() {
            let _ = std::fs::remove_file(&unfinished);
        }
        written
    }

    fn text(&self, process: u32, counters: &[(&'static str, u64)]) -> String {
        let mut text = format!(
            "{{\n  \"process\": {process},\n  \"endpoint\": {},\n  \"domain\": {},\n  \"address\": {},\n  \"counters\": {{",
            self.endpoint,
            quoted(&self.domain),
            quoted(&self.address),
        );
        for (at, (name, value)) in counters.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            // Writing to a string does not fail.
            let _ = write!(text, "{comma}\n    {}: {value}", quoted(name));
        }
        text.push_str("\n  }\n}\n");
        text
    }
}

/// As a JSON string (RFC 8259 section 7).
fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\0'..='\u{1f}' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_json_wants() {
        assert_eq!(
            quoted("a\"b\\c\n\u{1}d\u{7f}é"),
            "\"a\\\"b\\\\c\\u000a\\u0001d\u{7f}é\""
        );
    }

    #[test]
    fn a_report_is_one_json_object() {
        let report = Report {
            folder: PathBuf::new(),
            domain: "mlx5_0:1".to_owned(),
            address: "ferro://x".to_owned(),
            endpoint: 7,
        };
        let counters = [("a", 0), ("b", u64::MAX)];
        assert_eq!(
            report.text(12, &counters),
            r#"{
  "process": 12,
  "endpoint": 7,
  "domain": "mlx5_0:1",
  "address": "ferro://x",
  "counters": {
    "a": 0,
    "b": 18446744073709551615
  }
}
"#
        );
        assert!(report.text(12, &[]).ends_with("\"counters\": {\n  }\n}\n"));
    }
}
