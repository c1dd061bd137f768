# shellcheck shell=bash
# Rows for failover on verbs devices (SHIFT): figure 5 of the paper, and a program that checks every
# byte. They run in the guest, where shift-guest creates two hosts with two devices each.
#
# Needs: row, push, push_script, in_guest, $here, $logs, $quick, $root, $stage.

shift_limit_s=90

# lose COMMAND KIND HOST SECONDS LOG: runs COMMAND of shift-guest. Both ends must succeed, must have
# been on the second device, and must be back on the first.
lose() {
    local log=$5 part
    local shift_guest="/tmp/shift-guest $1 $2 $3 $4 ${6:-}"
    timeout -k 1 "$shift_limit_s" "$here/guest/sh" "$shift_guest" > "$log.guest" 2>&1 || return
    grep -q '^status 0 0$' "$log.guest" || return
    for part in '"to_backup":[1-9]' '"back":[1-9]' '"away":0' '"failed":0'; do
        [[ $(grep -Ec "^[abs]: .*$part" "$log.guest") == 2 ]] || { echo "not at both ends: $part" >> "$log.guest"; return 1; }
    done
}

# atomics HOST SECONDS LOG: an atomic in flight is reported as an error, and the counter never
# counts one twice.
atomics() {
    local log=$3
    timeout -k 1 "$shift_limit_s" "$here/guest/sh" "/tmp/shift-guest verify atomic $1 $2" > "$log.guest" 2>&1
    grep -q '^a: request [0-9]*: transport retry counter exceeded' "$log.guest" &&
        grep -q '"outcome":"atomic-in-flight"' "$log.guest"
}

# bare BACKLOG SECONDS PAIRS LOG: READs on rxe alone.
bare() {
    timeout -k 1 "$shift_limit_s" "$here/guest/sh" "/tmp/shift-guest bare $1 $2 $3" > "$4.guest" 2>&1
    [[ $(grep -c '^status 0$' "$4.guest") == "$3" ]]
}

# bare_fails BACKLOG SECONDS PAIRS LOG: on rxe alone a READ succeeds with wrong data, at one of a few tries. Once
# none does any more, shift-guest needs no longer queues.
bare_fails() {
    local try
    for try in 1 2 3 4; do
        bare "$@"
        grep -q 'word [0-9]* is wrong$' "$4.guest" && return
    done
    return 1
}

# mix COMMAND KIND HOST SECONDS CLIENT LOG: like lose, between host b and the soft NICs of host s.
mix() { lose "$1" "$2" "$3" "$4" "$6" "$5"; }

# A soft NIC at one end, a verbs device at the other.
mixed_rows() {
    local kind host client seconds=15
    in_guest '/tmp/shift-guest mixed-net' > "$logs/mixed" 2>&1 || { echo 'no host with soft NICs:'; cat "$logs/mixed"; ((failed++)); return; }
    for kind in write send read; do
        for client in b s; do
            for host in b s; do
                # Quick rows, these and those of verify: each client and each loser at least once.
                [[ -n $quick && ! $kind$client$host =~ ^(writesb|readbb)$ ]] && continue
                row "shift mixed perftest ib_${kind}_bw, client ${client}, first interface of ${host} down and up" \
                    mix mixed-perf "$kind" "$host" "$seconds" "$client"
            done
            for host in b s; do
                [[ -n $quick && ! $kind$client$host =~ ^(sendbs)$ ]] && continue
                row "shift mixed verify $kind, client ${client}, first interface of ${host} down and up" \
                    mix mixed-verify "$kind" "$host" "$seconds" "$client"
            done
        done
    done
}

shift_rows() {
    local kind host seconds=15
    in_guest '/tmp/shift-guest net' > "$logs/net" 2>&1 || { echo 'two hosts cannot be made in the guest:'; cat "$logs/net"; ((failed++)); return; }
    for kind in write send read; do
        for host in a b; do
            [[ -n $quick && $kind$host != writea && $kind$host != sendb ]] && continue
            row "shift perftest ib_${kind}_bw, first interface of ${host} down and up" lose perf "$kind" "$host" "$seconds"
        done
    done
    for kind in write send read; do
        for host in a b; do
            [[ -n $quick && $kind$host != sendb ]] && continue
            row "shift verify $kind, first interface of ${host} down and up" lose verify "$kind" "$host" "$seconds"
        done
    done
    mixed_rows
    row 'rxe alone, verify read: passes' bare 20000 6 1
    [[ -n $quick ]] || row 'rxe alone, verify read, queues too short for it: fails' bare_fails 100 5 4
    row 'shift verify atomic: one in flight fails the connection' atomics a 6
}
