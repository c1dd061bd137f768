# shellcheck shell=bash
# Runs one row: a server on one side, a client on the other, both under a time limit.
#
# Needs: $here, $stage (unpacked packages), $verbs (the preload library), $logs, $row_limit_s,
# $retry.

host_gid=0
declare -A guest_gid=([4]=1 [6]=2)
declare -A host_addr=([4]=169.254.77.1 [6]=fe80::1)
# Impairments of the host's packets, matching the guest's netem. There is no delay: when a program
# ends, packets still in its link are gone, and a last acknowledgement must not be lost that way.
host_loss='loss=1%,reorder=1%'

# Whether a row's programs connect through the connection manager.
by_cm() { [[ $1 == rping || " $2 " == *' -R '* ]]; }

# The words of a program's command line: its device, GID and TCP port.
#
# rping names no device: `run_pair` tells its server the address to listen on.
#
# perftest's timeout of 67 ms is too short: an emulated rxe on a busy machine needs longer to answer
# a window of 640 packets. Bowline would then retransmit the whole window, which does not help,
# until its retries are exhausted (status 12, exit 17). So use -u 17, half a second. Under loss,
# where recovery waits for that timeout, use -u 16. Each end of a READ or atomic test uses as many
# outstanding requests as the other supports, and rxe's 128 are more than Bowline's 16, hence -o.
arguments() {
    local program=$1 options=$2 device=$3 gid=$4 port=$5 link=$6 more='-F -u 17'
    [[ $link == lossy ]] && more='-F -u 16'
    case $program in
        rping) echo "$program -p $port $options" ; return ;;
        ibv_*) echo "$program -d $device -g $gid -p $port $options" ; return ;;
        ib_read* | ib_atomic*) more+=' -o 16' ;;
    esac
    echo "$program -d $device -x $gid -p $port $more $options"
}

# Replaces this shell with a program on the host, running on Bowline.
exec_on_host() {
    local ip=$1 link=$2
    shift 2
    [[ $link == lossy ]] && export BOWLINE_LINK=$host_loss
    export BOWLINE_DEVICES=bl0=${host_addr[$ip]}
    export LD_LIBRARY_PATH=$stage/usr/lib/x86_64-linux-gnu PATH=$stage/usr/bin:$PATH
    LD_PRELOAD=$verbs exec timeout -k 1 "$row_limit_s" "$@"
}

exec_in_guest() {
    exec timeout -k 1 "$row_limit_s" "$here/guest/sh" "$@"
}

# A pattern for a socket that listens on a port, in the notation of /proc/net/tcp.
listening() { printf ':%04X [0:]+ 0A' "$1"; }

# await PID LIMIT_S COMMAND…: waits until the command succeeds; fails if the process ends first.
await() {
    local pid=$1 deadline=$((SECONDS + $2)) stat
    shift 2
    until "$@"; do
        # A process that has ended but has not been waited for still exists, as a zombie.
        stat=$(< "/proc/$pid/stat") 2> /dev/null || return 1
        [[ $stat != *') Z '* ]] && ((SECONDS < deadline)) || return 1
        sleep 0.05
    done
}

host_listens() { grep -Eqs "$(listening "$1")" /proc/net/tcp /proc/net/tcp6; }

# The guest's server reports when it listens: polling would cost a process each time.
guest_listens() { grep -qs '^@listening' "$1"; }

guest_server() {
    printf '%s & server=$!; until grep -Eqs "%s" /proc/net/tcp /proc/net/tcp6; do %s; done; %s' \
        "$1" "$(listening "$2")" 'kill -0 $server || exit 1; usleep 20000' \
        'echo @listening; wait $server'
}

# Whether a log shows that the program measured something rather than ending early. The result may
# be "inf": perftest measures the clock rate itself, and does not always succeed.
measured() {
    local program=$1 log=$2
    case $program in
        rping) grep -q 'ping data' "$log" ;;
        ibv_*) grep -q 'iters in' "$log" ;;
        *) grep -Eq '^ *[0-9]+ +[0-9]+ +([0-9]|inf|-?nan)' "$log" ;;
    esac
}

# A pingpong's client leaves when it has the last message. If its acknowledgement is lost, nothing
# repeats it, and the server can never know: it fails or, on rxe, retries for ever (rxe takes a
# retry count of 7 as infinite). So under loss only the client, which has checked all data, decides.
leaves_early() { [[ $1 == ibv_* && $2 == lossy ]]; }

# run_row INDEX ROW: prints a line of the table for each try, and both logs if it failed. Returns 0
# if the row passed, and $passed_late if it passed at the second try.
passed_late=2
run_row() {
    try_row "$1" "$2" '' && return
    [[ -n $retry ]] || return 1
    try_row "$1" "$2" ' (second try)' && return "$passed_late"
}

# try_row INDEX ROW REMARK
try_row() {
    local program options direction ip link start=$EPOCHREALTIME status=0 verdict=ok
    IFS='|' read -r program options direction ip link <<< "$2"
    local log="$logs/$1$3" port=$((20000 + $1))
    # Programs of the first try may still be listening.
    [[ -z $3 ]] || ((port += 5000))
    run_pair "$log" "$port" || status=$?
    ((status)) && verdict=FAIL
    printf '%-4s %5.1f s  IPv%s %s %-5s %s %s%s\n' \
        "$verdict" "$(elapsed "$start")" "$ip" "$direction" "$link" "$program" "$options" "$3"
    ((status)) || return 0
    echo "     exit status $status"
    show_log server "$log.server"
    show_log client "$log.client"
    return 1
}

# Prints a log without its rules and empty lines. Prints all of it, because standard error comes
# first.
show_log() {
    [[ -f $2 ]] && grep -Ev '^[- ]*$' "$2" | sed "s/^/     $1 | /"
}

# run_pair LOG PORT: one server and one client of the row that try_row has read.
run_pair() {
    local log=$1 port=$2 host guest server status=0
    host=$(arguments "$program" "$options" bl0 "$host_gid" "$port" "$link")
    guest=$(arguments "$program" "$options" rxe0 "${guest_gid[$ip]}" "$port" "$link")

    if by_cm "$program" "$options"; then
        run_by_cm "$log" "$host" "$guest" || status=$?
        ((status)) || measured "$program" "$log.client" || status=250
        return "$status"
    fi
    if [[ $direction == '->' ]]; then
        (exec_in_guest "$(guest_server "$guest" "$port")") > "$log.server" 2>&1 &
        server=$!
        await "$server" "$row_limit_s" guest_listens "$log.server" || status=1
        # shellcheck disable=SC2086 # words
        ((status)) || (exec_on_host "$ip" "$link" $host 169.254.77.2) > "$log.client" 2>&1 || status=$?
    else
        # shellcheck disable=SC2086 # words
        (exec_on_host "$ip" "$link" $host) > "$log.server" 2>&1 &
        server=$!
        await "$server" "$row_limit_s" host_listens "$port" || status=1
        ((status)) || (exec_in_guest "$guest 169.254.77.1") > "$log.client" 2>&1 || status=$?
    fi
    if ((status)) || leaves_early "$program" "$link"; then
        kill "$server" 2>/dev/null
        wait "$server" || true
    else
        wait "$server" || status=$?
    fi
    ((status)) || measured "$program" "$log.client" || status=250
    return "$status"
}

# run_by_cm LOG HOST GUEST: like run_pair, for programs that listen on no TCP port, so there is no
# sign of when the server is ready. A client that starts too early is refused, and then both ends
# start over: perftest connects twice, and a server whose client was refused the second time would
# take the next client's first connection for the second.
run_by_cm() {
    local log=$1 host=$2 guest=$3 server status tries ended
    local at_host=${host_addr[$ip]} at_guest=169.254.77.2 at_tap='' at_eth=''
    # Link-local addresses need an interface.
    ((ip == 6)) && at_guest=fe80::2 at_tap=%tap0 at_eth=%eth0
    if [[ $program == rping ]]; then
        if [[ $direction == '->' ]]; then
            guest+=" -s -a $at_guest$at_eth" host+=" -c -a $at_guest$at_tap"
        else
            host+=" -s -a $at_host$at_tap" guest+=" -c -a $at_host$at_eth"
        fi
    elif [[ $direction == '->' ]]; then
        host+=" $at_guest"
    else
        guest+=" $at_host"
    fi
    for ((tries = 1; tries <= 8; tries++)); do
        status=0 ended=0
        # shellcheck disable=SC2086 # words
        if [[ $direction == '->' ]]; then
            (exec_in_guest "$guest") > "$log.server" 2>&1 &
            server=$!
            sleep "0.$tries"
            (exec_on_host "$ip" "$link" $host) > "$log.client" 2>&1 || status=$?
        else
            (exec_on_host "$ip" "$link" $host) > "$log.server" 2>&1 &
            server=$!
            sleep "0.$tries"
            (exec_in_guest "$guest") > "$log.client" 2>&1 || status=$?
        fi
        ((status == 0)) || kill "$server" 2> /dev/null || true
        wait "$server" || ended=$?
        # A client that ran into its time limit was connected.
        ((status == 0 || status == 124)) && break
    done
    ((status)) || status=$ended
    return "$status"
}

elapsed() {
    local now=$EPOCHREALTIME
    printf '%d.%d' "$(((${now/./} - ${1/./}) / 1000000))" "$(((${now/./} - ${1/./}) / 100000 % 10))"
}
