//! Whole runs of `ci/phases.sh`: the last line, and the exit code.

use std::process::Command;

/// Runs phases in a shell; gives the exit code and the output.
fn run(xtask: &str, phases: &str) -> (Option<i32>, String) {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let script = format!(
        "set -euo pipefail
        source {tree}/ci/provision.sh
        source {tree}/ci/phases.sh
        begin_phases
        trap 'rm -rf \"$logs\"' EXIT
        {phases}
        end_phases"
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("FERRO_XTASK", xtask)
        .env_remove("CI")
        .output()
        .expect("bash runs");
    let text = String::from_utf8(output.stdout).expect("text");
    (output.status.code(), text)
}

const XTASK: &str = env!("CARGO_BIN_EXE_ferrofabric-xtask");

#[test]
fn a_run_ends_with_its_sums() {
    let (code, text) = run(
        XTASK,
        "check 'a check' true
        phase 'two tests' printf 'test result: ok. 2 passed; 0 failed; 1 ignored\\n'
        whole_run 'another run' echo '4 passed, 0 failed, 0 skipped'
        check 'what cannot run' bash -c 'echo SKIP: not here; exit 77'",
    );
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.ends_with("\n7 passed, 0 failed, 2 skipped\n"),
        "{text}"
    );
    for line in [
        "ok        0 s  two tests\n",
        "SKIP      0 s  what cannot run\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_run_with_a_failure_fails() {
    let (code, text) = run(
        XTASK,
        "check 'a check' false
        skip_is_failure=1
        one_skips() {
            printf '%s' '<testsuites><testsuite>
                <testcase name=\"a\" classname=\"one\"><system-out>SKIP: no device</system-out></testcase>
                <testcase name=\"b\" classname=\"one\"/>
                </testsuite></testsuites>' >\"$results/one.xml\"
        }
        phase 'a skip' one_skips",
    );
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.ends_with("\n1 passed, 2 failed, 0 skipped\n"),
        "{text}"
    );
    let again = "\n==> what failed\na check:\n\n\na skip:\none a\nSKIP: no device\n\n";
    assert!(text.contains(again), "{text}");
}

#[test]
fn what_was_recorded_before_counts_when_it_is_reported() {
    let (code, text) = run(
        XTASK,
        "record early printf 'test result: ok. 3 passed; 0 failed;\\n' >\"$logs/early\"
        report early 'an early phase'
        report never 'a phase that never ran' || true",
    );
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.ends_with("\n3 passed, 1 failed, 0 skipped\n"),
        "{text}"
    );
}

#[test]
fn a_phase_that_nothing_counts_has_failed() {
    let (code, text) = run("/bin/false", "check 'a check' true");
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.ends_with("\n0 passed, 1 failed, 0 skipped\n"),
        "{text}"
    );
}
