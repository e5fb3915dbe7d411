//! Finds the marks in the sources: a doc comment `Covers: ID, ID` on a test, or on a scenario that tests run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::id::{self, Id, NotAnId};

/// For each requirement the tests that prove it: file, from the root of the tree, and name.
pub type Marks = BTreeMap<Id, BTreeSet<(String, String)>>;

/// Scenarios of the suite stand here; each is run by several tests that only name it.
const SCENARIOS: &str = "hw-tests/conformance/src/";

/// A mark that says nothing.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}: {why}")]
pub struct MarkError {
    file: String,
    line: usize,
    why: Why,
}

#[derive(Debug, thiserror::Error)]
enum Why {
    #[error(transparent)]
    Id(#[from] NotAnId),
    #[error("`Covers:` stands on no function")]
    NoFunction,
    #[error(
        "`Covers:` stands on `{0}`, which is neither a `#[test]` nor a scenario in {SCENARIOS}"
    )]
    NoTest(String),
}

/// Reads all sources below `root`.
///
/// # Errors
/// A file that can not be read, or a mark that says nothing.
pub fn tree(root: &Path) -> Result<Marks, Error> {
    let mut marks = Marks::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                // Hidden ones and what was built are not the tree's.
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
                let file = path.strip_prefix(root).unwrap_or(&path).to_string_lossy();
                source(&file, &text, &mut marks)?;
            }
        }
    }
    Ok(marks)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let listed = std::fs::read_dir(folder).map_err(|e| io(folder, e))?;
    listed
        .map(|entry| entry.map(|e| e.path()).map_err(|e| io(folder, e)))
        .collect()
}

fn io(path: &Path, source: std::io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

/// Adds the marks of one file. It is read by lines, since many tests stand in macros (`proptest!`, `conformance!`).
fn source(file: &str, text: &str, marks: &mut Marks) -> Result<(), MarkError> {
    let mut open = Open::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fail = |line: usize, why: Why| MarkError {
            file: file.to_owned(),
            line,
            why,
        };
        if let Some(covered) = line.strip_prefix("/// Covers:") {
            let ids = id::list(covered.trim().trim_end_matches('.'));
            open.ids.extend(ids.map_err(|e| fail(index + 1, e.into()))?);
            open.line = index + 1;
        } else if line.starts_with("///") || line.is_empty() {
        } else if line.starts_with("#[") {
            open.is_test |= line == "#[test]";
        } else if let Some(name) = function(line) {
            if !open.ids.is_empty() && !open.is_test && !file.starts_with(SCENARIOS) {
                return Err(fail(open.line, Why::NoTest(name.to_owned())));
            }
            for id in std::mem::take(&mut open).ids {
                let test = (file.to_owned(), name.to_owned());
                marks.entry(id).or_default().insert(test);
            }
        } else if !open.ids.is_empty() && !open.is_test {
            return Err(fail(open.line, Why::NoFunction));
        } else if open.ids.is_empty() {
            open = Open::default();
        }
        // Else a line of an attribute that takes several.
    }
    Ok(())
}

/// A mark whose function has not come yet.
#[derive(Default)]
struct Open {
    ids: Vec<Id>,
    line: usize,
    is_test: bool,
}

/// The name in a line that begins a function.
fn function(line: &str) -> Option<&str> {
    let rest = ["pub(crate) ", "pub(super) ", "pub "]
        .iter()
        .find_map(|visibility| line.strip_prefix(visibility))
        .unwrap_or(line);
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marks(file: &str, text: &str) -> Result<Vec<String>, String> {
        let mut marks = Marks::new();
        source(file, text, &mut marks).map_err(|e| e.to_string())?;
        let pairs = marks.iter().flat_map(|(id, tests)| {
            let tests = tests.iter();
            tests.map(move |(file, name)| format!("{id} {file} {name}"))
        });
        Ok(pairs.collect())
    }

    #[test]
    fn a_mark_belongs_to_the_next_test() {
        let text = [
            "/// Says something.",
            "///",
            "/// Covers: AV-2, GI-1",
            "#[test]",
            "#[ignore = \"soak: \\",
            "    long\"]",
            "fn first() {}",
            "#[test]",
            "fn unmarked() {}",
            "proptest! {",
            "    /// Covers: AV-2.",
            "    #[test]",
            "    fn second(x in 0..3) {}",
            "}",
        ]
        .join("\n");
        let expected = ["AV-2 a.rs first", "AV-2 a.rs second", "GI-1 a.rs first"];
        assert_eq!(
            marks("a.rs", &text),
            Ok(expected.map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn a_scenario_is_a_test_of_its_suite() {
        let text = "/// Covers: AV-2\npub fn scenario(a: &dyn Domain) {}";
        let file = "hw-tests/conformance/src/a.rs";
        assert_eq!(marks(file, text), Ok(vec![format!("AV-2 {file} scenario")]));
        let refused = marks("core/src/a.rs", text).expect_err("it is no test");
        assert!(
            refused.contains("core/src/a.rs:1") && refused.contains("scenario"),
            "{refused}"
        );
    }

    #[test]
    fn marks_that_say_nothing_are_refused() {
        for (text, part) in [
            ("/// Covers: AV2\n#[test]\nfn a() {}", "AV2"),
            ("/// Covers:\n#[test]\nfn a() {}", "``"),
            ("/// Covers: AV-2\nstruct A;", "no function"),
        ] {
            let refused = marks("a.rs", text).expect_err(text);
            assert!(
                refused.contains("a.rs:1") && refused.contains(part),
                "{refused}"
            );
        }
    }
}
