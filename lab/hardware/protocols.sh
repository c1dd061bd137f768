# shellcheck shell=bash
# Rows for protocols on verbs devices: SDR with every scheme, a file with interruptions,
# collectives.
#
# Needs: row, perf, in_guest, $host, $guest, $here, $logs, $row_limit_s, $quick, next_port.

file_bytes=$((64 << 20))
file_limit_s=110

# scheme ENDS SCHEME LOG: one in a hundred of the client's packets is lost.
scheme() {
    local ends=$1 name=$2 log=$3 options="-s 256K -n 12 --scheme $2"
    [[ $ends == *-soft ]] && options+=' --link loss=1%'
    perf "$ends" write-bw "$options" "$log"
}

# file LOG: sends a file to a verbs device over a lossy link. The sender is stopped twice, and
# resumes.
file() {
    local log=$1 port=$((next_port++)) receiver status=0 stopped=0 try source=$logs/file sum
    head -c "$file_bytes" /dev/urandom > "$source"
    sum=$(sha256sum < "$source")
    in_guest 'rm -rf /tmp/inbox && mkdir /tmp/inbox' || return
    timeout -k 1 "$file_limit_s" "$here/guest/sh" \
        "$(guest_server "/tmp/bowline recv /tmp/inbox -d verbs:rxe0 -p $port --insecure > /tmp/$port 2>&1" "$port")" \
        > "$log.receiver" 2>&1 &
    receiver=$!
    await "$receiver" "$row_limit_s" guest_listens "$log.receiver" || status=1
    for try in 1 2 3; do
        ((status == 0)) || break
        local limit=(timeout -s INT 4)
        ((try == 3)) && limit=(timeout -k 1 "$file_limit_s")
        if "${limit[@]}" "$BOWLINE_LAB_BIN/bowline" send "$source" "$guest:$port" -d "$host" --insecure \
            --scheme sr-nack --bwlimit 60Mbps --link loss=1% > "$log.sender$try" 2>&1; then
            ((try == 3)) || stopped=-9
        else
            ((try == 3)) && status=1
            ((stopped++))
        fi
    done
    in_guest "cat /tmp/$port; sha256sum < /tmp/inbox/file" > "$log.guest" 2>&1 || status=1
    kill "$receiver" 2> /dev/null
    in_guest 'rm -rf /tmp/inbox'
    wait "$receiver"
    rm -f "$source"
    ((status == 0 && stopped == 2)) && grep -qF "$sum" "$log.guest"
}

# ranks TRANSPORT IN_GUEST LOG: an allreduce of 4 ranks. IN_GUEST of them are on verbs:rxe0, the
# rest on the soft NIC.
ranks() {
    local transport=$1 inside=$2 log=$3 port=$((next_port += 2)) rank command pids=() status=0
    local options="collective allreduce -b 64K -e 64K -n 3 -w 1 --transport $transport --insecure"
    for ((rank = 0; rank < 4; rank++)); do
        command="RANK=$rank WORLD_SIZE=4 MASTER_ADDR=$guest MASTER_PORT=$port"
        if ((rank < inside)); then
            in_guest "$command /tmp/bowline $options --device verbs:rxe0" > "$log.rank$rank" 2>&1 &
        else
            # shellcheck disable=SC2086 # words
            env $command timeout -k 1 "$row_limit_s" "$BOWLINE_LAB_BIN/bowline" $options --device "$host" \
                > "$log.rank$rank" 2>&1 &
        fi
        pids+=($!)
    done
    for rank in "${pids[@]}"; do wait "$rank" || status=1; done
    return "$status"
}

protocol_rows() {
    local ends name
    in_guest 'impair loss 1%' || echo 'netem cannot be had in the guest: its packets do not get lost'
    for ends in verbs-soft soft-verbs; do
        for name in sr-nack ec-mds sr-rto ec-xor auto; do
            [[ -n $quick && $name != sr-nack && $name != ec-mds ]] && continue
            row "$ends perf write-bw --scheme $name, 1 % loss" scheme "$ends" "$name"
        done
    done
    row 'verbs-verbs perf write-bw --scheme sr-nack' perf verbs-verbs write-bw '-s 256K -n 12 --scheme sr-nack'
    row 'allreduce of 4 ranks on verbs, RC' ranks rc 4
    row 'allreduce of 2 ranks on verbs and 2 on the soft NIC, RC' ranks rc 2
    [[ -n $quick ]] || row 'allreduce of 4 ranks on verbs, sr-nack' ranks sr-nack 4
    row 'send of 64 MiB to verbs with two interruptions, 1 % loss' file
    in_guest 'tc qdisc del dev eth0 root' || true
}
