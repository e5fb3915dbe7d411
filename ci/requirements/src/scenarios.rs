//! The scenarios of the suite, and which tests run each of them: a scenario proves something in
//! those places alone.
//!
//! A test names a scenario (`churn::insertions_beside_a_sender`, `dgram::waiting::a_queue_wakes`)
//! or invokes a macro of the suite that lists it (`conformance!`). Tests with `#[ignore]` do not
//! count, nor do the scenarios that a file names in its constant `LEFT_OUT`.

use std::collections::{BTreeMap, BTreeSet};

use crate::SourceFile;
use crate::place::TestPlace;

/// Scenarios stand here.
pub(crate) const FOLDER: &str = "hw-tests/conformance/src/";

/// Before the groups of datagrams, which have the names of others.
const DATAGRAMS: &str = "dgram::";

/// The tests that may run scenarios.
pub(crate) struct Runners {
    /// Of each macro of the suite, `group::name` of the scenarios that it lists.
    lists: BTreeMap<String, BTreeSet<String>>,
    files: Vec<RunnerFile>,
}

/// A file whose tests may run scenarios.
struct RunnerFile {
    place: TestPlace,
    code: String,
    /// The scenarios that do not run here, by `group::name`.
    left_out: BTreeSet<String>,
}

impl Runners {
    pub(crate) fn among(sources: &[SourceFile]) -> Self {
        let mut runners = Self {
            lists: BTreeMap::new(),
            files: Vec::new(),
        };
        for SourceFile { file, text } in sources {
            if file.starts_with(FOLDER) {
                runners.add_lists(text);
            } else {
                runners.files.push(RunnerFile {
                    place: TestPlace::of(file),
                    code: code(text),
                    left_out: left_out(text),
                });
            }
        }
        runners
    }

    /// Adds the macros of a file of the suite, each with the scenarios behind it.
    fn add_lists(&mut self, text: &str) {
        let mut list = None;
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("macro_rules! ") {
                let name = rest.trim_end_matches(" {").to_owned();
                list = Some(self.lists.entry(name).or_default());
            } else if let (Some(list), Some(entry)) = (&mut list, line.strip_suffix(',')) {
                let scenario = entry.split(' ').next().unwrap_or(entry);
                list.insert(scenario.to_owned());
            }
        }
    }

    /// Where tests run the scenario `name` of `file`.
    pub(crate) fn places(&self, file: &str, name: &str) -> BTreeSet<TestPlace> {
        let path = file.trim_start_matches(FOLDER).trim_end_matches(".rs");
        let group = path.rsplit('/').next().unwrap_or(path);
        let entry = format!("{group}::{name}");
        let datagrams = path.starts_with("dgram/");
        let lists = self.lists.iter().filter(|(suite, scenarios)| {
            datagrams == suite.starts_with("dgram") && scenarios.contains(&entry)
        });
        let invocations: Vec<String> = lists.map(|(suite, _)| format!("{suite}!")).collect();
        let named = match datagrams {
            true => format!("{DATAGRAMS}{entry}"),
            false => entry,
        };
        let runs = |file: &&RunnerFile| {
            let listed = invocations.iter().any(|it| has_word(&file.code, it));
            (listed || has_word(&file.code, &named)) && !file.left_out.contains(&named)
        };
        let found = self.files.iter().filter(runs);
        found.map(|file| file.place).collect()
    }
}

/// The scenarios in the constant `LEFT_OUT` of a file, if it has one, among other texts there.
fn left_out(text: &str) -> BTreeSet<String> {
    let list = text.split_once("const LEFT_OUT").map(|(_, list)| list);
    let list = list.and_then(|list| list.split("\n];").next());
    let texts = list.unwrap_or("").split('"').skip(1).step_by(2);
    texts.map(str::to_owned).collect()
}

/// The lines of a formatted file without comments, and without functions that have the attribute
/// `#[ignore]`.
fn code(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        code.push_str(line.split("//").next().unwrap_or(line));
        code.push('\n');
        // In the list of a macro the attribute is on no function, and an item is behind it.
        if line.trim_start().starts_with("#[ignore") && !line.ends_with(';') {
            let ends = |it: &&str| it.contains("fn ") || it.ends_with([';', '}']);
            let function = lines.clone().find(ends).filter(|it| it.contains("fn "));
            if let Some(function) = function {
                let indent = function.len() - function.trim_start().len();
                let last = format!("{}}}", &function[..indent]);
                lines.find(|line| *line == function);
                if !function.ends_with('}') {
                    lines.find(|line| *line == last);
                }
            }
        }
    }
    code
}

/// Whether the code has these words, which are no part of longer ones, nor the begin of a text, nor
/// a group of datagrams without its `dgram::`.
fn has_word(code: &str, words: &str) -> bool {
    let in_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(words).any(|(at, _)| {
        let before = &code[..at];
        let behind = code[at + words.len()..].chars().next();
        !before.ends_with(in_word)
            && !before.ends_with('"')
            && !before.ends_with(DATAGRAMS)
            && !behind.is_some_and(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUITE: &str = "macro_rules! conformance {\n  sends::each,\n  levels::some if FENCE,\n  \
                         // sends::no,\n  sends::left,\n}";
    const DATAGRAM_SUITE: &str = "macro_rules! dgram_conformance {\n  sends::other,\n}";

    #[test]
    fn a_scenario_is_run_where_tests_name_it_or_the_macro_that_lists_it() {
        let source = |(file, text): (&str, &str)| SourceFile {
            file: file.to_owned(),
            text: text.to_owned(),
        };
        let runners = Runners::among(
            &[
                ("hw-tests/conformance/src/suite.rs", SUITE),
                ("hw-tests/conformance/src/dgram/mod.rs", DATAGRAM_SUITE),
                ("provider-shm/tests/a.rs", "x::conformance!(fabric());"),
                (
                    "plugin-ofi/tests/a.rs",
                    "const LEFT_OUT: &[&str] = &[\n  \"no call\", \"sends::left\",\n];\n\
                     conformance!(fabric());",
                ),
                (
                    "hw-tests/tests/a.rs",
                    "sends::alone(); sends::each_one();\ndgram_conformance!();\n\
                     dgram::sends::fourth();\n// sends::comment\nsay(\"sends::text\");\n\
                     #[test]\n#[ignore = \"soak: \\\n    long\"]\n#[serial]\n\
                     fn f() {\n    if d {\n        sends::ignored();\n    }\n}\nsends::fifth();\n\
                     jobs! {\n    #[ignore = \"long\"]\n    a: 1;\n    b: sends::listed;\n}",
                ),
            ]
            .map(source),
        );
        use TestPlace::{Plugin, SharedMemory, SoftRoce};
        for (file, name, places) in [
            ("sends", "each", &[SharedMemory, Plugin][..]),
            ("levels", "some", &[SharedMemory, Plugin]),
            ("sends", "left", &[SharedMemory]),
            ("sends", "alone", &[SoftRoce]),
            ("sends", "fifth", &[SoftRoce]),
            ("sends", "listed", &[SoftRoce]),
            ("dgram/sends", "other", &[SoftRoce]),
            ("dgram/sends", "fourth", &[SoftRoce]),
            // Of the same name elsewhere, and those that nothing runs.
            ("sends", "other", &[]),
            ("sends", "fourth", &[]),
            ("dgram/sends", "each", &[]),
            ("dgram/sends", "fifth", &[]),
            ("sends", "no", &[]),
            ("sends", "comment", &[]),
            ("sends", "text", &[]),
            ("sends", "ignored", &[]),
        ] {
            let found = runners.places(&format!("{FOLDER}{file}.rs"), name);
            assert!(found.iter().eq(places), "{file} {name}: {found:?}");
        }
    }
}
