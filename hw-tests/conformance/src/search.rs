//! A search for a program that fails.
//!
//! One that does is made as small as it can be and printed as text. Put into a file of
//! `regressions/` (`NAME.txt`), it is run first from then on; `FERRO_CONFORMANCE_REPLAY=FILE` runs
//! one and no others. `FERRO_CONFORMANCE_CASES` says how many programs are drawn.

use std::cell::Cell;
use std::fmt::Debug;
use std::path::Path;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner, basic_result_cache};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::model::program::RankProgram;

/// A program may fail only now and then: after the first failure, a program counts as good when it
/// passes this number of times.
const TRIES: u32 = 5;

/// The extent of a search.
pub struct ProgramSearch {
    /// The fabric.
    pub name: &'static str,
    /// The folder of programs that have failed before, in this package.
    pub regressions: &'static str,
    /// Programs to draw.
    pub cases: u32,
}

impl ProgramSearch {
    /// Runs the programs that have failed before, then random ones. `check` runs one, and says
    /// whether it could be judged.
    ///
    /// # Panics
    ///
    /// With the smallest program that fails, if one does.
    pub fn run<S>(
        &self,
        programs: &impl Strategy<Value = RankProgram<S>>,
        check: impl Fn(&RankProgram<S>) -> Result<bool, String>,
    ) where
        S: Serialize + DeserializeOwned + Debug,
    {
        if let Ok(file) = std::env::var("FERRO_CONFORMANCE_REPLAY") {
            return self.replay(Path::new(&file), &check);
        }
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join(self.regressions);
        let mut files: Vec<_> = std::fs::read_dir(&kept)
            .unwrap_or_else(|why| panic!("{}: {why}", kept.display()))
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "txt"))
            .collect();
        files.sort();
        for file in &files {
            self.replay(file, &check);
        }
        let cases =
            std::env::var("FERRO_CONFORMANCE_CASES").map_or(self.cases, |n| n.parse().unwrap());
        let undecided = Cell::new(0);
        let failed = smallest_that_fails(cases, programs, |program| {
            check(program).map(|decided| undecided.set(undecided.get() + u32::from(!decided)))
        });
        if let Some(why) = failed {
            panic!("{}: {why}", self.name);
        }
        let undecided = undecided.get();
        println!(
            "{}: {cases} programs, {undecided} of them too ambiguous to judge",
            self.name
        );
        assert!(undecided * 20 <= cases, "too many are not judged");
    }

    /// Runs the program of a file.
    fn replay<S: Serialize + DeserializeOwned>(
        &self,
        file: &Path,
        check: impl Fn(&RankProgram<S>) -> Result<bool, String>,
    ) {
        let text = std::fs::read_to_string(file).unwrap();
        let outcome = RankProgram::from_text(&text).and_then(|program| check(&program));
        if let Err(why) = outcome {
            panic!("{}: {}: {why}", self.name, file.display());
        }
    }
}

/// Draws so many programs. Of those that fail, what a smallest one does wrong, with its text.
///
/// # Panics
///
/// When no programs can be drawn.
pub fn smallest_that_fails<S>(
    cases: u32,
    programs: &impl Strategy<Value = RankProgram<S>>,
    check: impl Fn(&RankProgram<S>) -> Result<(), String>,
) -> Option<String>
where
    S: Serialize + DeserializeOwned + Debug,
{
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 2000,
        max_shrink_time: 180_000,
        // A program that has failed is run once more for each smaller one that passes, and would
        // end the search by passing.
        result_cache: basic_result_cache,
        ..Config::default()
    };
    let failed = Cell::new(false);
    let outcome = TestRunner::new(config).run(programs, |program| {
        let tries = if failed.get() { TRIES } else { 1 };
        let outcome = (0..tries).try_for_each(|_| check(&program));
        failed.set(failed.get() || outcome.is_err());
        outcome
            .map_err(|why| TestCaseError::fail(format!("{why}\nprogram:\n{}", program.to_text())))
    });
    match outcome {
        Ok(()) => None,
        Err(TestError::Fail(why, _)) => Some(why.message().to_owned()),
        Err(aborted) => panic!("{aborted}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A program that fails every other time becomes as small as one that fails each time.
    #[test]
    fn programs_that_fail_now_and_then_become_small() {
        let programs =
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(|steps| RankProgram {
                ranks: 2,
                warm: false,
                table: false,
                counts_remote: false,
                steps,
            });
        let calls = Cell::new(0);
        let why = smallest_that_fails(400, &programs, |program| {
            calls.set(calls.get() + 1);
            let fails = program.steps.iter().any(|step| *step >= 100) && calls.get() % 2 == 0;
            if fails { Err("fails".into()) } else { Ok(()) }
        });
        let (_, program) = why.as_ref().unwrap().split_once("program:\n").unwrap();
        assert_eq!(program.lines().skip(1).collect::<Vec<_>>(), ["100"]);
    }
}
