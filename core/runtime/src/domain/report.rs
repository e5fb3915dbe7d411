//! The counters of an endpoint, written to a file when it closes (setting `stats`): for tests, and
//! for users who examine which transport carried their traffic.
//!
//! The file is one JSON object; its name is the process's number and the endpoint's number in the
//! process. It appears whole or not at all.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Serialize, Serializer};

/// Number of endpoints of this process so far, of all domains.
static ENDPOINTS: AtomicU64 = AtomicU64::new(0);

/// The folder of an endpoint's file, and its content besides the counters.
#[derive(Debug)]
pub(super) struct CounterReport {
    folder: PathBuf,
    domain: String,
    address: String,
    endpoint: u64,
}

impl CounterReport {
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
        let text = self.text(process, counters).map_err(io::Error::from);
        if let Err(error) = text.and_then(|text| self.place(&name, &text)) {
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

    fn text(&self, process: u32, counters: &[(&'static str, u64)]) -> serde_json::Result<String> {
        let text = serde_json::to_string_pretty(&Contents {
            process,
            endpoint: self.endpoint,
            domain: &self.domain,
            address: &self.address,
            counters,
        })?;
        Ok(text + "\n")
    }
}

/// The content of the file.
#[derive(Serialize)]
struct Contents<'a> {
    process: u32,
    endpoint: u64,
    domain: &'a str,
    address: &'a str,
    #[serde(serialize_with = "as_object")]
    counters: &'a [(&'static str, u64)],
}

/// Pairs as an object whose members keep their order.
fn as_object<S: Serializer>(pairs: &[(&'static str, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_json_object() {
        let report = CounterReport {
            folder: PathBuf::new(),
            domain: "mlx5_0:1 \"a\\b\"\n".to_owned(),
            address: "ferro://x".to_owned(),
            endpoint: 7,
        };
        let counters = [("a", 0), ("b", u64::MAX)];
        assert_eq!(
            report.text(12, &counters).expect("text"),
            r#"{
  "process": 12,
  "endpoint": 7,
  "domain": "mlx5_0:1 \"a\\b\"\n",
  "address": "ferro://x",
  "counters": {
    "a": 0,
    "b": 18446744073709551615
  }
}
"#
        );
        let empty = report.text(12, &[]).expect("text");
        assert!(empty.ends_with("\"counters\": {}\n}\n"), "{empty}");
    }
}
