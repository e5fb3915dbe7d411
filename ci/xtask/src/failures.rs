//! The failures in the log of a phase, which a run shows once more at its end: readers of a log of
//! ten thousand lines begin there, and some runners keep nothing else.

use std::collections::BTreeMap;

use crate::count::{Kind, Rules, not_allowed_to_skip, of_machine};

/// The line before the failures at the end of a run.
const HEADING: &str = "==> what failed";
/// Of the output of a test, or of a program that ended without a result.
const FIRST: usize = 15;
const LAST: usize = 25;

/// The lines of a failed phase's log that show why it failed.
pub(crate) fn excerpt(kind: Kind, log: &str, rules: Rules) -> Vec<&str> {
    let lines: Vec<_> = log.lines().collect();
    let found = match kind {
        Kind::Tests => tests(&lines, rules),
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

fn tests<'a>(lines: &[&'a str], rules: Rules) -> Vec<&'a str> {
    // The lines of two machines come in any order.
    let mut by_machine = BTreeMap::<_, Vec<_>>::new();
    for line in lines {
        let (machine, line) = of_machine(line);
        by_machine.entry(machine).or_default().push(line);
    }
    let mut found = Vec::new();
    for lines in by_machine.into_values() {
        for program in lines.split_inclusive(|line| line.starts_with("     Ended in ")) {
            found.extend(failures_of_program(program));
        }
        if rules.skip_is_failure {
            found.extend(lines.iter().filter(|line| not_allowed_to_skip(line)));
        }
    }
    found
}

/// The name of a program and its failures, where it has any.
fn failures_of_program<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    // Before it may stand one of a program that a test ran.
    let Some(result) = lines
        .iter()
        .rposition(|line| line.starts_with("test result: "))
    else {
        return Vec::new();
    };
    if !lines[result].starts_with("test result: FAILED") {
        return Vec::new();
    }
    let running = lines
        .iter()
        .position(|line| line.trim_start().starts_with("Running "));
    let mut found: Vec<_> = running.map(|at| lines[at]).into_iter().collect();
    let before = &lines[running.map_or(0, |at| at + 1)..result];
    // "failures:" stands before the output of the tests that failed, and again before their names.
    let outputs = before
        .iter()
        .rposition(|line| *line == "successes:")
        .unwrap_or(0);
    match before[outputs..]
        .iter()
        .position(|line| *line == "failures:")
    {
        Some(failures) => {
            let output = &before[outputs + failures + 1..];
            for part in output.split_inclusive(|line| line.is_empty()) {
                found.extend(both_ends(part));
            }
        }
        None => found.extend(last(before)),
    }
    found.push(lines[result]);
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
        excerpt(kind, log, Rules::default()).join("\n")
    }

    #[test]
    fn of_tests_the_output_of_those_that_failed_is_shown() {
        let log = "     Running one-1
test good ... ok
successes:

---- good stdout ----
nothing

successes:
    good

test result: ok. 1 passed; 0 failed; 0 ignored
     Ended in 1 s
     Running two-1
test bad ... FAILED
test good ... ok

successes:

---- good stdout ----
nothing

successes:
    good

failures:

---- bad stdout ----
thread 'bad' panicked at src/lib.rs:1:1:
it is bad

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored
     Ended in 1 s
     Longest:
     1 s  two-1
";
        let shown = "     Running two-1

---- bad stdout ----
thread 'bad' panicked at src/lib.rs:1:1:
it is bad

failures:
    bad

test result: FAILED. 1 passed; 1 failed; 0 ignored";
        assert_eq!(excerpt_of(Kind::Tests, log), shown);
    }

    #[test]
    fn long_output_loses_its_middle() {
        let lines: Vec<String> = (0..100).map(|line| format!("line {line}")).collect();
        let output = lines.join("\n");
        let log = format!(
            "     Running one-1\nfailures:\n{output}\ntest result: FAILED. 0 passed; 1 failed\n"
        );
        let shown = excerpt_of(Kind::Tests, &log);
        assert!(shown.contains("line 14\n[…]\nline 75\n"), "{shown}");
        assert!(shown.ends_with("line 99\ntest result: FAILED. 0 passed; 1 failed"));
    }

    #[test]
    fn programs_that_ended_without_a_result_show_their_last_lines() {
        let log = "     Running one-1
test it ... 
test result: FAILED. 0 passed; 1 failed; 0 ignored; one-1 ended with 124
     Ended in 900 s
";
        assert_eq!(
            excerpt_of(Kind::Tests, log),
            "     Running one-1\ntest it ... 
test result: FAILED. 0 passed; 1 failed; 0 ignored; one-1 ended with 124"
        );
    }

    #[test]
    fn the_lines_of_two_machines_are_told_apart() {
        let log = "[0]      Running one-1
[1]      Running one-1
[0] failures:
[1] test result: ok. 1 passed; 0 failed; 0 ignored
[0] it is bad
[0] test result: FAILED. 0 passed; 1 failed; 0 ignored
";
        assert_eq!(
            excerpt_of(Kind::Tests, log),
            "     Running one-1\nit is bad\ntest result: FAILED. 0 passed; 1 failed; 0 ignored"
        );
    }

    #[test]
    fn skips_are_shown_where_they_are_failures() {
        let log = "     Running one-1
SKIP: no device
SKIP [NIC]: no such NIC
test result: ok. 2 passed; 0 failed; 0 ignored
";
        let rules = Rules {
            skip_is_failure: true,
            ..Rules::default()
        };
        assert_eq!(excerpt(Kind::Tests, log, rules), ["SKIP: no device"]);
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
