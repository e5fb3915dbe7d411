//! `docs/conformance.md`: text, tables, a line `Not built yet: ID, ID.`, and the reasons for tests
//! that are missing, `- No test on Soft-RoCE: ID, ID: reason`.
//!
//! A row has an ID, a behaviour, and its tests in one column or in one for each [`TestPlace`]. The
//! columns of tests are written by the program, all else by hand.

use std::collections::BTreeSet;

use crate::DOCUMENT;
use crate::marks::{Marks, RequirementId, Test};
use crate::place::TestPlace;

const NOT_BUILT: &str = "Not built yet: ";
const NO_TESTS: &str = "none yet";
const NO_TEST_HERE: &str = "none: the reason is above";

/// What the document says of tests that are missing.
#[derive(Default)]
struct Missing {
    not_built: BTreeSet<RequirementId>,
    /// The columns that need no test, until a column has been found empty.
    excused: BTreeSet<(RequirementId, TestPlace)>,
}

/// The document with the columns of tests that the marks give.
pub(crate) fn with_tests(text: &str, marks: &Marks, faults: &mut Vec<String>) -> String {
    let mut missing = Missing::default();
    let mut known = BTreeSet::new();
    let mut width = 0;
    let mut written = String::new();
    let at = |index: usize, why: &str| format!("{DOCUMENT}:{}: {why}", index + 1);
    for (index, line) in text.lines().enumerate() {
        if let Err(why) = missing.add(line) {
            faults.push(at(index, &why));
        }
    }
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        match cells[..] {
            ["", "ID", "behaviour", ref titles @ .., ""] => {
                width = titles.len();
                if titles != ["tests"] && titles != TestPlace::ALL.map(TestPlace::title) {
                    let why = "the columns are ID, behaviour, and `tests` or each place";
                    faults.push(at(index, why));
                }
            }
            ["", name, ref rest @ ..] if name.starts_with(|it: char| it.is_ascii_uppercase()) => {
                match (RequirementId::parse(name), rest) {
                    (Ok(id), [behaviour, tests @ .., ""]) if tests.len() == width => {
                        let tests = missing.columns(&id, width, marks, faults).join(" | ");
                        written.push_str(&format!("| {id} | {behaviour} | {tests} |\n"));
                        if !known.insert(id) {
                            faults.push(format!("{name} has two rows"));
                        }
                    }
                    (Err(why), _) => faults.push(at(index, &why)),
                    _ => faults.push(at(index, "a row has the cells of the table's head")),
                }
                continue;
            }
            _ => {}
        }
        written.push_str(line);
        written.push('\n');
    }
    for (id, tests) in marks.iter().filter(|(id, _)| !known.contains(id)) {
        let tests = cell(tests.iter(), None);
        faults.push(format!("{id} has no row: {tests}"));
    }
    let unknown = missing.not_built.difference(&known);
    faults.extend(unknown.map(|id| format!("{id} is called not built, but has no row")));
    faults.extend(missing.excused.iter().map(|(id, place)| {
        let title = place.title();
        format!("{id}: `{title}` needs no reason, since it has a test or is no column")
    }));
    written
}

impl Missing {
    /// Reads a line. A long reason goes on in the next ones.
    fn add(&mut self, line: &str) -> Result<(), String> {
        if let Some(ids) = line.strip_prefix(NOT_BUILT) {
            self.not_built.extend(RequirementId::list(ids)?);
        } else if line.starts_with("- No test ") {
            let mut places = TestPlace::ALL.into_iter();
            let said = places.find_map(|place| Some((place, line.strip_prefix(place.reason()?)?)));
            let said = said.and_then(|(place, said)| Some((place, said.split_once(": ")?)));
            let (place, (ids, _)) = said.ok_or("`PLACE: ID, ID: reason` was expected")?;
            let ids = RequirementId::list(ids)?.into_iter();
            self.excused.extend(ids.map(|id| (id, place)));
        }
        Ok(())
    }

    /// The columns of tests of a row.
    fn columns(
        &mut self,
        id: &RequirementId,
        width: usize,
        marks: &Marks,
        faults: &mut Vec<String>,
    ) -> Vec<String> {
        let is_built = !self.not_built.contains(id);
        let Some(tests) = marks.get(id) else {
            if is_built {
                faults.push(format!(
                    "{id} has no test, and is not among what is not built"
                ));
            }
            return vec![NO_TESTS.to_owned(); width];
        };
        if !is_built {
            faults.push(format!("{id} is called not built, but a test proves it"));
        }
        if tests.iter().all(|test| test.ignored) {
            faults.push(format!("{id} has only tests with `#[ignore]`"));
        }
        if width == 1 {
            return vec![cell(tests.iter(), None)];
        }
        let column = |place: TestPlace| {
            let here = tests.iter().filter(|test| match place {
                // Scenarios that also run on the fake device are in the other columns.
                TestPlace::Elsewhere => test.places.iter().all(|one| *one == place),
                _ => test.places.contains(&place),
            });
            // A test that a plain run leaves out is listed with others, but fills no column.
            if place.reason().is_none() || here.clone().any(|test| !test.ignored) {
                return cell(here, Some(place));
            }
            if !self.excused.remove(&(id.clone(), place)) {
                let title = place.title();
                faults.push(format!("{id}: `{title}` has neither a test nor a reason"));
            }
            NO_TEST_HERE.to_owned()
        };
        TestPlace::ALL.map(column).into()
    }
}

/// Tests by file. A column of a place leaves out its folder.
fn cell<'a>(tests: impl Iterator<Item = &'a Test>, place: Option<TestPlace>) -> String {
    let separator = if place.is_some() { "<br>" } else { "; " };
    let mut cell = String::new();
    let mut last = "";
    for Test { file, name, .. } in tests {
        if last == file {
            cell.push_str(", ");
        } else {
            let separator = if last.is_empty() { "" } else { separator };
            let label = place.map_or_else(|| file.clone(), |place| label(file, place));
            cell.push_str(&format!("{separator}[{label}](../{file}): "));
        }
        cell.push_str(&format!("`{name}`"));
        last = file;
    }
    cell
}

/// The module of a file: without the folder that all files of the column share, and without the name
/// of the package's only program of integration tests.
fn label(file: &str, place: TestPlace) -> String {
    let module = file.trim_end_matches(".rs");
    let module = ["/main", "/mod"]
        .iter()
        .find_map(|it| module.strip_suffix(it))
        .unwrap_or(module);
    match module.strip_prefix("hw-tests/conformance/src/") {
        Some(scenarios) => format!("conformance/{scenarios}"),
        None => {
            let module = module.replace("tests/integration/", "tests/");
            module.trim_start_matches(place.folder()).to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
Not built yet: PEER-3.

- No test over shared memory: AV-2: it has no device,
  nor anything like one.

| ID | behaviour | tests |
|---|---|---|
| PEER-2 | two | stale |
| PEER-3 | three | |

| ID | behaviour | shared memory | plugin | Soft-RoCE | elsewhere |
|---|---|---|---|---|---|
| AV-1 | one | stale | | | |
| AV-2 | two | | | | |
";

    const SHM: &str = "provider-shm/tests/p/main.rs";
    const PLUGIN: &str = "plugin-ofi/tests/p/a.rs";
    const DEVICE: &str = "hw-tests/tests/a.rs";

    /// Tests that leave no column empty without a reason.
    const ENOUGH: [(&str, &str, &str); 7] = [
        ("AV-1", SHM, "x"),
        ("AV-1", PLUGIN, "y"),
        ("AV-1", DEVICE, "z"),
        ("AV-2", PLUGIN, "y"),
        ("AV-2", DEVICE, "z"),
        ("PEER-2", "a.rs", "x"),
        ("PEER-2", "a.rs", "y"),
    ];

    fn written(text: &str, of: &[(&str, &str, &str)]) -> (String, String) {
        let mut marks = Marks::new();
        for &(id, file, name) in of {
            let mut places = BTreeSet::from([TestPlace::of(file)]);
            if name == "scenario" {
                places.extend([TestPlace::SharedMemory, TestPlace::SoftRoce]);
            }
            let id = RequirementId::parse(id).expect("an ID");
            marks.entry(id).or_default().insert(Test {
                file: file.to_owned(),
                name: name.to_owned(),
                places,
                ignored: name == "soak",
            });
        }
        let mut faults = Vec::new();
        let written = with_tests(text, &marks, &mut faults);
        (written, faults.join("\n"))
    }

    #[test]
    fn tests_are_listed_by_file_and_place() {
        let more = [
            ("AV-1", "hw-tests/conformance/src/c.rs", "scenario"),
            ("AV-1", "core/src/u.rs", "u"),
            ("AV-1", SHM, "soak"),
            ("PEER-2", "b.rs", "z"),
        ];
        let scenario = "[conformance/c](../hw-tests/conformance/src/c.rs): `scenario`";
        let shm = "[p](../provider-shm/tests/p/main.rs): `soak`, `x`";
        let plugin = "[p/a](../plugin-ofi/tests/p/a.rs): `y`";
        let device = "[a](../hw-tests/tests/a.rs): `z`";
        let unit = "[core/src/u](../core/src/u.rs): `u`";
        let expected = TEXT
            .replace(
                "| stale |\n",
                "| [a.rs](../a.rs): `x`, `y`; [b.rs](../b.rs): `z` |\n",
            )
            .replace("| three | |", "| three | none yet |")
            .replace(
                "| stale | | | |",
                &format!("| {scenario}<br>{shm} | {plugin} | {scenario}<br>{device} | {unit} |"),
            )
            .replace(
                "| two | | | | |",
                &format!("| two | none: the reason is above | {plugin} | {device} |  |"),
            );
        let of = [&ENOUGH[..], &more].concat();
        assert_eq!(written(TEXT, &of), (expected.clone(), String::new()));
        assert_eq!(written(&expected, &of), (expected, String::new()));
    }

    #[test]
    fn an_empty_column_needs_a_reason() {
        for (lacking, title) in [(0, "shared memory"), (1, "plugin"), (2, "Soft-RoCE")] {
            let mut of = ENOUGH.to_vec();
            let (_, file, _) = of.remove(lacking);
            // Neither a test elsewhere nor one that is ignored fills it.
            of.extend([("AV-1", "core/src/u.rs", "u"), ("AV-1", file, "soak")]);
            let fault = format!("AV-1: `{title}` has neither a test nor a reason");
            assert_eq!(written(TEXT, &of).1, fault);
        }
    }

    #[test]
    fn what_does_not_agree_is_named() {
        for (more, part) in [
            (("AV-2", SHM, "x"), "AV-2: `shared memory` needs no reason"),
            (("PEER-3", "a.rs", "x"), "PEER-3 is called not built"),
            (("PEER-4", "a.rs", "x"), "PEER-4 has no row: [a.rs]"),
        ] {
            let (_, faults) = written(TEXT, &[&ENOUGH[..], &[more]].concat());
            assert!(
                faults.starts_with(part) && faults.lines().count() == 1,
                "{faults}"
            );
        }
        let soak = [&ENOUGH[..5], &[("PEER-2", "a.rs", "soak")]].concat();
        assert!(written(TEXT, &soak).1.contains("PEER-2 has only tests"));
        for (from, to, part) in [
            ("PEER-3 |", "PEER-2 |", "PEER-2 has two rows"),
            ("PEER-2 |", "PEERX |", ".md:8: `PEERX`"),
            ("| stale |\n", "| stale | more |\n", ".md:8: a row"),
            ("| tests", "| proofs", ".md:6: the columns"),
            ("| ID", "| Name", ".md:6: `Name`"),
            ("yet: PEER-3", "yet: PEER-3, PEER-9", "PEER-9 is called"),
            (
                "memory: AV-2:",
                "memory: AV-2, AV-9:",
                "AV-9: `shared memory` needs",
            ),
            ("over shared memory", "on the moon", ".md:3: `PLACE"),
            ("AV-2: it has no device,", "AV-2", ".md:3: `PLACE"),
        ] {
            let (_, faults) = written(&TEXT.replace(from, to), &ENOUGH);
            assert!(faults.contains(part), "{from}: {faults}");
        }
    }
}
