//! Tables of known columns: a row can be printed before the next one is measured.

use std::fmt;

use super::WIDTH;

/// Spaces between two columns.
const GAP: usize = 2;

/// On which side of a column its cells stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct TableColumn {
    head: &'static str,
    align: Align,
    /// Its usual width; a head that is wider makes it wider.
    width: usize,
}

impl TableColumn {
    /// A column of numbers, on the right.
    pub const fn number(head: &'static str, width: usize) -> Self {
        Self {
            head,
            align: Align::Right,
            width,
        }
    }

    /// A column of words, on the left.
    pub const fn words(head: &'static str, width: usize) -> Self {
        Self {
            head,
            align: Align::Left,
            width,
        }
    }

    fn width(&self) -> usize {
        self.width.max(self.head.chars().count())
    }
}

/// A result that is a row of a table.
pub(crate) trait Tabled {
    /// The columns, which fit [`WIDTH`].
    const COLUMNS: &'static [TableColumn];

    /// The cells of its row, one for each column.
    fn cells(&self) -> Vec<String>;

    /// The line of heads.
    fn header() -> String {
        let heads: Vec<String> = Self::COLUMNS.iter().map(|c| c.head.to_owned()).collect();
        line(Self::COLUMNS, &heads)
    }

    /// Its line.
    fn line(&self) -> String {
        line(Self::COLUMNS, &self.cells())
    }
}

/// Cells side by side, wrapped within their columns.
fn line(columns: &[TableColumn], cells: &[String]) -> String {
    let wrapped: Vec<Vec<String>> = columns
        .iter()
        .zip(cells)
        .map(|(column, cell)| match column.align {
            Align::Left => lines_of(cell, column.width()),
            // A number that is cut is another number.
            Align::Right => vec![cell.clone()],
        })
        .collect();
    let height = wrapped.iter().map(Vec::len).max().unwrap_or(0);
    let mut text = String::new();
    for at in 0..height {
        let mut line = String::new();
        for (n, (column, cell)) in columns.iter().zip(&wrapped).enumerate() {
            let cell = cell.get(at).map_or("", String::as_str);
            if n != 0 {
                line.push_str(&" ".repeat(GAP));
            }
            let padding = " ".repeat(column.width().saturating_sub(cell.chars().count()));
            match column.align {
                Align::Left => line.extend([cell, &padding]),
                Align::Right => line.extend([padding.as_str(), cell]),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn lines_of(cell: &str, width: usize) -> Vec<String> {
    let lines = textwrap::wrap(cell, width);
    lines
        .into_iter()
        .map(std::borrow::Cow::into_owned)
        .collect()
}

/// A table whose rows are all known: each column is as wide as its cells need, up to a limit where
/// the line would be longer than [`WIDTH`].
pub struct Table {
    columns: Vec<TableColumn>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[TableColumn]) -> Self {
        Self {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// The columns in their final widths.
    fn fitted(&self) -> Vec<TableColumn> {
        let mut columns = self.columns.clone();
        for (at, column) in columns.iter_mut().enumerate() {
            let cells = self.rows.iter().filter_map(|row| row.get(at));
            let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
            column.width = widest;
        }
        let gaps = GAP * columns.len().saturating_sub(1);
        let total = gaps + columns.iter().map(TableColumn::width).sum::<usize>();
        let words = columns.iter_mut().filter(|c| c.align == Align::Left);
        if let Some(widest) = words.max_by_key(|c| c.width()) {
            widest.width -= total.saturating_sub(WIDTH).min(widest.width - 1);
        }
        columns
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = self.fitted();
        let heads: Vec<String> = columns.iter().map(|c| c.head.to_owned()).collect();
        f.write_str(&line(&columns, &heads))?;
        for row in &self.rows {
            f.write_str(&line(&columns, row))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(&[TableColumn::words("NAME", 0), TableColumn::number("N", 0)]);
        table.row(vec!["a".into(), "100".into()]);
        table.row(vec!["längst".into(), "5".into()]);
        assert_eq!(table.to_string(), "NAME      N\na       100\nlängst    5\n");
    }

    #[test]
    fn a_cell_that_is_too_long_is_wrapped_in_its_column() {
        let mut table = Table::new(&[TableColumn::words("NAME", 0), TableColumn::number("N", 0)]);
        table.row(vec!["a word and ".repeat(10), "100".into()]);
        let text = table.to_string();
        assert!(text.lines().all(|l| l.chars().count() <= WIDTH), "{text}");
        assert_eq!(text.matches("word").count(), 10, "{text}");
        assert!(text.lines().nth(1).unwrap().ends_with("  100"), "{text}");
    }

    struct Counted(&'static str, u32);

    impl Tabled for Counted {
        const COLUMNS: &'static [TableColumn] =
            &[TableColumn::words("WHAT", 6), TableColumn::number("N", 3)];

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_string()]
        }
    }

    #[test]
    fn rows_line_up_though_each_is_made_alone() {
        assert_eq!(Counted::header(), "WHAT      N\n");
        assert_eq!(Counted("some", 7).line(), "some      7\n");
        assert_eq!(Counted("other", 12345).line(), "other   12345\n");
    }
}
