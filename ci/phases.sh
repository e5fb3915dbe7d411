# shellcheck shell=bash
# Runs the phases of a test run and counts their results. Sourced by scripts/test and .ci/run, never
# run; ci/test-phases tests it. A script calls begin_phases, then phase, check and whole_run as
# often as it likes, then end_phases. A phase that ran nothing has failed, so that a green run says
# something.

passed=0 failed=0 skipped=0
summary=()
# Set where the device is there, so that no test has a reason to skip.
skip_is_failure=''
# The folder of the logs.
logs=''

begin_phases() { logs=$(mktemp -d); }

# end_phases: the table, and the line that runners read: "N passed, N failed, N skipped".
end_phases() {
    printf '\n'
    printf '%s\n' "${summary[@]}" "       $(printf '%4d' "$SECONDS") s  in all"
    printf '%s passed, %s failed, %s skipped\n' "$passed" "$failed" "$skipped"
    ((failed == 0))
}

# phase TITLE FUNCTION ARGUMENT…: runs test programs and adds up their results. Without a single
# result it has failed.
phase() { run_phase tests "$@"; }

# check TITLE FUNCTION ARGUMENT…: runs something that passes or fails as a whole. Exit code 77: what
# it needs is not here.
check() { run_phase check "$@"; }

# whole_run TITLE FUNCTION ARGUMENT…: another run of scripts/test, which ends with the same line as
# this one.
whole_run() { run_phase whole_run "$@"; }

run_phase() {
    local kind=$1 title=$2
    shift 2
    printf '\n==> %s\n' "$title"
    record phase "$@" | tee "$logs/phase"
    account "$kind" "$title" "$logs/phase"
}

# report NAME TITLE: the results of test programs that `record` ran before.
report() {
    printf '\n==> %s\n' "$2"
    cat "$logs/$1"
    account tests "$2" "$logs/$1"
}

# record NAME FUNCTION ARGUMENT…: runs it; its exit code and how long it took go into NAME.end.
record() {
    local end=$logs/$1.end started=$SECONDS code=0
    shift
    # In a shell of its own, for errexit not to be off in it; what it finds out goes through files.
    set +e
    (set -e; "$@") 2>&1 </dev/null
    code=$?
    set -e
    echo "$code $((SECONDS - started))" >"$end"
}

# account KIND TITLE LOG: adds the results in a log to the sums, and a line to the table. LOG.end
# has the exit code and the seconds.
account() {
    local kind=$1 title=$2 log=$3 code=1 took=0 ok=0 bad=0 skips=0 word=ok
    # Not there where what was to write it was ended.
    [[ ! -s $log.end ]] || read -r code took <"$log.end"
    if [[ $code == 77 && -z ${CI:-} ]]; then
        skips=1 word=SKIP
    else
        "count_$kind" "$log" "$code"
        # What failed without a test to blame: a lint, a build, the machine.
        ((code == 0 || bad > 0)) || bad=1
        [[ $code != 77 ]] || echo "FAILED: $title: continuous integration must have what this needs"
        if [[ $kind != check ]] && ((ok + bad == 0)); then
            bad=1
            echo "FAILED: $title: no test ran"
        fi
        ((bad == 0)) || word=FAILED
    fi
    passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skips))
    summary+=("$(printf '%-6s %4d s  %s' "$word" "$took" "$title")")
}

# Each of count_… LOG CODE sets ok, bad and skips, which belong to its caller.

count_check() {
    [[ $2 == 0 ]] || return 0
    ok=1
    skips=$(grep -c '^SKIP' "$1" || true)
}

count_tests() {
    local ignored allowed
    # Of each program the last result line counts: before it may stand one of a program that a test
    # ran. The lines of two machines come in any order, so "[0]" and "[1]" are kept apart.
    read -r ok bad ignored < <(awk '
        function count(node,    word, i, n) {
            n = split(result[node], word, " ")
            for (i = 2; i <= n; i++) sum[word[i]] += word[i - 1]
            delete result[node]
        }
        { node = "" }
        /^\[[01]\] / { node = $1; sub(/^\[[01]\] /, "") }
        /^ *(Running|Doc-tests) / { count(node) }
        /^test result: / { gsub(";", ""); result[node] = $0 }
        END {
            for (node in result) count(node)
            print sum["passed"] + 0, sum["failed"] + 0, sum["ignored"] + 0
        }' "$1")
    # A test that cannot run here says SKIP, and to its harness has passed.
    skips=$(grep -cE '^(\[[01]\] )?SKIP' "$1" || true)
    # What takes hardware that Soft-RoCE is not, or more time than there is.
    allowed=$(grep -cE '^(\[[01]\] )?SKIP.*\[(NIC|soak)\]' "$1" || true)
    ok=$((ok - skips))
    ((ok >= 0)) || ok=0
    if [[ -n $skip_is_failure ]]; then
        bad=$((bad + skips - allowed))
        skips=$allowed
    fi
    skips=$((skips + ignored))
}

count_whole_run() {
    local line
    line=$(tail -n 1 "$1")
    if [[ $line =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        ok=${BASH_REMATCH[1]} bad=${BASH_REMATCH[2]} skips=${BASH_REMATCH[3]}
    else
        bad=1
    fi
}

# programs_are_complete TREE LIST: whether each package of the workspace has a test program in the
# list ("FOLDER PROGRAM" on a line), and each file in the package's tests/, and each folder there
# with a main.rs, one of its own. Says which are missing.
programs_are_complete() {
    local tree=$1 list=$2 package file name complete=0
    local -A has=()
    while read -r package file; do
        file=${file##*/}
        has[$package]=1
        has[$package/tests/${file%-*}.rs]=1
    done <"$list"
    while read -r package; do
        [[ -n ${has[$tree/$package]:-} ]] || { echo "FAILED: no test program of $package was built"; complete=1; }
        for file in "$tree/$package"/tests/{*.rs,*/main.rs}; do
            name=${file%/main.rs} name=${name%.rs}.rs
            [[ -e $file && -z ${has[$name]:-} ]] || continue
            echo "FAILED: ${file#"$tree/"} was not built"
            complete=1
        done
    done < <(sed -n '/^members = \[/,/^\]/s/^ *"\(.*\)",*$/\1/p' "$tree/Cargo.toml")
    ((${#has[@]})) || { echo "FAILED: no test program was built"; complete=1; }
    return "$complete"
}
