//! Finds the marks in the sources: `Covers: ID, ID` at the end of a line in the doc comment of a
//! test, or of a scenario that tests run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::id::{self, NotAnId, RequirementId};
use crate::place::TestPlace;
use crate::scenarios::{FOLDER as SCENARIOS, Runners};

/// For each requirement the tests that prove it.
pub type Marks = BTreeMap<RequirementId, BTreeSet<Test>>;

/// A test, or a scenario that tests run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// Its file, from the root of the tree.
    pub file: String,
    /// The name of its function.
    pub name: String,
    /// Where it runs. A scenario may run in several places.
    pub places: BTreeSet<TestPlace>,
    /// It has the attribute `#[ignore]`: a plain run leaves it out.
    pub ignored: bool,
}

/// A source file.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Its path, from the root of the tree.
    pub(crate) file: String,
    pub(crate) text: String,
}

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
    #[error("`Covers:` stands on the scenario `{0}`, which no test runs")]
    NotRun(String),
}

/// Finds the marks in all sources below `root`.
///
/// # Errors
/// A file that can not be read, or a mark that says nothing.
pub fn tree(root: &Path) -> Result<Marks, Error> {
    Ok(marks(&sources(root)?)?)
}

/// Reads all sources below `root`.
fn sources(root: &Path) -> Result<Vec<SourceFile>, Error> {
    let mut sources = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in entries(&folder)? {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                // Hidden folders and build results are not part of the tree.
                if !name.starts_with('.') && name != "target" {
                    folders.push(path);
                }
            } else if name.ends_with(".rs") {
                let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
                let file = path.strip_prefix(root).unwrap_or(&path);
                let file = file.to_string_lossy().into_owned();
                sources.push(SourceFile { file, text });
            }
        }
    }
    Ok(sources)
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

/// The marks of these sources.
fn marks(sources: &[SourceFile]) -> Result<Marks, MarkError> {
    let runners = Runners::among(sources);
    let mut marks = Marks::new();
    for source in sources {
        add(source, &runners, &mut marks)?;
    }
    Ok(marks)
}

/// Adds the marks of one file. It is read by lines, since many tests stand in macros (`proptest!`,
/// `conformance!`).
fn add(source: &SourceFile, runners: &Runners, marks: &mut Marks) -> Result<(), MarkError> {
    let SourceFile { file, text } = source;
    let is_scenario = file.starts_with(SCENARIOS);
    let mut open = Open::default();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let fail = |line: usize, why: Why| MarkError {
            file: file.to_owned(),
            line,
            why,
        };
        if let Some(covered) = covered(line) {
            let ids = id::list(covered.trim().trim_end_matches('.'));
            open.ids.extend(ids.map_err(|e| fail(index + 1, e.into()))?);
            open.line = index + 1;
        } else if line.starts_with("///") || line.is_empty() {
        } else if line.starts_with("#[") {
            open.is_test |= line == "#[test]";
            open.is_ignored |= line.starts_with("#[ignore");
        } else if let Some(name) = function(line) {
            let open = std::mem::take(&mut open);
            if open.ids.is_empty() {
                continue;
            }
            let places = match is_scenario {
                true => runners.places(file, name),
                false if open.is_test => BTreeSet::from([TestPlace::of(file)]),
                false => return Err(fail(open.line, Why::NoTest(name.to_owned()))),
            };
            if places.is_empty() {
                return Err(fail(open.line, Why::NotRun(name.to_owned())));
            }
            for id in open.ids {
                marks.entry(id).or_default().insert(Test {
                    file: file.clone(),
                    name: name.to_owned(),
                    places: places.clone(),
                    ignored: open.is_ignored,
                });
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

/// The text behind `Covers:` in a line of a doc comment.
fn covered(line: &str) -> Option<&str> {
    let (before, covered) = line.strip_prefix("///")?.split_once("Covers:")?;
    // Texts about marks have them between backticks.
    (!before.ends_with('`')).then_some(covered)
}

/// A mark whose function has not come yet.
#[derive(Default)]
struct Open {
    ids: Vec<RequirementId>,
    line: usize,
    is_test: bool,
    is_ignored: bool,
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

    fn found(sources: &[(&str, &str)]) -> Result<Vec<String>, String> {
        let source = |(file, text): &(&str, &str)| SourceFile {
            file: (*file).to_owned(),
            text: (*text).to_owned(),
        };
        let sources: Vec<SourceFile> = sources.iter().map(source).collect();
        let marks = marks(&sources).map_err(|e| e.to_string())?;
        let pairs = marks.iter().flat_map(|(id, tests)| {
            let tests = tests.iter();
            tests.map(move |test| {
                let ignored = if test.ignored { " ignored" } else { "" };
                format!(
                    "{id} {} {} {:?}{ignored}",
                    test.file, test.name, test.places
                )
            })
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
            "/// In one line with its text. Covers: GI-2",
            "#[test]",
            "fn third() {}",
        ]
        .join("\n");
        let expected = [
            "AV-2 a.rs first {Elsewhere} ignored",
            "AV-2 a.rs second {Elsewhere}",
            "GI-1 a.rs first {Elsewhere} ignored",
            "GI-2 a.rs third {Elsewhere}",
        ];
        assert_eq!(
            found(&[("a.rs", &text)]),
            Ok(expected.map(str::to_owned).to_vec())
        );
    }

    #[test]
    fn a_scenario_is_a_test_of_its_suite() {
        let text = "/// Covers: AV-2\npub fn scenario(a: &dyn Domain) {}";
        let file = "hw-tests/conformance/src/a.rs";
        let runs = [
            ("provider-shm/tests/x.rs", "a::scenario(&domain)"),
            ("hw-tests/tests/x.rs", "run(a::scenario)"),
        ];
        assert_eq!(
            found(&[(file, text), runs[0], runs[1]]),
            Ok(vec![format!(
                "AV-2 {file} scenario {{SharedMemory, SoftRoce}}"
            )])
        );
        let refused = found(&[(file, text)]).expect_err("no test runs it");
        assert!(refused.contains("no test runs"), "{refused}");
        let refused = found(&[("core/src/a.rs", text)]).expect_err("it is no test");
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
            let refused = found(&[("a.rs", text)]).expect_err(text);
            assert!(
                refused.contains("a.rs:1") && refused.contains(part),
                "{refused}"
            );
        }
    }
}
