//! Finds the marks in the sources: `Covers: ID, ID` at the end of a line in the doc comment of a
//! test, or of a scenario that tests run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::SourceFile;
use crate::place::TestPlace;
use crate::scenarios::{FOLDER as SCENARIOS, Runners};

/// A requirement's name: a group and a number, as in `AV-11`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequirementId(String, u32);

impl RequirementId {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let parts = text.split_once('-').and_then(|(group, number)| {
            let capitals = !group.is_empty() && group.bytes().all(|it| it.is_ascii_uppercase());
            let digits = number.bytes().all(|it| it.is_ascii_digit());
            let number = number.parse().ok()?;
            (capitals && digits).then(|| Self(group.to_owned(), number))
        });
        parts.ok_or_else(|| format!("`{text}` is no requirement's name, as AV-11 is"))
    }

    /// Reads `AV-1, AV-2`.
    pub(crate) fn list(text: &str) -> Result<Vec<Self>, String> {
        let parts = text.trim().trim_end_matches('.').split(',');
        parts.map(|part| Self::parse(part.trim())).collect()
    }
}

impl fmt::Display for RequirementId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0, self.1)
    }
}

/// For each requirement the tests that prove it.
pub(crate) type Marks = BTreeMap<RequirementId, BTreeSet<Test>>;

/// A test, or a scenario that tests run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    /// Its file, from the root of the tree.
    pub(crate) file: String,
    /// The name of its function.
    pub(crate) name: String,
    /// Where it runs. A scenario may run in several places.
    pub(crate) places: BTreeSet<TestPlace>,
    /// It has the attribute `#[ignore]`: a plain run leaves it out.
    pub(crate) ignored: bool,
}

/// A mark whose function has not come yet.
#[derive(Default)]
struct Open {
    ids: Vec<RequirementId>,
    line: usize,
    is_test: bool,
    ignored: bool,
}

/// The marks of these sources, which are read by lines: many tests are in macros (`proptest!`).
pub(crate) fn of(sources: &[SourceFile], faults: &mut Vec<String>) -> Marks {
    let runners = Runners::among(sources);
    let mut marks = Marks::new();
    for SourceFile { file, text } in sources {
        let mut open = Open::default();
        for (index, line) in text.lines().map(str::trim).enumerate() {
            if let Some(covered) = covered(line) {
                open.line = index + 1;
                match RequirementId::list(covered) {
                    Ok(ids) => open.ids.extend(ids),
                    Err(why) => faults.push(format!("{file}:{}: {why}", open.line)),
                }
            } else if line.starts_with("#[") {
                open.is_test |= line == "#[test]";
                open.ignored |= line.starts_with("#[ignore");
            } else if let Some(name) = function(line) {
                let open = std::mem::take(&mut open);
                if open.ids.is_empty() {
                    continue;
                }
                match places(file, name, open.is_test, &runners) {
                    Ok(places) => {
                        let test = Test {
                            file: file.clone(),
                            name: name.to_owned(),
                            places,
                            ignored: open.ignored,
                        };
                        for id in open.ids {
                            marks.entry(id).or_default().insert(test.clone());
                        }
                    }
                    Err(why) => faults.push(format!("{file}:{}: `{name}` {why}", open.line)),
                }
            } else if line.starts_with("///") || line.is_empty() {
            } else if open.ids.is_empty() || !open.is_test {
                if !open.ids.is_empty() {
                    let line = open.line;
                    faults.push(format!("{file}:{line}: `Covers:` stands on no function"));
                }
                open = Open::default();
            }
            // Else a line of an attribute that takes several.
        }
    }
    marks
}

/// Where a marked function runs.
fn places(
    file: &str,
    name: &str,
    is_test: bool,
    runners: &Runners,
) -> Result<BTreeSet<TestPlace>, String> {
    if !file.starts_with(SCENARIOS) {
        let test = is_test.then(|| BTreeSet::from([TestPlace::of(file)]));
        return test.ok_or_else(|| format!("is neither a `#[test]` nor a scenario in {SCENARIOS}"));
    }
    let places = runners.places(file, name);
    match places.is_empty() {
        true => Err("is a scenario that no test runs".to_owned()),
        false => Ok(places),
    }
}

/// The text behind `Covers:` in a line of a doc comment.
fn covered(line: &str) -> Option<&str> {
    let (before, covered) = line.strip_prefix("///")?.split_once("Covers:")?;
    // Texts about marks have them between backticks.
    (!before.ends_with('`')).then_some(covered)
}

/// The name in a line that begins a function.
fn function(line: &str) -> Option<&str> {
    let visibilities = ["pub(crate) ", "pub(super) ", "pub ", ""];
    let rest = visibilities.iter().find_map(|it| line.strip_prefix(it))?;
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(sources: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let source = |&(file, text): &(&str, &str)| SourceFile {
            file: file.to_owned(),
            text: text.to_owned(),
        };
        let sources: Vec<SourceFile> = sources.iter().map(source).collect();
        let mut faults = Vec::new();
        let marks = of(&sources, &mut faults);
        let each = marks.iter().flat_map(|(id, tests)| {
            let shown = move |it: &Test| {
                let ignored = if it.ignored { " ignored" } else { "" };
                format!("{id} {} {} {:?}{ignored}", it.file, it.name, it.places)
            };
            tests.iter().map(shown)
        });
        (each.collect(), faults)
    }

    #[test]
    fn a_mark_belongs_to_the_next_test() {
        let text = concat!(
            "/// Says something.\n///\n/// Covers: AV-10, GI-1\n#[test]\n",
            "#[ignore = \"soak: \\\n    long\"]\nfn first() {}\n#[test]\nfn unmarked() {}\n",
            "proptest! {\n    /// Covers: AV-9.\n    #[test]\n    fn second(x in 0..3) {}\n}\n",
            "/// In one line with its text. Covers: GI-2\n#[test]\nfn third() {}"
        );
        let expected = [
            "AV-9 a.rs second {Elsewhere}",
            "AV-10 a.rs first {Elsewhere} ignored",
            "GI-1 a.rs first {Elsewhere} ignored",
            "GI-2 a.rs third {Elsewhere}",
        ];
        let (marks, faults) = found(&[("a.rs", text)]);
        assert_eq!(
            (marks, faults),
            (expected.map(str::to_owned).into(), vec![])
        );
    }

    #[test]
    fn the_folder_of_a_test_is_its_place() {
        let text = "/// Covers: AV-2\n#[test]\nfn a() {}";
        for (file, place) in [
            ("provider-shm/tests/a.rs", "SharedMemory"),
            ("plugin-ofi/tests/program/a.rs", "Plugin"),
            ("hw-tests/tests/a.rs", "SoftRoce"),
            ("hw-tests/fake-device/tests/a.rs", "Elsewhere"),
            ("plugin-ofi/src/a.rs", "Elsewhere"),
        ] {
            let expected = format!("AV-2 {file} a {{{place}}}");
            assert_eq!(found(&[(file, text)]), (vec![expected], vec![]));
        }
    }

    #[test]
    fn a_scenario_is_a_test_where_it_runs() {
        let text = "/// Covers: AV-2\npub fn s(a: &dyn Domain) {}";
        let file = "hw-tests/conformance/src/a.rs";
        let shm = ("provider-shm/tests/x.rs", "a::s(&domain)");
        let device = ("hw-tests/tests/x.rs", "run(a::s)");
        let expected = format!("AV-2 {file} s {{SharedMemory, SoftRoce}}");
        assert_eq!(found(&[(file, text), shm, device]).0, [expected]);
    }

    #[test]
    fn marks_that_say_nothing_are_faults() {
        let scenario = "hw-tests/conformance/src/a.rs";
        for (file, text, part) in [
            ("a.rs", "/// Covers: AV2\n#[test]\nfn a() {}", "`AV2`"),
            ("a.rs", "/// Covers:\n#[test]\nfn a() {}", "``"),
            ("a.rs", "/// Covers: AV-2\nstruct A;", "no function"),
            ("a.rs", "/// Covers: AV-2\nfn a() {}", "`a` is neither"),
            (scenario, "/// Covers: AV-2\nfn a() {}", "no test runs"),
        ] {
            let (_, faults) = found(&[(file, text)]);
            let expected = format!("{file}:1: ");
            assert!(
                faults.len() == 1 && faults[0].starts_with(&expected) && faults[0].contains(part),
                "{faults:?}"
            );
        }
        for id in ["AV", "AV-", "-1", "av-1", "AV-+1", "AV-1x", "AV 1"] {
            assert!(RequirementId::parse(id).is_err(), "{id}");
        }
    }
}
