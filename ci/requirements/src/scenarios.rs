//! The scenarios of the suite, and which tests run each of them: a scenario proves something in
//! those places alone.
//!
//! A test names a scenario (`churn::insertions_beside_a_sender`, `dgram::waiting::a_queue_wakes`)
//! or invokes a macro of the suite that lists it (`conformance!`). Tests with `#[ignore]` do not
//! count, nor do the scenarios that a file names in its constant `LEFT_OUT`.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{code, in_word, without_ignored};
use crate::place::TestPlace;
use crate::scan::SourceFile;

/// Scenarios stand here.
pub(crate) const FOLDER: &str = "hw-tests/conformance/src/";

/// Of scenarios by `group::name`, as the macros of the suite list them.
type ScenarioLists = BTreeMap<String, BTreeSet<String>>;

/// Before the groups of datagrams, which have the names of others.
const DATAGRAMS: &str = "dgram::";

/// The tests that may run scenarios.
pub(crate) struct Runners {
    lists: ScenarioLists,
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
        let (suite, others): (Vec<_>, Vec<_>) = sources
            .iter()
            .partition(|source| source.file.starts_with(FOLDER));
        Self {
            lists: suite.iter().flat_map(|source| lists(source)).collect(),
            files: others
                .iter()
                .map(|it| RunnerFile {
                    place: TestPlace::of(&it.file),
                    code: without_ignored(&code(&it.text)),
                    left_out: left_out(&it.text),
                })
                .collect(),
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

/// The macros of a file of the suite, each with the scenarios behind it.
fn lists(source: &SourceFile) -> ScenarioLists {
    let mut found = ScenarioLists::new();
    let mut list = None;
    for line in code(&source.text).lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("macro_rules! ") {
            let name = rest.trim_end_matches(" {").to_owned();
            list = Some(found.entry(name).or_default());
        } else if let (Some(list), Some(entry)) = (&mut list, line.strip_suffix(',')) {
            let scenario = entry.split(' ').next().unwrap_or(entry);
            list.insert(scenario.to_owned());
        }
    }
    found
}

/// Whether the code has these words, which are no part of longer ones, nor a group of datagrams
/// without its `dgram::`.
fn has_word(code: &str, words: &str) -> bool {
    code.match_indices(words).any(|(at, _)| {
        let before = &code[..at];
        let behind = code[at + words.len()..].chars().next();
        !before.ends_with(in_word) && !before.ends_with(DATAGRAMS) && !behind.is_some_and(in_word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, text: &str) -> SourceFile {
        SourceFile {
            file: file.to_owned(),
            text: text.to_owned(),
        }
    }

    #[test]
    fn a_scenario_is_run_where_tests_name_it_or_the_macro_that_lists_it() {
        let sources = [
            source(
                &format!("{FOLDER}suite.rs"),
                "macro_rules! conformance {\n  sends::each,\n  levels::some if FENCE,\n}",
            ),
            source(
                &format!("{FOLDER}dgram/mod.rs"),
                "macro_rules! dgram_conformance {\n  sends::other,\n}",
            ),
            source("provider-shm/tests/a.rs", "x::conformance!(fabric());"),
            source("hw-tests/tests/a.rs", "sends::alone(); sends::each_one();"),
            source(
                "hw-tests/tests/b.rs",
                "dgram_conformance!();\ndgram::sends::fourth();\nsends::fifth();",
            ),
        ];
        let runners = Runners::among(&sources);
        let places = |file: &str, name: &str| {
            let places = runners.places(&format!("{FOLDER}{file}"), name);
            places.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(places("sends.rs", "each"), [TestPlace::SharedMemory]);
        assert_eq!(places("levels.rs", "some"), [TestPlace::SharedMemory]);
        assert_eq!(places("sends.rs", "alone"), [TestPlace::SoftRoce]);
        assert_eq!(places("dgram/sends.rs", "other"), [TestPlace::SoftRoce]);
        assert_eq!(places("dgram/sends.rs", "fourth"), [TestPlace::SoftRoce]);
        assert_eq!(places("sends.rs", "fifth"), [TestPlace::SoftRoce]);
        // Of the same name elsewhere, and one that nobody runs.
        for (file, name) in [
            ("sends.rs", "other"),
            ("sends.rs", "fourth"),
            ("dgram/sends.rs", "each"),
            ("dgram/sends.rs", "fifth"),
            ("sends.rs", "nobody"),
        ] {
            assert_eq!(places(file, name), [], "{file}: {name}");
        }
    }

    #[test]
    fn what_a_file_leaves_out_does_not_run_there() {
        let sources = [
            source(
                &format!("{FOLDER}suite.rs"),
                "macro_rules! conformance {\n  sends::each,\n  sends::other,\n}",
            ),
            source("provider-shm/tests/a.rs", "conformance!(fabric());"),
            source(
                "plugin-ofi/tests/a.rs",
                "const LEFT_OUT: &[&str] = &[\n  \"no call\", \"sends::other\",\n];\n\
                 say(\"sends::each\");\nconformance!(fabric());",
            ),
        ];
        let runners = Runners::among(&sources);
        let places = |name| runners.places(&format!("{FOLDER}sends.rs"), name);
        assert_eq!(places("other"), [TestPlace::SharedMemory].into());
        assert_eq!(
            places("each"),
            [TestPlace::SharedMemory, TestPlace::Plugin].into()
        );
    }

    #[test]
    fn comments_strings_and_ignored_tests_run_nothing() {
        let sources = [
            source(
                &format!("{FOLDER}suite.rs"),
                "macro_rules! conformance {\n  sends::each,\n  // sends::other,\n  /*\n  \
                 sends::third,\n  */\n}",
            ),
            source("provider-shm/tests/a.rs", "conformance!(fabric());"),
            source(
                "hw-tests/tests/a.rs",
                "// conformance!(fabric());\n/* sends::fourth(); */\nsay(\"sends::fourth\");\n\
                 #[test]\n#[ignore = \"soak\"]\nfn a() { sends::fourth(); }\nsends::fifth();",
            ),
        ];
        let runners = Runners::among(&sources);
        for (name, places) in [
            ("each", &[TestPlace::SharedMemory][..]),
            ("other", &[]),
            ("third", &[]),
            ("fourth", &[]),
            ("fifth", &[TestPlace::SoftRoce]),
        ] {
            let found = runners.places(&format!("{FOLDER}sends.rs"), name);
            assert!(found.iter().eq(places), "{name}: {found:?}");
        }
    }
}
