//! Output: text tables with aligned columns, JSON.

use serde::Serialize;

use crate::failure::{Failure, Result};

/// A table: the first column is text, on the left; `left` more columns as well; the others are
/// numbers, on the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    left: usize,
}

impl Table {
    /// A table with a header, whose first `left` columns are text.
    pub(crate) fn new(header: &[&str], left: usize) -> Self {
        Self {
            rows: vec![header.iter().map(|h| (*h).to_owned()).collect()],
            left,
        }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|c| {
                let cells = self.rows.iter().filter_map(|row| row.get(c));
                cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
            })
            .collect();
        for row in &self.rows {
            let mut line = String::new();
            for (c, (cell, width)) in row.iter().zip(&widths).enumerate() {
                if c != 0 {
                    line.push_str("  ");
                }
                let padding = " ".repeat(width - cell.chars().count());
                if c < self.left {
                    line.push_str(cell);
                    line.push_str(&padding);
                } else {
                    line.push_str(&padding);
                    line.push_str(cell);
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints a value as JSON.
///
/// # Errors
///
/// When standard output is closed.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::io("write JSON", e))?;
    print_text(&format!("{text}\n"))
}

/// Prints text.
///
/// # Errors
///
/// When standard output is closed.
pub(crate) fn print_text(text: &str) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Failure::io("write to standard output", e))
}

/// A number with three significant digits.
pub(crate) fn significant(value: f64) -> String {
    let digits = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&["NAME", "N"], 1);
        table.row(vec!["a".into(), "100".into()]);
        table.row(vec!["längst".into(), "5".into()]);
        assert_eq!(table.to_string(), "NAME      N\na       100\nlängst    5\n");
    }

    #[test]
    fn three_digits_say_enough() {
        let printed = [0.058, 0.9, 1.234, 12.34, 123.4, 0.0].map(significant);
        assert_eq!(printed, ["0.058", "0.900", "1.23", "12.3", "123", "0"]);
    }
}
