//! How a phase of a test run counts. A phase that ran nothing has failed, so that a green run says
//! something.

use std::collections::HashMap;
use std::fmt;

use clap::{Args, ValueEnum};

/// The kinds of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Test programs, whose results add up.
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
            Kind::Tests => tests(log, rules.skip_is_failure),
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

fn tests(log: &str, skip_is_failure: bool) -> ResultSums {
    let mut results = ProgramResults::default();
    let (mut skips, mut allowed) = (0, 0);
    for line in log.lines() {
        let (machine, line) = of_machine(line);
        let begun = line.trim_start_matches(' ');
        if begun.starts_with("Running ") || begun.starts_with("Doc-tests ") {
            results.add(machine);
        } else if let Some(result) = line.strip_prefix("test result: ") {
            results.last.insert(machine, result);
        } else if line.starts_with("SKIP") {
            // A test that cannot run here says SKIP, and to its harness has passed.
            skips += 1;
            allowed += u64::from(!not_allowed_to_skip(line));
        }
    }
    let ResultSums {
        passed,
        mut failed,
        skipped: ignored,
    } = results.sums();
    let passed = passed.saturating_sub(skips);
    if skip_is_failure {
        failed += skips - allowed;
        skips = allowed;
    }
    ResultSums {
        passed,
        failed,
        skipped: skips + ignored,
    }
}

/// Whether a line is a skip that fails where the device is there. Allowed are tests that take
/// hardware that Soft-RoCE is not, or more time than there is, and scenarios that libfabric's calls
/// or its own providers can not serve (`plugin-ofi/tests/conformance_by_c.rs`).
pub(crate) fn not_allowed_to_skip(line: &str) -> bool {
    let allowed = ["[NIC]", "[soak]", "[C]"];
    line.starts_with("SKIP") && !allowed.iter().any(|mark| line.contains(mark))
}

/// The machine that a line comes from, where there are two (`[0] ` and `[1] ` go before the line),
/// and the line.
pub(crate) fn of_machine(line: &str) -> (Option<u32>, &str) {
    let of = |machine, prefix| Some((Some(machine), line.strip_prefix(prefix)?));
    of(0, "[0] ").or(of(1, "[1] ")).unwrap_or((None, line))
}

/// Results of programs. Of each program the last result line counts: before it may stand one of a
/// program that a test ran. The lines of two machines come in any order, so they are kept apart.
#[derive(Default)]
struct ProgramResults<'a> {
    last: HashMap<Option<u32>, &'a str>,
    sums: ResultSums,
}

impl ProgramResults<'_> {
    /// Adds the result of the machine's program.
    fn add(&mut self, machine: Option<u32>) {
        let Some(result) = self.last.remove(&machine) else {
            return;
        };
        let words: Vec<_> = result.split([' ', ';']).filter(|w| !w.is_empty()).collect();
        for pair in words.windows(2) {
            let Ok(number) = pair[0].parse::<u64>() else {
                continue;
            };
            match pair[1] {
                "passed" => self.sums.passed += number,
                "failed" => self.sums.failed += number,
                "ignored" => self.sums.skipped += number,
                _ => {}
            }
        }
    }

    fn sums(mut self) -> ResultSums {
        let machines: Vec<_> = self.last.keys().copied().collect();
        machines.into_iter().for_each(|machine| self.add(machine));
        self.sums
    }
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
