//! The failures in the log of a phase, which a run shows once more at its end: readers of a log of
//! ten thousand lines begin there, and some runners keep nothing else.

use crate::count::{Kind, Rules, may_skip};
use crate::results::TestResult;

/// The line before the failures at the end of a run.
const HEADING: &str = "==> what failed";
/// Of the output of a test, or of a program that ended without a result.
const FIRST: usize = 15;
const LAST: usize = 25;

/// The lines of a failed phase's log that show why it failed.
pub(crate) fn excerpt<'a>(
    kind: Kind,
    log: &'a str,
    results: &'a [TestResult],
    rules: Rules,
) -> Vec<&'a str> {
    let lines: Vec<_> = log.lines().collect();
    let found = match kind {
        Kind::Tests => tests(results, rules),
        Kind::Check => Vec::new(),
        Kind::WholeRun => whole_run(&lines),
    };
    match found.is_empty() {
        true => last(&lines).to_vec(),
        false => found,
    }
}

/// The failures that the other run showed at its end, and its table.
fn whole_run<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    match lines.iter().rposition(|line| *line == HEADING) {
        Some(heading) => lines[heading + 1..].to_vec(),
        None => Vec::new(),
    }
}

fn tests(results: &[TestResult], rules: Rules) -> Vec<&str> {
    let mut found = Vec::new();
    for result in results {
        let (why, output) = match (&result.failure, result.skip()) {
            (Some(why), _) => (why.lines().next().unwrap_or_default(), &*result.output),
            (None, Some(reason)) if rules.skip_is_failure && !may_skip(reason) => (reason, ""),
            _ => continue,
        };
        found.extend([&*result.name, why]);
        found.extend(both_ends(&output.lines().collect::<Vec<_>>()));
    }
    found
}

/// The first and the last lines, with a mark between them where lines are left out.
fn both_ends<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    if lines.len() <= FIRST + LAST {
        return lines.to_vec();
    }
    [&lines[..FIRST], &["[…]"], last(lines)].concat()
}

fn last<'l, 'a>(lines: &'l [&'a str]) -> &'l [&'a str] {
    &lines[lines.len().saturating_sub(LAST)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt_of(kind: Kind, log: &str) -> String {
        excerpt(kind, log, &[], Rules::default()).join("\n")
    }

    fn result(name: &str, failure: Option<&str>, output: &str) -> TestResult {
        TestResult {
            name: name.to_owned(),
            failure: failure.map(str::to_owned),
            output: output.to_owned(),
        }
    }

    #[test]
    fn of_tests_the_output_of_those_that_failed_is_shown() {
        let results = [
            result("one good", None, "nothing\n"),
            result(
                "one bad",
                Some("exit code 101: it is bad\nmore"),
                "running\nit is bad\n",
            ),
        ];
        let shown = excerpt(Kind::Tests, "log\n", &results, Rules::default());
        let expected = [
            "one bad",
            "exit code 101: it is bad",
            "running",
            "it is bad",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn long_output_loses_its_middle() {
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let results = [result("one bad", Some("bad"), &lines.join("\n"))];
        let shown = excerpt(Kind::Tests, "", &results, Rules::default()).join("\n");
        assert!(shown.contains("line 14\n[…]\nline 75\n"), "{shown}");
        assert!(shown.ends_with("line 99"), "{shown}");
    }

    #[test]
    fn skips_are_shown_where_they_are_failures() {
        let results = [
            result("one without", None, "SKIP: no device\n"),
            result("one may", None, "SKIP [NIC]: no such NIC\n"),
        ];
        let rules = Rules {
            skip_is_failure: true,
            ..Rules::default()
        };
        let shown = excerpt(Kind::Tests, "", &results, rules);
        assert_eq!(shown, ["one without", "SKIP: no device"]);
    }

    #[test]
    fn of_another_run_its_own_end_is_shown() {
        let log = "noise\n==> what failed\nlints:\nit is bad\n\nFAILED    1 s  lints\n0 passed, 1 failed, 0 skipped";
        assert_eq!(
            excerpt_of(Kind::WholeRun, log),
            "lints:\nit is bad\n\nFAILED    1 s  lints\n0 passed, 1 failed, 0 skipped"
        );
    }

    #[test]
    fn of_a_check_the_last_lines_are_shown() {
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let log = lines.join("\n");
        let shown = excerpt_of(Kind::Check, &log);
        assert!(shown.starts_with("line 75\n") && shown.ends_with("line 99"));
    }
}
