//! The counters of endpoints, out of the files that they leave when they close (setting `stats`).

use std::path::Path;

use serde_json::Value;

/// Of all processes of a run.
#[derive(Debug)]
pub struct EndpointCounters(Vec<Value>);

impl EndpointCounters {
    /// The counters of all files of a folder.
    pub fn read(folder: &Path) -> Self {
        let files = std::fs::read_dir(folder).unwrap();
        let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        Self(
            texts
                .map(|text| serde_json::from_str(&text).unwrap())
                .collect(),
        )
    }

    /// How many endpoints there were.
    pub fn endpoints(&self) -> usize {
        self.0.len()
    }

    /// Whether each endpoint has a counter.
    pub fn has(&self, name: &str) -> bool {
        let mut files = self.0.iter();
        files.all(|file| file["counters"][name].is_u64())
    }

    /// The sum over all endpoints; those of a domain that lacks the path do not count it.
    pub fn sum(&self, name: &str) -> u64 {
        let found = self
            .0
            .iter()
            .filter_map(|file| file["counters"][name].as_u64());
        found.sum()
    }
}
