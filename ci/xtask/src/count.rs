//! How a phase of a test run counts. A phase that ran nothing has failed, so that a green run says
//! something.

use std::fmt;

use clap::{Args, ValueEnum};

use crate::results::TestResult;

/// The kinds of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Tests, whose results add up: those in the files of cargo-nextest, or else in the log.
    Tests,
    /// Something that passes or fails as a whole.
    Check,
    /// Another run of `scripts/test`, which ends with the same line as this one.
    WholeRun,
}

/// Further reasons for a failure.
#[derive(Args, Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// The device is there, so no test has a reason to skip
    #[arg(long)]
    pub(crate) skip_is_failure: bool,
    /// Nothing that a phase needs may be missing
    #[arg(long)]
    pub(crate) nothing_missing: bool,
}

/// How a phase ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhaseEnd {
    code: i32,
    seconds: u64,
}

/// The exit code of a phase without what it needs.
const CANNOT_RUN: i32 = 77;

impl PhaseEnd {
    /// Of "CODE SECONDS"; a failure where that is not there.
    pub(crate) fn of(text: &str) -> Self {
        let mut words = text.split_whitespace();
        PhaseEnd {
            code: words.next().and_then(|word| word.parse().ok()).unwrap_or(1),
            seconds: words.next().and_then(|word| word.parse().ok()).unwrap_or(0),
        }
    }
}

/// The result of a phase.
#[derive(Clone, Debug)]
pub(crate) struct PhaseOutcome {
    sums: ResultSums,
    word: &'static str,
    seconds: u64,
    title: String,
    /// Why it failed, where its log does not say so.
    pub(crate) notes: Vec<String>,
}

impl PhaseOutcome {
    pub(crate) fn has_failed(&self) -> bool {
        self.sums.failed > 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ResultSums {
    passed: u64,
    failed: u64,
    skipped: u64,
}

impl fmt::Display for PhaseOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResultSums {
            passed,
            failed,
            skipped,
        } = self.sums;
        write!(
            f,
            "{passed} {failed} {skipped} {:<6} {:4} s  {}",
            self.word, self.seconds, self.title
        )
    }
}

/// Counts the results in a phase's log.
pub(crate) fn count(
    kind: Kind,
    title: &str,
    log: &str,
    results: &[TestResult],
    end: PhaseEnd,
    rules: Rules,
) -> PhaseOutcome {
    let mut notes = Vec::new();
    let (sums, word) = if end.code == CANNOT_RUN && !rules.nothing_missing {
        let skipped = ResultSums {
            skipped: 1,
            ..ResultSums::default()
        };
        (skipped, "SKIP")
    } else {
        let mut sums = match kind {
            Kind::Tests if results.is_empty() => programs(log),
            Kind::Tests => {
                let mut sums = tests(results, rules.skip_is_failure);
                // What the script left out, as a tool that is not here.
                sums.skipped += log.lines().filter(|line| line.starts_with("SKIP")).count() as u64;
                sums
            }
            Kind::Check => check(log, end.code),
            Kind::WholeRun => whole_run(log),
        };
        // A lint, a build or the machine failed: there is no test to blame.
        if end.code != 0 && sums.failed == 0 {
            sums.failed = 1;
        }
        if end.code == CANNOT_RUN {
            notes.push(format!(
                "FAILED: {title}: continuous integration must have what this needs"
            ));
        }
        if kind != Kind::Check && sums.passed + sums.failed == 0 {
            sums.failed = 1;
            notes.push(format!("FAILED: {title}: no test ran"));
        }
        let word = if sums.failed == 0 { "ok" } else { "FAILED" };
        (sums, word)
    };
    PhaseOutcome {
        sums,
        word,
        seconds: end.seconds,
        title: title.to_owned(),
        notes,
    }
}

fn check(log: &str, code: i32) -> ResultSums {
    let skips = log.lines().filter(|line| line.starts_with("SKIP"));
    match code {
        0 => ResultSums {
            passed: 1,
            failed: 0,
            skipped: skips.count() as u64,
        },
        _ => ResultSums::default(),
    }
}

fn tests(results: &[TestResult], skip_is_failure: bool) -> ResultSums {
    let mut sums = ResultSums::default();
    for result in results {
        match (&result.failure, result.skip()) {
            (None, None) => sums.passed += 1,
            (None, Some(reason)) if !skip_is_failure || may_skip(reason) => sums.skipped += 1,
            _ => sums.failed += 1,
        }
    }
    sums
}

/// Whether a reason to skip holds where the device is there: tests that take hardware that
/// Soft-RoCE is not, or more time than there is, and scenarios that libfabric's calls or its own
/// providers can not serve (`conformance_by_c` of the plugin's tests).
pub(crate) fn may_skip(reason: &str) -> bool {
    ["[NIC]", "[soak]", "[C]"]
        .iter()
        .any(|mark| reason.contains(mark))
}

/// The results of programs that cargo-nextest does not run: the tests in the documentation, and
/// random input. Each program ends with "test result: …".
fn programs(log: &str) -> ResultSums {
    let mut sums = ResultSums::default();
    let results = log
        .lines()
        .filter_map(|line| line.strip_prefix("test result: "));
    for result in results {
        let words: Vec<_> = result.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1] {
                "passed" => sums.passed += number,
                "failed" => sums.failed += number,
                "ignored" => sums.skipped += number,
                _ => {}
            }
        }
    }
    sums
}

fn whole_run(log: &str) -> ResultSums {
    let failed = ResultSums {
        failed: 1,
        ..ResultSums::default()
    };
    log.lines().last().and_then(last_line).unwrap_or(failed)
}

/// Of "N passed, N failed, N skipped".
fn last_line(line: &str) -> Option<ResultSums> {
    let mut parts = line.split(", ");
    let mut next = |word| -> Option<u64> { parts.next()?.strip_suffix(word)?.parse().ok() };
    let sums = ResultSums {
        passed: next(" passed")?,
        failed: next(" failed")?,
        skipped: next(" skipped")?,
    };
    parts.next().is_none().then_some(sums)
}

#[cfg(test)]
mod tests;
