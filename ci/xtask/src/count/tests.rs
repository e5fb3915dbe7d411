//! Logs of each kind, with the results that they must come to.

use super::*;

/// Counts a log; gives "PASSED FAILED SKIPPED WORD".
fn plain(kind: Kind, code: i32, log: &str) -> String {
    counted(kind, code, log, &[], Rules::default())
}

fn counted(kind: Kind, code: i32, log: &str, results: &[TestResult], rules: Rules) -> String {
    let end = PhaseEnd::of(&format!("{code} 3\n"));
    let outcome = count(kind, "the case", log, results, end, rules).to_string();
    let (sums, title) = outcome.rsplit_once("   3 s  ").expect("seconds");
    assert_eq!(title, "the case");
    sums.trim_end().to_owned()
}

/// A test that wrote this, and failed or passed.
fn wrote(output: &str, failed: bool) -> TestResult {
    TestResult {
        name: "one::integration a::test".to_owned(),
        failure: failed.then(|| "it is bad".to_owned()),
        output: output.to_owned(),
    }
}

#[test]
fn tests_that_did_not_run_have_failed() {
    let tests = |log| plain(Kind::Tests, 0, log);
    assert_eq!(tests(""), "0 1 0 FAILED");
    let without = "     Running nothing-1\ntest result: ok. 0 passed; 0 failed; 0 ignored\n";
    assert_eq!(tests(without), "0 1 0 FAILED");
    let skipping = [wrote("SKIP: no device\n", false)];
    let skips = counted(Kind::Tests, 0, "", &skipping, Rules::default());
    assert_eq!(skips, "0 1 1 FAILED");
    let end = PhaseEnd::of("0 3");
    let notes = count(Kind::Tests, "it", "", &[], end, Rules::default()).notes;
    assert_eq!(notes, ["FAILED: it: no test ran"]);
}

#[test]
fn results_of_programs_add_up() {
    let documentation = "   Doc-tests one
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; finished in 0.00s
   Doc-tests two
test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; finished in 0.00s
";
    assert_eq!(plain(Kind::Tests, 0, documentation), "5 0 1 ok");
}

#[test]
fn a_failure_shows_in_the_results_or_in_the_exit_code() {
    let results = [wrote("", false), wrote("", true)];
    let sums = |code| counted(Kind::Tests, code, "", &results, Rules::default());
    assert_eq!(sums(100), "1 1 0 FAILED");
    assert_eq!(sums(0), "1 1 0 FAILED");
    let passed = counted(Kind::Tests, 124, "", &results[..1], Rules::default());
    assert_eq!(passed, "1 1 0 FAILED");
}

#[test]
fn what_a_test_wrote_is_no_result() {
    let results = [wrote(
        "test result: FAILED. 0 passed; 1 failed; 0 ignored",
        false,
    )];
    let log = "test result: FAILED. 0 passed; 1 failed; 0 ignored\n";
    let sums = counted(Kind::Tests, 0, log, &results, Rules::default());
    assert_eq!(sums, "1 0 0 ok");
}

#[test]
fn a_skip_is_a_failure_where_the_device_is_there() {
    let reasons = [
        "SKIP: needs a real device [NIC]",
        "SKIP: no call for it [C]",
        "SKIP: no device",
    ];
    let mut results: Vec<_> = reasons.iter().map(|reason| wrote(reason, false)).collect();
    results.push(wrote("", false));
    let rules = Rules {
        skip_is_failure: true,
        ..Rules::default()
    };
    assert_eq!(counted(Kind::Tests, 0, "", &results, rules), "1 1 2 FAILED");
}

#[test]
fn a_check_counts_as_one() {
    let check = |code, log| plain(Kind::Check, code, log);
    assert_eq!(check(0, ""), "1 0 0 ok");
    assert_eq!(check(1, ""), "0 1 0 FAILED");
    assert_eq!(check(0, "SKIP: MPICH is not here\n"), "1 0 1 ok");
    assert_eq!(check(77, "SKIP: no clippy here\n"), "0 0 1 SKIP");
    let rules = Rules {
        nothing_missing: true,
        ..Rules::default()
    };
    let log = "SKIP: no clippy here\n";
    assert_eq!(counted(Kind::Check, 77, log, &[], rules), "0 1 0 FAILED");
}

#[test]
fn another_run_ends_with_its_sums() {
    let run = |code, log| plain(Kind::WholeRun, code, log);
    let log = "test result: ok. 900 passed; 0 failed; 0 ignored\n31 passed, 0 failed, 2 skipped\n";
    assert_eq!(run(0, log), "31 0 2 ok");
    assert_eq!(run(1, "30 passed, 1 failed, 2 skipped\n"), "30 1 2 FAILED");
    // None is to blame.
    assert_eq!(run(1, "30 passed, 0 failed, 2 skipped\n"), "30 1 2 FAILED");
    assert_eq!(run(0, "0 passed, 0 failed, 0 skipped\n"), "0 1 0 FAILED");
    let unfinished = "30 passed, 0 failed, 2 skipped\n==> lints\n";
    assert_eq!(run(137, unfinished), "0 1 0 FAILED");
}

#[test]
fn a_phase_that_was_ended_has_failed() {
    let end = PhaseEnd::of("");
    let log = "test result: ok. 3 passed; 0 failed; 0 ignored\n";
    let outcome = count(Kind::Tests, "it", log, &[], end, Rules::default());
    assert_eq!(outcome.to_string(), "3 1 0 FAILED    0 s  it");
}
