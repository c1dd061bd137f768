"""Which programs run, and how."""

from cm import ConnectionPair
from pair import FabricPair, Pair, Single


def bandwidth(text):
    """The average bandwidth of the last row that perftest printed, in MB/s."""
    rows = [l.split() for l in text.splitlines() if l.split() and l.split()[0].isdigit()]
    rows = [r for r in rows if len(r) >= 5]
    return f"{rows[-1][3]} MB/s at {rows[-1][0]} bytes" if rows else ""


def latency(text):
    """The typical latency of the last row that perftest printed."""
    rows = [l.split() for l in text.splitlines() if l.split() and l.split()[0].isdigit()]
    rows = [r for r in rows if len(r) >= 5]
    return f"{rows[-1][4]} us typical at {rows[-1][0]} bytes" if rows else ""


def perftest(command, path="", **more):
    """A pair on the default path, which is memory here, or on the one that is named."""
    words = command.split()
    result = latency if words[0].endswith("_lat") else bandwidth
    if path:
        return Pair(f"{command} ({path})", [*words, "-F"], result=result, variables=dict(BOWLINE_VIA=path), **more)
    return Pair(command, [*words, "-F"], result=result, **more)


def pingpong(command, **more):
    return Pair(command, [*command.split(), "-g", "0"], **more)


# Every perftest tool on every transport that it supports.
TOOLS = """
ib_write_bw
ib_write_bw -c UC
ib_write_bw -c XRC
ib_write_lat
ib_write_lat -c UC
ib_read_bw
ib_read_lat
ib_send_bw
ib_send_bw -c UC
ib_send_bw -c UD
ib_send_bw -c XRC
ib_send_lat
ib_send_lat -c UC
ib_send_lat -c UD
ib_atomic_bw
ib_atomic_bw -A CMP_AND_SWAP
ib_atomic_lat
ib_atomic_lat -A CMP_AND_SWAP
"""

# What their options make them do.
QUICK = """
ib_write_bw -b
ib_send_bw -b
ib_write_bw -q 4
ib_send_bw -e
ib_send_lat -e
ib_send_bw -c UD -e
ib_write_bw -s 64 -I 64
ib_send_lat -s 64 -I 128
ib_write_bw -l 16 -n 4800
ib_write_bw -m 1024
ib_send_bw --use-srq -q 4
ib_write_bw -D 1
ib_send_bw -s 1048576 -n 200
"""

FULL = """
ib_write_bw -a
ib_send_bw -a
ib_read_bw -a
ib_write_lat -a -n 100
ib_send_lat -a -n 100
ib_read_lat -a -n 100
ib_send_bw -a -c UC
ib_send_bw -a -c UD
ib_write_bw -m 256
ib_write_bw -m 512
ib_write_bw -m 2048
ib_write_bw -m 4096
ib_send_bw -m 256 -c UD -s 256
ib_read_bw -m 1024
ib_write_bw -q 64
ib_read_bw -q 8
ib_send_bw -q 16
ib_atomic_bw -q 4
ib_read_bw -b
ib_atomic_bw -b
ib_send_bw -b -c UD
ib_write_bw -b -q 8
ib_write_bw -e
ib_read_bw -e
ib_read_lat -e
ib_send_lat -c UD -e
ib_send_lat -c UC -e
ib_write_lat -s 64 -I 0
ib_write_lat -s 200 -I 220
ib_write_bw -s 2 -I 2
ib_send_bw -l 8 -n 800 --recv_post_list=8
ib_read_bw -o 1
ib_read_bw -o 16
ib_write_bw -t 1
ib_write_bw -t 4096
ib_write_bw -Q 1
ib_send_bw -r 16
ib_send_bw -D 2
ib_send_lat -D 1
ib_write_bw -x 1
ib_write_bw --tclass=104
ib_write_bw --mr_per_qp -q 4
ib_write_bw --report_gbits -N
ib_send_bw --reversed
ib_write_bw -s 8388608 -n 100
ib_read_bw -s 8388608 -n 100
ib_write_bw -u 14 -n 20000 -s 4096
"""

PINGPONGS_QUICK = """
ibv_rc_pingpong -c
ibv_rc_pingpong -e
ibv_rc_pingpong -N
ibv_rc_pingpong -t
ibv_uc_pingpong -c
ibv_uc_pingpong -e
ibv_ud_pingpong -c
ibv_ud_pingpong -e
ibv_srq_pingpong -c
ibv_srq_pingpong -e
ibv_xsrq_pingpong
"""

PINGPONGS_FULL = """
ibv_rc_pingpong
ibv_rc_pingpong -s 1048576 -n 200
ibv_rc_pingpong -m 4096 -s 65536
ibv_rc_pingpong -m 256
ibv_rc_pingpong -N -e -c
ibv_rc_pingpong -t -e
ibv_rc_pingpong -r 16
ibv_uc_pingpong -m 2048
ibv_ud_pingpong -s 1024
ibv_srq_pingpong -q 64 -n 200
"""

# Programs that connect through librdmacm.
CONNECTIONS = [
    *(ConnectionPair(command, f"{command} -F -p {{port}}", f"{command} -F -p {{port}} {{host}}",
                     result=latency if "_lat" in command else bandwidth)
      for command in ("ib_write_bw -R", "ib_read_bw -R -q 4", "ib_send_lat -R")),
    ConnectionPair("rping", "rping -s -C 10 -v -a {host} -p {port}",
                   "rping -c -C 10 -v -a {host} -p {port}"),
    ConnectionPair("rping, QPs of its own", "rping -s -q -C 10 -v -a {host} -p {port}",
                   "rping -c -q -C 10 -v -a {host} -p {port}"),
    ConnectionPair("rping, both on one address", "rping -s -C 10 -v -a {host} -p {port}",
                   "rping -c -C 10 -v -a {host} -p {port}", devices=("bl0", "bl0")),
    ConnectionPair("ucmatose", "ucmatose -b {host} -p {port} -c 16",
                   "ucmatose -s {host} -p {port} -c 16"),
    ConnectionPair("ucmatose with 5 % loss", "ucmatose -b {host} -p {port} -c 16",
                   "ucmatose -s {host} -p {port} -c 16", variables={"BOWLINE_LINK": "loss=5%"}),
    ConnectionPair("udaddy", "udaddy -b {host} -c 4", "udaddy -s {host} -c 4"),
]

# On-demand paging, and device memory.
MEMORY = [
    perftest("ib_write_bw --odp"),
    pingpong("ibv_rc_pingpong -o"),
    pingpong("ibv_rc_pingpong -j"),
]


def cases(quick):
    yield Single("ibv_devices", ["ibv_devices"], "bl1")
    yield Single("ibv_devinfo -v", ["ibv_devinfo", "-v"], "::ffff:127.0.0.2, RoCE v2")
    yield Single("ibv_devinfo (libibverbs.so.1)", ["ibv_devinfo"], "PORT_ACTIVE", how="versioned")
    yield Single("ibv_asyncwatch", ["ibv_asyncwatch", "-d", "bl0"], "async event FD",
                 stop_after_s=0.5)
    lists = [TOOLS, QUICK] + ([] if quick else [FULL])
    for command in "".join(lists).split("\n"):
        if command:
            yield perftest(command)
    for command in TOOLS.split("\n"):
        if command:
            yield perftest(command, path="udp")
    lists = [PINGPONGS_QUICK] + ([] if quick else [PINGPONGS_FULL])
    for command in "".join(lists).split("\n"):
        if command:
            yield pingpong(command)
    yield Pair("ib_write_bw (libibverbs.so.1)", ["ib_write_bw", "-F"], bandwidth, how="versioned")
    yield Pair("ibv_rc_pingpong (libibverbs.so.1)", ["ibv_rc_pingpong", "-g", "0", "-c"],
               how="versioned")
    yield Pair("ib_write_bw, both on one address", ["ib_write_bw", "-F"], bandwidth,
               devices=("bl0", "bl0"))
    yield Pair("ib_send_bw with 1 % loss", ["ib_send_bw", "-F", "-n", "300"], bandwidth,
               variables={"BOWLINE_LINK": "loss=1%"})
    yield Single("fi_info -p verbs", ["fi_info", "-p", "verbs"], "bl0-dgram")
    yield FabricPair("fi_pingpong -p verbs;ofi_rxd -e rdm",
                     ["fi_pingpong", "-p", "verbs;ofi_rxd", "-e", "rdm", "-S", "65536"])
    yield Single("ucx_info -d (hides the device)", ["ucx_info", "-d"], "Transport: tcp")
    yield from CONNECTIONS
    yield from MEMORY
