//! The table that `scripts/demo` ends with: path and size, latency, bandwidth, data verified.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ferro::failure::{Failure, Result};
use ferro::report::{Table, TableColumn, print_text, significant};
use ferro::sizes;
use serde::Deserialize;

use crate::tables::read;

/// The fields of `ferro bench --json` that are shown.
#[derive(Deserialize)]
struct DemoResult {
    size: usize,
    path: String,
    domain: String,
    median_us: Option<f64>,
    megabytes_per_s: Option<f64>,
    verified: bool,
}

#[derive(Default)]
struct DemoLine {
    latency_us: Option<f64>,
    bandwidth_mbs: Option<f64>,
    unverified: bool,
}

/// Prints the table.
///
/// # Errors
///
/// When a file is not what `ferro bench --json` prints, or data was not verified.
pub(crate) fn table(files: &[PathBuf]) -> Result<()> {
    let mut lines: BTreeMap<(String, usize), DemoLine> = BTreeMap::new();
    for file in files {
        for m in read::<DemoResult>(file)? {
            let path = match m.path.as_str() {
                "shm" => "shared memory".to_owned(),
                _ => format!("verbs, {}", m.domain),
            };
            let line = lines.entry((path, m.size)).or_default();
            line.latency_us = m.median_us.or(line.latency_us);
            line.bandwidth_mbs = m.megabytes_per_s.or(line.bandwidth_mbs);
            line.unverified |= !m.verified;
        }
    }
    let mut table = Table::new(&[
        TableColumn::words("PATH", 0),
        TableColumn::words("DATA", 0),
        TableColumn::number("SIZE", 0),
        TableColumn::number("LATENCY µs", 0),
        TableColumn::number("BANDWIDTH MB/s", 0),
    ]);
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), significant);
    for ((path, size), line) in &lines {
        table.row(vec![
            path.clone(),
            if line.unverified {
                "NOT VERIFIED"
            } else {
                "verified"
            }
            .to_owned(),
            sizes::print(*size),
            figure(line.latency_us),
            figure(line.bandwidth_mbs),
        ]);
    }
    print_text(&table.to_string())?;
    let whole = |l: &DemoLine| !l.unverified && l.latency_us.is_some() && l.bandwidth_mbs.is_some();
    match !lines.is_empty() && lines.values().all(whole) {
        true => Ok(()),
        false => Err(Failure::new("the table has gaps")),
    }
}
