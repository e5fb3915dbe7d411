# shellcheck shell=bash
# Runs the phases of a test run; ci/xtask counts their results. Sourced by scripts/test and
# .ci/run after ci/provision.sh, never run. A script calls begin_phases, then phase, check and
# whole_run as often as it likes, then end_phases. A phase that ran nothing has failed, so that a
# green run says something.

passed=0 failed=0 skipped=0
summary=()
# Set where the device is there, so that no test has a reason to skip.
skip_is_failure=''
# The folder of the logs.
logs=''

begin_phases() { logs=$(mktemp -d); }

# end_phases: the failures once more, the table, and the line that runners read: "N passed, N
# failed, N skipped".
end_phases() {
    # Another run's script looks for this line (ci/xtask/src/failures.rs).
    [[ ! -s $logs/failures ]] || { printf '\n==> what failed\n'; cat "$logs/failures"; }
    printf '\n'
    printf '%s\n' "${summary[@]}" "       $(printf '%4d' "$SECONDS") s  in all"
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0))
}

# phase TITLE FUNCTION ARGUMENT…: runs tests and adds up their results: those in $results, or else
# those that programs print. Without a single result it has failed.
phase() { run_phase tests "$@"; }

# check TITLE FUNCTION ARGUMENT…: runs something that passes or fails as a whole. Exit code 77: this
# machine lacks something that the check needs.
check() { run_phase check "$@"; }

# whole_run TITLE FUNCTION ARGUMENT…: another run of scripts/test, which ends with the same line as
# this one.
whole_run() { run_phase whole-run "$@"; }

run_phase() {
    local kind=$1 title=$2
    shift 2
    printf '\n==> %s\n' "$title"
    record phase "$@" | tee "$logs/phase"
    account "$kind" "$title" "$logs/phase"
}

# report NAME TITLE: the results of tests that `record` ran before.
report() {
    printf '\n==> %s\n' "$2"
    cat "$logs/$1"
    account tests "$2" "$logs/$1"
}

# record NAME FUNCTION ARGUMENT…: runs it; its exit code and how long it took go into NAME.end. It
# finds an empty folder in $results for the files of cargo-nextest.
record() {
    local end=$logs/$1.end results=$logs/$1.results started=$SECONDS code=0
    shift
    rm -rf "$results"
    mkdir "$results"
    # In a shell of its own, so that errexit is on in it; its results go through files.
    set +e
    (set -e; "$@") 2>&1 </dev/null
    code=$?
    set -e
    echo "$code $((SECONDS - started))" >"$end"
}

# account KIND TITLE LOG: adds the results of a log to the sums, and a line to the table. LOG.end has
# the exit code and the seconds, LOG.results the files of cargo-nextest.
account() {
    local kind=$1 title=$2 log=$3 counted ok bad skips line
    counted=$(xtask count "$kind" "$title" "$log" --failures "$logs/failures" ${skip_is_failure:+--skip-is-failure} ${CI:+--nothing-missing}) \
        || counted="0 1 0 FAILED    ? s  $title"
    read -r ok bad skips line <<<"$counted"
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    summary+=("$line")
}
