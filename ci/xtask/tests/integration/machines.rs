//! `ci/machine/follow.sh` with machines that are shell functions, and the real program that takes
//! their frames apart: which exit code each machine gets.

use std::process::Command;

/// Follows the machines that `machines` starts; gives the exit codes and the letters for kernels.
/// `start NODE FUNCTION` starts a machine whose output is the function's, and its reader.
fn follow(machines: &str) -> String {
    let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let xtask = env!("CARGO_BIN_EXE_ferrofabric-xtask");
    let script = format!(
        r#"set -euo pipefail
        source {tree}/ci/provision.sh
        source {tree}/ci/machine/follow.sh
        timeout_s=600 nodes=1 pids=() readers=() controls=() codes=() command_began=0
        run=$(mktemp -d)
        trap 'kill -KILL "${{pids[@]}}" 2>/dev/null; rm -rf "$run"' EXIT
        mkfifo "$run/status"
        exec {{status}}<>"$run/status"
        start() {{
            local fd
            mkfifo "$run/control$1" "$run/report$1"
            {xtask} host-output "$1" '' --reports "$run/status" <"$run/report$1" &
            readers+=($!)
            exec {{fd}}<>"$run/report$1"
            exec {{fd}}<>"$run/control$1"
            controls+=("$fd")
            "$2" <"$run/control$1" >"$run/report$1" &
            pids+=($!)
        }}
        report() {{ printf 's %d\n%s' "${{#1}}" "$1"; }}
        # A machine stays until the host ends it.
        stay() {{
            while read -r letter && [[ $letter != end ]]; do
                echo "$letter" >>"$run/letters"
            done
        }}
        {machines}
        follow
        tell_all end
        wait "${{pids[@]}}" || true
        echo "codes ${{codes[*]}}, began $command_began"
        [[ ! -e $run/letters ]] || tr '\n' ' ' <"$run/letters""#
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .output()
        .expect("bash runs");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn commands_begin_together_and_their_exit_codes_come_back() {
    let machines = "nodes=2
        first() { report ready; read -r word; report 'exit 0'; stay; }
        second() { report ready; read -r word; [[ $word == go ]]; report 'exit 7'; stay; }
        start 0 first
        start 1 second";
    assert_eq!(follow(machines), "codes 0 7, began 1\n");
}

#[test]
fn a_machine_that_ends_without_a_code_gets_one() {
    let ends = "ends() { :; }
        start 0 ends
        wait \"${pids[0]}\"
        readers[0]=$$";
    assert_eq!(follow(ends), "codes 125, began 0\n");
    let panics = format!("echo 'Kernel panic - not syncing' >\"$run/console0\"\n{ends}");
    assert_eq!(follow(&panics), "codes 122, began 0\n");
}

#[test]
fn a_machine_whose_output_nobody_reads_ends() {
    let machines = "start 0 stay
        kill -KILL \"${readers[0]}\"
        wait \"${readers[0]}\" || true";
    assert_eq!(follow(machines), "codes 141, began 0\n");
}

/// The kernel of a machine that does not end reports its blocked and its running tasks.
#[test]
fn a_machine_has_little_time_left_once_the_other_one_has_failed() {
    let machines = "nodes=2 peer_grace_s=0
        fails() { report ready; read -r word; report 'exit 7'; stay; }
        hangs() { report ready; read -r word; stay; }
        start 0 fails
        start 1 hangs";
    let printed = follow(machines);
    assert!(printed.starts_with("codes 7 124, began 1\n"), "{printed}");
    let letters = printed.lines().nth(1).unwrap_or_default();
    assert_eq!(letters.matches('w').count(), 2, "{printed}");
    assert_eq!(letters.matches('l').count(), 2, "{printed}");
}
