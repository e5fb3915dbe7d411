//! The table that `scripts/bench` ends with, and its files.

use std::path::Path;

use super::plot;
use super::row::Row;
use crate::cli::ReportOptions;
use crate::failure::{Failure, Result};
use crate::report::{Table, print_text, significant};
use crate::sizes;

/// Prints all rows, and writes what is asked for.
///
/// # Errors
///
/// When a file can not be read or written.
pub(super) fn report(options: &ReportOptions) -> Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for file in &options.rows {
        rows.extend(read::<Vec<Row>>(file)?);
    }
    if let Some(file) = &options.json {
        let json = serde_json::to_string_pretty(&rows).map_err(|e| Failure::io("write JSON", e))?;
        std::fs::write(file, json + "\n")
            .map_err(|e| Failure::io(format!("write {}", file.display()), e))?;
    }
    if let Some(folder) = &options.plot {
        plot::all(&rows, folder)?;
    }
    print_text(&text(&rows))
}

/// What a file of JSON holds.
///
/// # Errors
///
/// When it can not be read, or holds something else.
pub(super) fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T> {
    let failed = |e: &dyn std::fmt::Display| Failure::io(format!("read {}", file.display()), e);
    let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
    serde_json::from_str(&text).map_err(|e| failed(&e))
}

fn text(rows: &[Row]) -> String {
    let mut table = Table::new(
        &[
            "SUITE", "BENCH", "PEER", "SIZE", "OURS", "THEIRS", "RATIO", "ROUNDS", "",
        ],
        3,
    );
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), significant);
    for row in rows {
        let unit = match row.metric.as_str() {
            "latency_us" => "latency µs",
            "bandwidth_mbs" if row.bench.ends_with("bidirectional_bandwidth") => "both ways MB/s",
            "bandwidth_mbs" if row.bench.ends_with("blocking_bandwidth") => "blocking MB/s",
            "bandwidth_mbs" => "bandwidth MB/s",
            "rate_mps" => "messages/s",
            // The size is the depth, or the number of entries.
            "ns_per_op" => row.bench.as_str(),
            other => other,
        };
        let remark = match (&row.skipped, row.near) {
            (Some(why), _) => format!("skipped: {why}"),
            (None, false) => "far or busy cores".to_owned(),
            (None, true) => String::new(),
        };
        table.row(vec![
            row.suite.clone(),
            unit.to_owned(),
            row.peer.clone(),
            sizes::print(row.size),
            figure(row.ours),
            figure(row.theirs),
            row.ratio.map_or("-".to_owned(), |r| format!("{r:.2}")),
            row.rounds.to_string(),
            remark,
        ]);
    }
    table.to_string()
}
