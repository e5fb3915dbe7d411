//! Output: tables, blocks of facts, JSON. No line is longer than [`WIDTH`] unless it holds a word
//! that is.

mod blocks;
mod results;
mod table;

use serde::Serialize;

use crate::failure::{Failure, Result};

pub(crate) use blocks::Block;
pub use blocks::wrapped;
pub(crate) use results::Results;
pub(crate) use table::Tabled;
pub use table::{Table, TableColumn};

/// Columns of a terminal that every table and block fits.
pub const WIDTH: usize = 80;

/// Prints a value as JSON.
///
/// # Errors
///
/// When standard output is closed.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value).map_err(|e| Failure::io("write JSON", e))?;
    print_text(&format!("{text}\n"))
}

/// Prints text.
///
/// # Errors
///
/// When standard output is closed.
pub fn print_text(text: &str) -> Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .map_err(|e| Failure::io("write to standard output", e))
}

/// A number with three significant digits.
pub fn significant(value: f64) -> String {
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
    fn three_digits_say_enough() {
        let printed = [0.058, 0.9, 1.234, 12.34, 123.4, 0.0].map(significant);
        assert_eq!(printed, ["0.058", "0.900", "1.23", "12.3", "123", "0"]);
    }
}
