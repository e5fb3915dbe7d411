//! The table that `scripts/bench` ends with, and its files.

use std::collections::BTreeSet;
use std::path::Path;

use ferro::failure::{Failure, Result};
use ferro::plot;
use ferro::report::{Table, TableColumn, print_text, significant, wrapped};
use ferro::sizes;

use crate::cli::ReportOptions;
use crate::pictures;
use crate::row::Row;

/// Prints all rows, and writes the files of the options.
///
/// # Errors
///
/// When a file can not be read or written.
pub(crate) fn report(options: &ReportOptions) -> Result<()> {
    let mut rows: Vec<Row> = Vec::new();
    for file in &options.rows {
        rows.extend(read::<Row>(file)?);
    }
    if let Some(file) = &options.json {
        let json = serde_json::to_string_pretty(&rows).map_err(|e| Failure::io("write JSON", e))?;
        std::fs::write(file, json + "\n")
            .map_err(|e| Failure::io(format!("write {}", file.display()), e))?;
    }
    if let Some(folder) = &options.plot {
        plot::draw(pictures::points(&rows), folder)?;
    }
    print_text(&text(&rows))
}

/// The elements of the JSON arrays in a file, of which there may be several one after the other.
///
/// # Errors
///
/// When the file can not be read, or holds something else.
pub(crate) fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<Vec<T>> {
    let failed = |e: &dyn std::fmt::Display| Failure::io(format!("read {}", file.display()), e);
    let text = std::fs::read_to_string(file).map_err(|e| failed(&e))?;
    elements(&text).map_err(|e| failed(&e))
}

fn elements<T: serde::de::DeserializeOwned>(text: &str) -> serde_json::Result<Vec<T>> {
    // An empty text is no array.
    let mut arrays = serde_json::Deserializer::from_str(text).into_iter::<Vec<T>>();
    let mut all = match arrays.next() {
        Some(first) => first?,
        None => serde_json::from_str(text)?,
    };
    for array in arrays {
        all.extend(array?);
    }
    Ok(all)
}

/// A table for each suite and figure.
fn text(rows: &[Row]) -> String {
    let heading = |row: &Row| format!("{}: {}", row.suite, unit(row));
    let mut text = String::new();
    for group in rows.chunk_by(|a, b| heading(a) == heading(b)) {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&wrapped(&heading(&group[0]), "", "  "));
        text.push_str(&table(group).to_string());
        // One reason usually holds for all rows of a peer.
        let skipped = group.iter().filter_map(|row| {
            let why = row.skipped.as_ref()?;
            Some(format!("{} skipped: {why}", row.peer))
        });
        for line in skipped.collect::<BTreeSet<String>>() {
            text.push_str(&wrapped(&line, "", "  "));
        }
    }
    for line in unseen(rows) {
        text.push_str(&wrapped(&line, "", "  "));
    }
    text
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        TableColumn::words("PEER", 0),
        TableColumn::words("CORES", 0),
        TableColumn::number("SIZE", 0),
        TableColumn::number("OURS", 0),
        TableColumn::number("THEIRS", 0),
        TableColumn::number("RATIO", 0),
        TableColumn::number("ROUNDS", 0),
    ]);
    let figure = |value: Option<f64>| value.map_or("-".to_owned(), significant);
    for row in rows {
        table.row(vec![
            row.peer.clone(),
            cores(row).to_owned(),
            sizes::print(row.size),
            figure(row.ours),
            figure(row.theirs),
            row.ratio.map_or("-".to_owned(), |r| format!("{r:.2}")),
            row.rounds.to_string(),
        ]);
    }
    table
}

/// The figure of a row, and its unit.
fn unit(row: &Row) -> String {
    // A bench of several threads or ranks has their number in its name.
    let several = row.bench.rsplit_once('_').and_then(|(rest, of)| {
        let (what, count) = rest.rsplit_once('_')?;
        let count = count.parse::<usize>().ok()?;
        Some((what, format!("{count} {of}")))
    });
    let unit = match row.metric.as_str() {
        "latency_us" if several.is_some() => "µs",
        "latency_us" => "latency µs",
        "bandwidth_mbs" if row.bench.ends_with("bidirectional_bandwidth") => "both ways MB/s",
        "bandwidth_mbs" if row.bench.ends_with("blocking_bandwidth") => "blocking MB/s",
        "bandwidth_mbs" => "bandwidth MB/s",
        "rate_mps" => "messages/s",
        // The size is the depth, or the number of entries.
        "ns_per_op" => row.bench.as_str(),
        other => other,
    };
    match several {
        Some((what, of)) if row.metric == "latency_us" => {
            format!("{} {unit}, {of}", what.trim_start_matches("mpi_"))
        }
        Some((_, of)) if row.metric != "ns_per_op" => format!("{unit}, {of}"),
        _ => unit.to_owned(),
    }
}

/// Whether the distance of the cores matters for a row.
fn is_of_a_distance(row: &Row) -> bool {
    row.path == "shm" && ["shm", "mpi"].contains(&row.suite.as_str())
}

/// The distance of the cores; nothing where it does not matter, or no round counts.
fn cores(row: &Row) -> &'static str {
    match (is_of_a_distance(row) && row.rounds > 0, row.near) {
        (false, _) => "",
        (true, true) => "near",
        (true, false) => "far",
    }
}

/// Says of which distance of the cores a suite has no rows.
fn unseen(rows: &[Row]) -> Vec<String> {
    let of_a_distance = || rows.iter().filter(|row| is_of_a_distance(row));
    let suites: BTreeSet<&str> = of_a_distance().map(|row| row.suite.as_str()).collect();
    let mut lines = Vec::new();
    for suite in suites {
        for name in ["near", "far"] {
            if !of_a_distance().any(|row| row.suite == suite && cores(row) == name) {
                lines.push(format!("{suite}: no round counts for {name} cores"));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(suite: &str, bench: &str, metric: &str, near: bool, rounds: usize) -> Row {
        serde_json::from_value(serde_json::json!({
            "suite": suite, "bench": bench, "path": "shm", "size": 8, "peer": "p", "metric": metric,
            "better": "lower", "ours": 1.0, "theirs": 2.0, "ratio": 0.5, "rounds": rounds, "near": near,
            "ours_min": 1.0, "theirs_min": 2.0
        }))
        .unwrap()
    }

    #[test]
    fn arrays_one_after_the_other_are_read() {
        let read = |text| elements::<u32>(text).ok();
        assert_eq!(read("[1, 2]\n"), Some(vec![1, 2]));
        assert_eq!(read("[1]\n[]\n[2, 3]"), Some(vec![1, 2, 3]));
        assert_eq!(read("[]"), Some(vec![]));
        for text in ["", "1", "[1] 2", "[1]\n[2"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_table_names_what_was_measured_and_where() {
        for (bench, metric, unit_of) in [
            ("tagged_latency", "latency_us", "latency µs"),
            ("tagged_rate_4_threads", "rate_mps", "messages/s, 4 threads"),
            (
                "tagged_bandwidth_4_threads",
                "bandwidth_mbs",
                "bandwidth MB/s, 4 threads",
            ),
            ("mpi_alltoall_8_ranks", "latency_us", "alltoall µs, 8 ranks"),
            (
                "match_posted_exact_order",
                "ns_per_op",
                "match_posted_exact_order",
            ),
        ] {
            assert_eq!(unit(&row("shm", bench, metric, true, 7)), unit_of);
        }
    }

    #[test]
    fn a_distance_that_no_round_saw_is_named() {
        let of = |near, rounds| row("shm", "tagged_latency", "latency_us", near, rounds);
        let far_alone = [of(false, 7), of(true, 0)];
        assert_eq!(unseen(&far_alone), ["shm: no round counts for near cores"]);
        let said = text(&far_alone);
        assert!(said.contains("far"), "{said}");
        assert!(said.ends_with("no round counts for near cores\n"), "{said}");
        assert_eq!(unseen(&[of(false, 7), of(true, 1)]), [""; 0]);
        assert_eq!(unseen(&[row("match", "m", "ns_per_op", true, 7)]), [""; 0]);
    }
}
