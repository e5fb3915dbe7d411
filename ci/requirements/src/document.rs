//! `docs/conformance.md`: prose, tables of three columns (ID, behaviour, tests), and one line `Not built yet: ID, ID.`
//!
//! The third column is written by the program, all else by hand.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use crate::id::{self, Id, NotAnId};
use crate::scan::Marks;

const NOT_BUILT: &str = "Not built yet: ";
const NO_TESTS: &str = "none yet";

/// The document, line by line.
#[derive(Debug)]
pub struct Document {
    lines: Vec<Line>,
}

#[derive(Debug)]
enum Line {
    Text(String),
    Row {
        id: Id,
        behaviour: String,
        tests: String,
    },
}

/// What is wrong with the document, or between it and the tests.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DocumentError {
    #[error("line {line}: {source}")]
    Id { line: usize, source: NotAnId },
    #[error("line {line}: a row has an ID, a behaviour and its tests, between vertical bars")]
    Row { line: usize },
    #[error("{0} has two rows")]
    Twice(Id),
    #[error("no test says `Covers: {0}`, and it is not among what is not built")]
    Unproven(Id),
    #[error("{0} is called not built, but a test proves it: take it off that list")]
    Built(Id),
    #[error("{0} is called not built, but has no row")]
    UnknownNotBuilt(Id),
    #[error("`{test}` in {file} covers {id}, which has no row")]
    Unknown { id: Id, file: String, test: String },
}

impl Document {
    /// Reads it.
    ///
    /// # Errors
    /// A row that can not be read.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        let lines = text.lines().enumerate().map(|(index, line)| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let is_row = cells.len() > 1 && cells[1].starts_with(|c: char| c.is_ascii_uppercase());
            if !is_row || cells[1] == "ID" {
                return Ok(Line::Text(line.to_owned()));
            }
            let line = index + 1;
            let id = cells[1].parse();
            let id = id.map_err(|source| DocumentError::Id { line, source })?;
            let ["", _, behaviour, tests, ""] = cells[..] else {
                return Err(DocumentError::Row { line });
            };
            Ok(Line::Row {
                id,
                behaviour: behaviour.to_owned(),
                tests: tests.to_owned(),
            })
        });
        let document = Document {
            lines: lines.collect::<Result<_, _>>()?,
        };
        let mut seen = BTreeSet::new();
        let twice = document.ids().find(|&id| !seen.insert(id)).cloned();
        twice.map_or(Ok(document), |id| Err(DocumentError::Twice(id)))
    }

    fn ids(&self) -> impl Iterator<Item = &Id> {
        self.lines.iter().filter_map(|line| match line {
            Line::Row { id, .. } => Some(id),
            Line::Text(_) => None,
        })
    }

    /// The requirements that it says are not built.
    fn not_built(&self) -> Result<BTreeSet<Id>, DocumentError> {
        let mut ids = BTreeSet::new();
        for (index, line) in self.lines.iter().enumerate() {
            let Line::Text(text) = line else { continue };
            let Some(listed) = text.strip_prefix(NOT_BUILT) else {
                continue;
            };
            let listed = id::list(listed.trim_end_matches('.'));
            ids.extend(listed.map_err(|source| DocumentError::Id {
                line: index + 1,
                source,
            })?);
        }
        Ok(ids)
    }

    /// The document with the third column that the marks give.
    ///
    /// # Errors
    /// A requirement that is neither proven nor called not built, or both; a mark of a requirement that has no row.
    pub fn with_tests(mut self, marks: &Marks) -> Result<Self, DocumentError> {
        let not_built = self.not_built()?;
        let known: BTreeSet<Id> = self.ids().cloned().collect();
        for (id, tests) in marks {
            if let (false, Some((file, test))) = (known.contains(id), tests.first()) {
                return Err(DocumentError::Unknown {
                    id: id.clone(),
                    file: file.clone(),
                    test: test.clone(),
                });
            }
        }
        if let Some(id) = not_built.difference(&known).next() {
            return Err(DocumentError::UnknownNotBuilt(id.clone()));
        }
        for line in &mut self.lines {
            let Line::Row { id, tests, .. } = line else {
                continue;
            };
            *tests = match (marks.get(id), not_built.contains(id)) {
                (Some(_), true) => return Err(DocumentError::Built(id.clone())),
                (None, false) => return Err(DocumentError::Unproven(id.clone())),
                (None, true) => NO_TESTS.to_owned(),
                (Some(proofs), false) => cell(proofs),
            };
        }
        Ok(self)
    }
}

/// Tests by file.
fn cell(tests: &BTreeSet<(String, String)>) -> String {
    let mut out = String::new();
    let mut last = None;
    for (file, name) in tests {
        let separator = match last {
            Some(before) if before == file => ", ",
            Some(_) => "; ",
            None => "",
        };
        out.push_str(separator);
        if last != Some(file) {
            let _ = write!(out, "[{file}](../{file}): ");
        }
        let _ = write!(out, "`{name}`");
        last = Some(file);
    }
    out
}

impl fmt::Display for Document {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            match line {
                Line::Text(text) => writeln!(out, "{text}")?,
                Line::Row {
                    id,
                    behaviour,
                    tests,
                } => writeln!(out, "| {id} | {behaviour} | {tests} |")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# Title

Not built yet: AV-3.

| ID | behaviour | tests |
|---|---|---|
| AV-1 | one | |
| AV-2 | two | stale |
| AV-3 | three | |
";

    fn marks(of: &[(&str, &str, &str)]) -> Marks {
        let mut marks = Marks::new();
        for (id, file, test) in of {
            let id = id.parse().expect("a name");
            let test = ((*file).to_owned(), (*test).to_owned());
            marks.entry(id).or_default().insert(test);
        }
        marks
    }

    fn written(text: &str, of: &[(&str, &str, &str)]) -> Result<String, String> {
        let document = Document::parse(text).and_then(|it| it.with_tests(&marks(of)));
        document.map(|it| it.to_string()).map_err(|e| e.to_string())
    }

    #[test]
    fn tests_are_listed_by_file() {
        let of = [
            ("AV-1", "a.rs", "x"),
            ("AV-2", "a.rs", "x"),
            ("AV-2", "a.rs", "y"),
            ("AV-2", "b.rs", "z"),
        ];
        let expected = "\
# Title

Not built yet: AV-3.

| ID | behaviour | tests |
|---|---|---|
| AV-1 | one | [a.rs](../a.rs): `x` |
| AV-2 | two | [a.rs](../a.rs): `x`, `y`; [b.rs](../b.rs): `z` |
| AV-3 | three | none yet |
";
        assert_eq!(written(TEXT, &of).as_deref(), Ok(expected));
        assert_eq!(written(expected, &of).as_deref(), Ok(expected));
    }

    #[test]
    fn what_does_not_agree_is_named() {
        let both = [("AV-1", "a.rs", "x"), ("AV-2", "a.rs", "x")];
        for (of, part) in [
            (&both[..1], "Covers: AV-2"),
            (
                &[both[0], both[1], ("AV-3", "a.rs", "x")],
                "AV-3 is called not built",
            ),
            (
                &[both[0], both[1], ("AV-4", "a.rs", "x")],
                "AV-4, which has no row",
            ),
        ] {
            let refused = written(TEXT, of).expect_err(part);
            assert!(refused.contains(part), "{refused}");
        }
        for (from, to, part) in [
            ("AV-2 |", "AV-1 |", "AV-1 has two rows"),
            ("AV-2 |", "AVX |", "AVX"),
            ("| two", "two", "line 8"),
            ("yet: AV-3", "yet: AV-3, AV-9", "AV-9"),
        ] {
            let refused = written(&TEXT.replace(from, to), &both).expect_err(part);
            assert!(refused.contains(part), "{refused}");
        }
    }
}
