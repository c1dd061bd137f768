# shellcheck shell=bash
# Multicast groups through `bowline switch`, with rxe as members and as sender, under perftest.
#
# A row is PROGRAM|MTU/SIZE/COUNT|SENDER|MEMBERS|SWITCH. The sender is "bowline" or "rxe", and so is
# each of the members. All rxe members are queue pairs of the one guest. SWITCH holds additional
# arguments for `bowline switch`. rxe as both sender and member of one group is left out: see
# docs/multicast.md.
#
# Needs: pair.sh and what it needs, and $bowline.

switch_addr=169.254.77.100
# Addresses of members on Bowline start here.
first_member=11

group_rows() {
    echo 'ib_write_bw|1024/65536/20|bowline|rxe rxe|'
    echo 'ib_send_bw|4096/65536/20|bowline|rxe rxe|'
    echo 'ib_write_bw|4096/65536/20|bowline|rxe rxe bowline|'
    echo 'ib_write_bw|1024/65536/20|bowline|rxe rxe|--link loss=1%,seed=5'
    echo 'ib_write_bw|1024/65536/20|rxe|bowline bowline|'
    echo 'ib_send_bw|4096/65536/20|rxe|bowline bowline bowline|'
    echo 'ib_write_bw|1024/65536/20|rxe|bowline bowline|--link loss=1%,seed=5'
}

quick_group_rows() {
    group_rows | sed -n '1p;6p'
}

# Adds addresses for a switch and members to the host, and makes them known to the guest.
prepare_groups() {
    local last
    "$here/guest/sh" 'ip route add 169.254.77.0/24 dev eth0' || return
    for last in "$first_member" $((first_member + 1)) $((first_member + 2)) "${switch_addr##*.}"; do
        ip addr add "169.254.77.$last/32" dev tap0 || return
        "$here/guest/sh" "ip neigh add 169.254.77.$last lladdr 52:54:00:00:00:01 dev eth0" || return
    done
}

# run_group INDEX ROW: like run_row.
run_group() {
    try_group "$1" "$2" '' && return
    [[ -n $retry ]] || return 1
    try_group "$1" "$2" ' (second try)' && return "$passed_late"
}

# try_group INDEX ROW REMARK
try_group() {
    local program shape sender members switch_options
    IFS='|' read -r program shape sender members switch_options <<< "$2"
    local log="$logs/$1$3" port=$((10000 + 8 * $1)) start=$EPOCHREALTIME status=0 verdict=ok who
    # Programs of the first try may still be listening.
    [[ -z $3 ]] || ((port += 4000))
    local mtu size count options pids=()
    IFS=/ read -r mtu size count <<< "$shape"
    options="-c RC -m $mtu -s $size -n $count"
    play_group || status=$?
    ((status)) && verdict=FAIL
    printf '%-4s %5.1f s  group of %s -> %s: %s %s%s%s\n' "$verdict" "$(elapsed "$start")" \
        "$sender" "${members// / + }" "$program" "$options" "${switch_options:+, $switch_options}" "$3"
    ((status)) || return 0
    echo "     exit status $status"
    kill "${pids[@]}" 2> /dev/null
    wait "${pids[@]}" 2> /dev/null
    for who in "$log".*; do show_log "${who##*.}" "$who"; done
    return 1
}

# Starts the members, the switch and the sender; then all must have succeeded. Uses the variables of
# try_group: its words, log, port and pids.
play_group() {
    local at=() kind number=0 pid
    for kind in $members; do
        start_member "$kind" "$number" $((port + 1 + number)) || return
        ((++number))
    done
    timeout -k 1 "$row_limit_s" "$bowline" switch "$switch_addr" --listen "$port" --once \
        --members "$(IFS=,; echo "${at[*]}")" $switch_options > "$log.switch" 2>&1 &
    pids+=($!)
    await $! "$row_limit_s" host_listens "$port" || return
    run_sender || return
    for pid in "${pids[@]}"; do wait "$pid" || return; done
    measured "$program" "$log.sender" || return 250
    were_copied
}

# start_member KIND NUMBER PORT: starts a member, waits until it listens, and adds it to `pids` and
# `at`.
start_member() {
    local addr=169.254.77.$((first_member + $2)) words
    if [[ $1 == rxe ]]; then
        addr=169.254.77.2
        words=$(arguments "$program" "$options" rxe0 "${guest_gid[4]}" "$3" clean)
        (exec_in_guest "$(guest_server "$words" "$3")") > "$log.member$2" 2>&1 &
        pids+=($!)
        await $! "$row_limit_s" guest_listens "$log.member$2" || return
    else
        words=$(arguments "$program" "$options" bl0 "$host_gid" "$3" clean)
        # shellcheck disable=SC2086 # words
        (host_addr[4]=$addr; exec_on_host 4 clean $words) > "$log.member$2" 2>&1 &
        pids+=($!)
        await $! "$row_limit_s" host_listens "$3" || return
    fi
    at+=("$addr:$3")
}

run_sender() {
    local words
    if [[ $sender == rxe ]]; then
        words=$(arguments "$program" "$options" rxe0 "${guest_gid[4]}" "$port" clean)
        (exec_in_guest "$words $switch_addr") > "$log.sender" 2>&1
    else
        words=$(arguments "$program" "$options" bl0 "$host_gid" "$port" clean)
        # shellcheck disable=SC2086 # words
        (exec_on_host 4 clean $words "$switch_addr") > "$log.sender" 2>&1
    fi
}

# Whether the switch reports that every packet went to every member.
were_copied() {
    local packets=$((count * size / mtu)) copies words
    words=($members)
    copies=$(awk '$1 == "copies_out" { print $2 }' "$log.switch")
    ((${copies:-0} >= packets * ${#words[@]})) && return
    echo "${copies:-0} copies of $packets packets" >> "$log.switch"
    return 251
}
