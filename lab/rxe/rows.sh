# shellcheck shell=bash
# The rows of the matrix: which programs meet, and how.
#
# A row is PROGRAM|OPTIONS|DIRECTION|IP|LINK. In direction "->" the client, which is the requester,
# runs on Bowline and the server in the guest on rxe; "<-" is the reverse. LINK is "clean" or
# "lossy".

# One program with one set of options: both directions, both IP versions.
both_ways() {
    local program=$1 options=$2 link=$3 direction ip
    for ip in 4 6; do
        for direction in '->' '<-'; do
            echo "$program|$options|$direction|$ip|$link"
        done
    done
}

# perftest: every program on every transport that it supports, every path MTU, and 1 B to 1 MiB. Not
# all combinations, but each path MTU is tested with a short and a long message.
perftest_rows() {
    local program transport shape mtu size count kind
    for program in ib_send ib_write ib_read; do
        for transport in RC UC; do
            [[ $program$transport == ib_readUC ]] && continue
            for shape in 256/1/50 256/65536/5 512/1000/20 1024/65536/10 2048/262144/5 4096/1048576/5; do
                IFS=/ read -r mtu size count <<< "$shape"
                both_ways "${program}_bw" "-c $transport -m $mtu -s $size -n $count" clean
            done
            # perftest spends half of a latency row measuring the clock rate at both ends, so three
            # shapes must do.
            for shape in 256/1/20 1024/4096/20 4096/131072/5; do
                IFS=/ read -r mtu size count <<< "$shape"
                both_ways "${program}_lat" "-c $transport -m $mtu -s $size -n $count" clean
            done
        done
    done
    # A datagram is one packet.
    for shape in 256/1 512/512 1024/1000 2048/2048 4096/4096; do
        IFS=/ read -r mtu size <<< "$shape"
        both_ways ib_send_bw "-c UD -m $mtu -s $size -n 50" clean
    done
    both_ways ib_send_lat '-c UD -m 256 -s 1 -n 20' clean
    both_ways ib_send_lat '-c UD -m 4096 -s 4096 -n 20' clean
    # An atomic is one packet, whatever the path MTU.
    for mtu in 256 1024 4096; do
        for kind in FETCH_AND_ADD CMP_AND_SWAP; do
            both_ways ib_atomic_bw "-A $kind -m $mtu -n 20" clean
        done
    done
    both_ways ib_atomic_lat '-A FETCH_AND_ADD -m 256 -n 20' clean
    both_ways ib_atomic_lat '-A CMP_AND_SWAP -m 4096 -n 20' clean
}

pingpong_rows() {
    both_ways ibv_rc_pingpong '-c -s 4096 -m 1024 -n 50' clean
    both_ways ibv_rc_pingpong '-c -s 65536 -m 4096 -n 10' clean
    both_ways ibv_rc_pingpong '-c -e -s 1000 -m 256 -n 20' clean
    both_ways ibv_uc_pingpong '-c -s 4096 -m 1024 -n 50' clean
    both_ways ibv_ud_pingpong '-c -s 1024 -n 50' clean
    both_ways ibv_srq_pingpong '-c -q 4 -s 4096 -m 1024 -n 50' clean
}

# Connected through the connection manager: the kernel's at one end, ours at the other.
cm_rows() {
    local direction
    both_ways rping '-v -V -C 10 -S 2000' clean
    # perftest's IPv6 option is about its TCP connection, and there is none here.
    for direction in '->' '<-'; do
        echo "ib_write_bw|-R -c RC -m 1024 -s 65536 -n 10|$direction|4|clean"
        echo "ib_send_bw|-R -c RC -m 4096 -s 65536 -n 10|$direction|4|clean"
        echo "ib_read_lat|-R -c RC -m 1024 -s 4096 -n 10|$direction|4|clean"
    done
}

# Under loss only reliable transports can finish: an unreliable perftest or pingpong waits for ever
# for a lost message, and rightly so. A UC write completes when it is sent.
lossy_rows() {
    local program
    for program in ib_send ib_write ib_read; do
        both_ways "${program}_bw" "-c RC -m 1024 -s 65536 -n 10" lossy
        both_ways "${program}_lat" "-c RC -m 1024 -s 4096 -n 20" lossy
    done
    both_ways ib_atomic_bw '-A FETCH_AND_ADD -m 1024 -n 50' lossy
    both_ways ib_atomic_lat '-A CMP_AND_SWAP -m 1024 -n 20' lossy
    both_ways ibv_rc_pingpong '-c -s 4096 -m 1024 -n 50' lossy
    both_ways ibv_srq_pingpong '-c -q 2 -s 4096 -m 1024 -n 20' lossy
}

# The short form for quick checks after a change: one row of each kind.
quick_rows() {
    both_ways rping '-v -V -C 5 -S 2000' clean
    both_ways ib_send_bw '-c RC -m 1024 -s 65536 -n 10' clean
    both_ways ib_send_lat '-c UD -m 1024 -s 1000 -n 20' clean
    both_ways ib_write_bw '-c UC -m 4096 -s 65536 -n 5' clean
    both_ways ib_read_bw '-c RC -m 1024 -s 65536 -n 10' clean
    both_ways ib_atomic_lat '-A FETCH_AND_ADD -m 1024 -n 20' clean
    both_ways ibv_rc_pingpong '-c -s 4096 -m 1024 -n 50' clean
}
