//! The scenarios of the suite, and which tests run each of them: a scenario proves something in
//! those places alone.
//!
//! A test names a scenario (`churn::insertions_beside_a_sender`, `dgram::waiting::a_queue_wakes`)
//! or invokes a macro of the suite that lists it (`conformance!`). Tests with `#[ignore]` do not
//! count.

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
    /// The place and the code of each file.
    sources: Vec<(TestPlace, String)>,
}

impl Runners {
    pub(crate) fn among(sources: &[SourceFile]) -> Self {
        let (suite, others): (Vec<_>, Vec<_>) = sources
            .iter()
            .partition(|source| source.file.starts_with(FOLDER));
        Self {
            lists: suite.iter().flat_map(|source| lists(source)).collect(),
            sources: others
                .iter()
                .map(|it| (TestPlace::of(&it.file), without_ignored(&code(&it.text))))
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
        let runs = |code: &str| {
            let listed = invocations.iter().any(|it| has_word(code, it));
            listed || has_word(code, &named)
        };
        let found = self.sources.iter().filter(|(_, code)| runs(code));
        found.map(|(place, _)| *place).collect()
    }
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
