//! `docs/conformance.md`: prose, tables, one line `Not built yet: ID, ID.`, and the reasons for
//! tests that are missing (`reasons`).
//!
//! A table says what its columns are: ID, behaviour, and either all tests in one, or one for each
//! [`TestPlace`]. The columns of tests are written by the program, all else by hand.

use std::collections::BTreeSet;
use std::fmt::{self, Write as _};

use crate::id::{self, NotAnId, RequirementId};
use crate::place::TestPlace;
use crate::reasons::{Reasons, reason};
use crate::scan::{Marks, Test};
use crate::scenarios;

const NOT_BUILT: &str = "Not built yet: ";
const NO_TESTS: &str = "none yet";
const NO_TEST_HERE: &str = "none: the reason is above";

/// Their rows need a test in each place, or a reason.
const GROUPS_BY_PLACE: [&str; 2] = ["AV", "GI"];

/// The document, line by line.
#[derive(Debug)]
pub struct Document {
    lines: Vec<DocumentLine>,
}

#[derive(Debug)]
enum DocumentLine {
    Text(String),
    Row {
        id: RequirementId,
        behaviour: String,
        tests: Cells,
    },
}

/// The columns of tests.
#[derive(Clone, Debug)]
enum Cells {
    Together(String),
    ByPlace([String; TestPlace::ALL.len()]),
}

/// A fault of the document, or a difference between the document and the tests.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DocumentError {
    #[error("line {line}: {source}")]
    Id { line: usize, source: NotAnId },
    #[error("line {line}: a row has an ID, a behaviour and its tests, between vertical bars")]
    Row { line: usize },
    #[error("line {line}: the columns are ID, behaviour, and `tests` or each of {:?}", TestPlace::ALL.map(|place| place.to_string()))]
    Columns { line: usize },
    #[error("{0} stands in a table that has its tests in one column: its group has one a place")]
    Together(RequirementId),
    #[error("{0} has two rows")]
    Twice(RequirementId),
    #[error(
        "no test without `#[ignore]` says `Covers: {0}`, and it is not among what is not built"
    )]
    Unproven(RequirementId),
    #[error("{0} is called not built, but a test proves it: take it off that list")]
    Built(RequirementId),
    #[error("{0} is called not built, but has no row")]
    UnknownNotBuilt(RequirementId),
    #[error("`{test}` in {file} covers {id}, which has no row")]
    Unknown {
        id: RequirementId,
        file: String,
        test: String,
    },
    #[error("line {line}: `- {}ID, ID: reason` was expected, or another place", TestPlace::SharedMemory.lacks().unwrap_or_default())]
    Reason { line: usize },
    #[error("without a test and without a reason: {}", shown(.0))]
    Missing(Vec<(RequirementId, TestPlace)>),
    #[error("{id} has a test in the column `{place}`: take it off the reasons why it has none")]
    NeedlessReason { id: RequirementId, place: TestPlace },
    #[error("a reason is given why {id} has no test in the column `{place}`, which it has not")]
    ReasonForNothing { id: RequirementId, place: TestPlace },
}

impl Document {
    /// Reads it.
    ///
    /// # Errors
    /// A row or a table's head that can not be read.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        let mut columns = None;
        let mut lines = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            let cells: Vec<&str> = text.split('|').map(str::trim).collect();
            let is_row = cells.len() > 1 && cells[1].starts_with(|c: char| c.is_ascii_uppercase());
            if is_row && cells[1] == "ID" {
                columns = Some(Cells::headed(&cells).ok_or(DocumentError::Columns { line })?);
            }
            lines.push(match &columns {
                Some(columns) if is_row && cells[1] != "ID" => row(line, &cells, columns)?,
                _ if is_row && cells[1] != "ID" => return Err(DocumentError::Columns { line }),
                _ => DocumentLine::Text(text.to_owned()),
            });
        }
        let document = Document { lines };
        let mut seen = BTreeSet::new();
        let twice = document.ids().find(|&id| !seen.insert(id)).cloned();
        twice.map_or(Ok(document), |id| Err(DocumentError::Twice(id)))
    }

    fn ids(&self) -> impl Iterator<Item = &RequirementId> {
        self.lines.iter().filter_map(|line| match line {
            DocumentLine::Row { id, .. } => Some(id),
            DocumentLine::Text(_) => None,
        })
    }

    /// Its text beside the rows, with the numbers of the lines.
    fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate();
        lines.filter_map(|(index, line)| match line {
            DocumentLine::Text(text) => Some((index + 1, text.as_str())),
            DocumentLine::Row { .. } => None,
        })
    }

    /// The requirements that it says are not built.
    fn not_built(&self) -> Result<BTreeSet<RequirementId>, DocumentError> {
        let mut ids = BTreeSet::new();
        for (line, text) in self.texts() {
            let Some(listed) = text.strip_prefix(NOT_BUILT) else {
                continue;
            };
            let listed = id::list(listed.trim_end_matches('.'));
            ids.extend(listed.map_err(|source| DocumentError::Id { line, source })?);
        }
        Ok(ids)
    }

    /// The columns that need no test, by the reasons that it gives.
    fn reasons(&self) -> Result<Reasons, DocumentError> {
        let mut reasons = Reasons::new();
        for (line, text) in self.texts() {
            reasons.extend(reason(line, text)?);
        }
        Ok(reasons)
    }

    /// The document with the columns of tests that the marks give.
    ///
    /// # Errors
    /// A requirement that is neither proven nor called not built, or both; an empty column without
    /// a reason, and a reason for a column that is not empty; a mark of a requirement that has no
    /// row.
    pub fn with_tests(mut self, marks: &Marks) -> Result<Self, DocumentError> {
        let not_built = self.not_built()?;
        let mut reasons = self.reasons()?;
        let known: BTreeSet<RequirementId> = self.ids().cloned().collect();
        for (id, tests) in marks {
            if let (false, Some(test)) = (known.contains(id), tests.first()) {
                return Err(DocumentError::Unknown {
                    id: id.clone(),
                    file: test.file.clone(),
                    test: test.name.clone(),
                });
            }
        }
        if let Some(id) = not_built.difference(&known).next() {
            return Err(DocumentError::UnknownNotBuilt(id.clone()));
        }
        let mut missing = Vec::new();
        for line in &mut self.lines {
            let DocumentLine::Row { id, tests, .. } = line else {
                continue;
            };
            let proofs = match (marks.get(id), not_built.contains(id)) {
                (Some(_), true) => return Err(DocumentError::Built(id.clone())),
                (None, false) => return Err(DocumentError::Unproven(id.clone())),
                (Some(proofs), false) if proofs.iter().all(|test| test.ignored) => {
                    return Err(DocumentError::Unproven(id.clone()));
                }
                (None, true) => None,
                (Some(proofs), false) => Some(proofs),
            };
            match (tests, proofs) {
                (Cells::Together(_), _) if GROUPS_BY_PLACE.contains(&id.group()) => {
                    return Err(DocumentError::Together(id.clone()));
                }
                (Cells::Together(all), None) => *all = NO_TESTS.to_owned(),
                (Cells::Together(all), Some(proofs)) => *all = cell(proofs, None),
                (Cells::ByPlace(places), None) => places.fill(NO_TESTS.to_owned()),
                (Cells::ByPlace(places), Some(proofs)) => {
                    for (place, tests) in TestPlace::ALL.into_iter().zip(places) {
                        match by_place(id, place, proofs, &mut reasons)? {
                            Some(found) => *tests = found,
                            None => missing.push((id.clone(), place)),
                        }
                    }
                }
            }
        }
        match (missing.is_empty(), reasons.pop_first()) {
            (false, _) => Err(DocumentError::Missing(missing)),
            (true, Some((id, place))) => Err(DocumentError::ReasonForNothing { id, place }),
            (true, None) => Ok(self),
        }
    }
}

impl Cells {
    /// Those of a table with this head. `None`: it has others.
    fn headed(cells: &[&str]) -> Option<Self> {
        let ["", "ID", "behaviour", titles @ .., ""] = cells else {
            return None;
        };
        let places = TestPlace::ALL.map(|place| place.to_string());
        match titles {
            ["tests"] => Some(Self::Together(String::new())),
            titles if titles == places => Some(Self::ByPlace(Default::default())),
            _ => None,
        }
    }

    /// The texts of a row. `None`: it has more or fewer.
    fn with(&self, texts: &[&str]) -> Option<Self> {
        let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
        match self {
            Self::Together(_) => <[String; 1]>::try_from(texts)
                .ok()
                .map(|[text]| Self::Together(text)),
            Self::ByPlace(_) => texts.try_into().ok().map(Self::ByPlace),
        }
    }
}

fn row(line: usize, cells: &[&str], columns: &Cells) -> Result<DocumentLine, DocumentError> {
    let id = cells[1].parse();
    let id = id.map_err(|source| DocumentError::Id { line, source })?;
    let ["", _, behaviour, texts @ .., ""] = cells else {
        return Err(DocumentError::Row { line });
    };
    Ok(DocumentLine::Row {
        id,
        behaviour: (*behaviour).to_owned(),
        tests: columns.with(texts).ok_or(DocumentError::Row { line })?,
    })
}

/// Names columns of rows.
fn shown(columns: &[(RequirementId, TestPlace)]) -> String {
    let each = columns.iter().map(|(id, place)| format!("{id} ({place})"));
    each.collect::<Vec<_>>().join(", ")
}

/// The tests of a requirement in one place. The reason why there is none is taken. `None`: there is
/// neither.
fn by_place(
    id: &RequirementId,
    place: TestPlace,
    proofs: &BTreeSet<Test>,
    reasons: &mut Reasons,
) -> Result<Option<String>, DocumentError> {
    let here = proofs.iter().filter(|test| match place {
        // Scenarios that also run on the fake device stand in the other columns.
        TestPlace::Elsewhere => test.places.iter().all(|one| *one == place),
        _ => test.places.contains(&place),
    });
    let here: BTreeSet<Test> = here.cloned().collect();
    let excused = reasons.remove(&(id.clone(), place));
    let id = id.clone();
    // A test that a plain run leaves out stands beside others, but does not fill a column.
    let filled = here.iter().any(|test| !test.ignored) || place.lacks().is_none();
    match (filled, excused) {
        (true, false) => Ok(Some(cell(&here, Some(place)))),
        (true, true) => Err(DocumentError::NeedlessReason { id, place }),
        (false, true) => Ok(Some(NO_TEST_HERE.to_owned())),
        (false, false) => Ok(None),
    }
}

/// Tests by file. A column of a place leaves out its folder.
fn cell(tests: &BTreeSet<Test>, place: Option<TestPlace>) -> String {
    let separator = if place.is_some() { "<br>" } else { "; " };
    let mut out = String::new();
    let mut last = None;
    for Test { file, name, .. } in tests {
        if last == Some(file) {
            out.push_str(", ");
        } else {
            let label = place.map_or_else(|| file.clone(), |place| label(file, place));
            let before = if last.is_some() { separator } else { "" };
            let _ = write!(out, "{before}[{label}](../{file}): ");
        }
        let _ = write!(out, "`{name}`");
        last = Some(file);
    }
    out
}

/// The name of a file in a column, without the folder and the ending that all files there share.
fn label(file: &str, place: TestPlace) -> String {
    let file_name = file.trim_end_matches(".rs");
    if let Some(scenarios) = file_name.strip_prefix(scenarios::FOLDER) {
        return format!("conformance/{scenarios}");
    }
    let within = place
        .folder()
        .and_then(|folder| file_name.strip_prefix(folder));
    within.unwrap_or(file_name).to_owned()
}

impl fmt::Display for Document {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            match line {
                DocumentLine::Text(text) => writeln!(out, "{text}")?,
                DocumentLine::Row {
                    id,
                    behaviour,
                    tests,
                } => writeln!(out, "| {id} | {behaviour} | {tests} |")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Cells {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Together(tests) => out.write_str(tests),
            Self::ByPlace(places) => out.write_str(&places.join(" | ")),
        }
    }
}

#[cfg(test)]
mod tests;
