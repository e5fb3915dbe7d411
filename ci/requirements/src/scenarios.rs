//! The scenarios of the suite, and which tests run each of them: a scenario proves something in
//! those places alone.
//!
//! A test names a scenario (`churn::insertions_beside_a_sender`), or invokes a macro of the suite
//! that lists it (`conformance!`).

use std::collections::{BTreeMap, BTreeSet};

use crate::place::Place;
use crate::scan::Source;

/// Scenarios stand here.
pub(crate) const FOLDER: &str = "hw-tests/conformance/src/";

/// Of scenarios by `group::name`, as the macros of the suite list them.
type Lists = BTreeMap<String, BTreeSet<String>>;

/// The tests that may run scenarios.
pub(crate) struct Runners<'a> {
    lists: Lists,
    sources: Vec<&'a Source>,
}

impl<'a> Runners<'a> {
    pub(crate) fn among(sources: &'a [Source]) -> Self {
        let (suite, others): (Vec<_>, Vec<_>) = sources
            .iter()
            .partition(|source| source.file.starts_with(FOLDER));
        Self {
            lists: suite.iter().flat_map(|source| lists(source)).collect(),
            sources: others,
        }
    }

    /// Where tests run the scenario `name` of `file`.
    pub(crate) fn places(&self, file: &str, name: &str) -> BTreeSet<Place> {
        let path = file.trim_start_matches(FOLDER).trim_end_matches(".rs");
        let group = path.rsplit('/').next().unwrap_or(path);
        let scenario = format!("{group}::{name}");
        // Groups of datagrams have the names of others.
        let datagrams = path.starts_with("dgram/");
        let runs = |source: &&&Source| {
            let listed = self.lists.iter().any(|(suite, scenarios)| {
                datagrams == suite.starts_with("dgram")
                    && scenarios.contains(&scenario)
                    && has_word(&source.text, &format!("{suite}!"))
            });
            let named = datagrams == source.text.contains("dgram::");
            listed || named && has_word(&source.text, &scenario)
        };
        let found = self.sources.iter().filter(runs);
        found.map(|source| Place::of(&source.file)).collect()
    }
}

/// The macros of a file of the suite, each with the scenarios behind it.
fn lists(source: &Source) -> Lists {
    let mut found = Lists::new();
    let mut list = None;
    for line in source.text.lines().map(str::trim) {
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

/// Whether the text has these words, which are no part of longer ones.
fn has_word(text: &str, words: &str) -> bool {
    let belongs = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(words).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let behind = text[at + words.len()..].chars().next();
        !before.is_some_and(belongs) && !behind.is_some_and(belongs)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: &str, text: &str) -> Source {
        Source {
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
                "use dgram::sends;\ndgram_conformance!();\nsends::fourth();",
            ),
        ];
        let runners = Runners::among(&sources);
        let places = |file: &str, name: &str| {
            let places = runners.places(&format!("{FOLDER}{file}"), name);
            places.into_iter().collect::<Vec<_>>()
        };
        assert_eq!(places("sends.rs", "each"), [Place::SharedMemory]);
        assert_eq!(places("levels.rs", "some"), [Place::SharedMemory]);
        assert_eq!(places("sends.rs", "alone"), [Place::SoftRoce]);
        assert_eq!(places("dgram/sends.rs", "other"), [Place::SoftRoce]);
        assert_eq!(places("dgram/sends.rs", "fourth"), [Place::SoftRoce]);
        // Of the same name elsewhere, and one that nobody runs.
        for (file, name) in [
            ("sends.rs", "other"),
            ("sends.rs", "fourth"),
            ("dgram/sends.rs", "each"),
            ("sends.rs", "nobody"),
        ] {
            assert_eq!(places(file, name), [], "{file}: {name}");
        }
    }
}
