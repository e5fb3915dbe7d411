# shellcheck shell=bash
# Follows Soft-RoCE machines until each has an exit code. Sourced by scripts/vm after
# ci/provision.sh, never run. It reads the script's variables: per node `pids` (QEMU), `readers`
# (xtask host-output) and `controls` (descriptors), the descriptor `status` of the pipe of reports,
# and the folder `run`. It sets `codes` per node and `command_began`.

# Reads what the machines report until each has an exit code: "NODE ready" and "NODE exit CODE".
follow() {
    local deadline=$((SECONDS + timeout_s)) ready=0 node word code
    while ((${#codes[@]} < nodes)); do
        # A report is written in one piece: where its first letter is, the rest is, too.
        if read -r -t 0.5 -N 1 -u "$status" node || [[ -n $node ]]; then
            read -r -u "$status" word code
            case $word in
                ready) ready=$((ready + 1)) ;;
                exit) codes[node]=$code ;;
            esac
            if [[ $word == ready ]] && ((ready == nodes)); then
                command_began=1
                tell_all go
            elif [[ $word == exit && $code != 0 ]] && ((SECONDS + peer_grace_s < deadline)); then
                deadline=$((SECONDS + peer_grace_s))
            fi
        elif ((SECONDS >= deadline)); then
            give_up
        else
            notice_dead
        fi
    done
}
# When one node has failed, the other has this time left to finish.
peer_grace_s=30

notice_dead() {
    local node
    for ((node = 0; node < nodes; node++)); do
        [[ -z ${codes[node]:-} ]] || continue
        if ! kill -0 "${readers[node]}" 2>/dev/null; then
            codes[node]=141 # nobody reads our output: as after SIGPIPE
            continue
        fi
        kill -0 "${pids[node]}" 2>/dev/null && continue
        # Its last words may still be in the pipe.
        read -r -t 0 -u "$status" && continue
        codes[node]=125
        ! grep -q 'Kernel panic' "$run/console$node" 2>/dev/null || codes[node]=122
    done
}

give_up() {
    local node
    say "no end after the time allowed (--timeout $timeout_s)"
    # Makes the kernels report their blocked and running tasks.
    tell_all w
    tell_all l
    sleep 2
    for ((node = 0; node < nodes; node++)); do
        [[ -n ${codes[node]:-} ]] || codes[node]=124
    done
}

tell_all() {
    local fd
    for fd in "${controls[@]}"; do
        echo "$1" >&"$fd"
    done
}
