"""What is measured beside what: each row a transport, and exactly what it does."""

import re
import shutil
from dataclasses import dataclass, field

from pair import Failed, bowline_perf, by_driver, free_port, tool

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"64 KiB": 64 * KIB, "1 MiB": MIB, "16 MiB": 16 * MIB}
LOOPBACK = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"}
MEMORY = {"UCX_TLS": "shm"}


@dataclass
class Cell:
    """One thing to measure, again and again: where it goes in the tables, and how it is done."""

    row: str
    point: str
    run: object = field(repr=False)
    # Several ways to do the same: the one with the best median represents the row.
    variant: str = ""
    # For cells that are measured in turns with others: the driver's kind and options, and the
    # duration.
    turns: tuple = ()


# What each row does, printed under the table.
WHAT = {
    "UDP GSO/GRO": "datagrams of 4096 B, 15 to a call and 4 calls at once, no acknowledgements; counted are bytes received. Cold, the receiver "
                   "copies each batch to its place, by memcpy or past the caches: the better median counts. Hot, it leaves them",
    "UDP GSO/GRO MTU 1024": "the same with datagrams of 1024 B, 63 to a call",
    "UDP summed": "a bound for RC: the same with what RoCEv2 asks of every packet, header and ICRC, computed and checked by Bowline's code, and no engine; "
                  "hot, too, the receiver copies",
    "UDP summed MTU 1024": "the same with packets of 1024 B",
    "TCP CUBIC": "one connection, writes of a message, reads of up to 1 MiB straight into the destination; the kernel's buffers "
                 "tune themselves",
    "TCP BBR": "the same with BBR",
    "UCX put": "ucx_perftest ucp_put_bw and ucp_put_lat over tcp: one-sided, one hot message's buffer at either end, its own default depth; "
               "CPU is that of the whole processes",
    "UCX put shm": "the same over shared memory (UCX_TLS=shm)",
    "UCX tag": "ucx_perftest tag_bw and tag_lat over tcp: two-sided, hot as above",
    "libfabric": "fi_pingpong over the tcp provider: the packages have no other program. One message at a time, hot; latency is the mean",
    "quinn": "one QUIC stream, CUBIC, as quinn comes but for windows; encrypted; read into the destination",
    "quinn MTU 4096": "the same with datagrams as large as Bowline's",
    "SRT": "file mode as a stream, flow window and buffers of 64 MiB and more; not encrypted; read into the destination",
    "Bowline RC": "RDMA WRITE, MTU 4096; complete when acknowledged, with everything in the registered destination. Latency: bowline perf write-lat, "
                  "both ends looking at memory",
    "Bowline RC shm": "the same with --via shm at both ends",
    "Bowline RC MTU 1024": "the same with small packets",
    "Bowline UC": "RDMA WRITE with immediate; counted are the receiver's completions",
    "Bowline SR": "SDR, selective repeat by NACK, 64 KiB chunks; complete when the receiver has said that all is there",
    "Bowline SR RTO": "SDR, selective repeat by timeout",
    "Bowline EC MDS": "SDR, Reed-Solomon (32, 8): a quarter more is sent",
    "Bowline EC XOR": "SDR, XOR (32, 8): a quarter more is sent",
}

# Rows that the driver runs: kind, and fixed options.
DRIVEN = {
    "TCP CUBIC": ("tcp-cubic", []),
    "TCP BBR": ("tcp-bbr", []),
    "quinn": ("quinn-cubic", []),
    "quinn MTU 4096": ("quinn-cubic", ["--mtu", 4096]),
    "SRT": ("srt", []),
    "Bowline RC": ("rc", []),
    "Bowline RC shm": ("rc", ["--via", "shm"]),
    "Bowline UC": ("uc", []),
    "Bowline SR": ("sr-nack", []),
    "Bowline SR RTO": ("sr-rto", []),
    "Bowline EC MDS": ("ec-mds", []),
    "Bowline EC XOR": ("ec-xor", []),
}
# Row, test and transport.
UCX_BANDWIDTHS = [("UCX put", "ucp_put_bw", LOOPBACK), ("UCX put shm", "ucp_put_bw", MEMORY), ("UCX tag", "tag_bw", LOOPBACK)]
# Kinds that sleep while others have their turn. The rest spin, or continue for a while with what
# they have buffered.
BY_TURNS = {"udp", "udp-stream", "udp-summed", "tcp-cubic", "tcp-bbr", "rc"}
WITH_PING = ["TCP CUBIC", "TCP BBR", "quinn", "SRT", "Bowline SR", "Bowline EC MDS"]


def loopback(quick, seconds):
    """Every cell of the loopback tables, in the order of a round."""
    sizes = {"1 MiB": MIB} if quick else SIZES
    points = [(name, size, "cold") for name, size in sizes.items()] + [("1 MiB hot", MIB, "hot")]
    for point, size, buffers in points:
        options = ["--size", size, "--buffers", buffers]
        # The two ways to copy are variants of one row.
        for kind in ("udp", "udp-stream") if buffers == "cold" else ("udp",):
            yield driven("UDP GSO/GRO", point, kind, "bulk", options, seconds, variant=kind)
        if size == MIB:
            yield driven("UDP summed", point, "udp-summed", "bulk", options, seconds)
        for row, (kind, more) in DRIVEN.items():
            yield driven(row, point, kind, "bulk", options + more, seconds)
        if point == "1 MiB":
            yield driven("Bowline RC MTU 1024", point, "rc", "bulk", options + ["--mtu", 1024], seconds)
            yield driven("UDP summed MTU 1024", point, "udp-summed", "bulk", options + ["--mtu", 1024], seconds)
            for kind in ("udp", "udp-stream"):
                yield driven("UDP GSO/GRO MTU 1024", point, kind, "bulk", options + ["--mtu", 1024], seconds, variant=kind)
        if buffers == "cold":
            for row, test, over in UCX_BANDWIDTHS:
                yield Cell(row, point, lambda t=test, o=over, s=size: ucx_bandwidth(t, s, seconds, o))
            yield Cell("libfabric", point, lambda s=size: libfabric(s, seconds))
    yield from latencies(seconds)
    yield from crowds(quick, seconds)


ONE_QP, MANY_QPS, BESIDE_IDLE = "1 QP, 64 KiB hot", "1000 QPs, 64 KiB hot", "1 MiB hot, 10000 idle QPs"
# Points whose cells are compared with those of other points.
GROUP_OF = {ONE_QP: MANY_QPS, BESIDE_IDLE: "1 MiB hot"}


def latencies(seconds):
    yield driven("UDP GSO/GRO", "8 B", "udp", "ping", ["--size", 8], seconds)
    for row in WITH_PING:
        yield driven(row, "8 B", DRIVEN[row][0], "ping", ["--size", 8], seconds)
    yield Cell("UCX put", "8 B", lambda: ucx_latency("ucp_put_lat", seconds))
    yield Cell("UCX put shm", "8 B", lambda: ucx_latency("ucp_put_lat", seconds, MEMORY))
    yield Cell("UCX tag", "8 B", lambda: ucx_latency("tag_lat", seconds))
    yield Cell("libfabric", "8 B", lambda: libfabric(8, seconds))
    yield Cell("Bowline RC", "8 B", lambda: rc_latency(seconds))
    yield Cell("Bowline RC shm", "8 B", lambda: rc_latency(seconds, "shm"))


def crowds(quick, seconds):
    """What a thousand queue pairs share, and what ten thousand idle ones cost."""
    yield driven("Bowline RC", "idle", "rc", "idle", [], 2 if quick else 5)
    small = ["--size", 64 * KIB, "--warm-up", 0.5]
    yield driven("Bowline RC", ONE_QP, "rc", "bulk", small, seconds)
    yield driven("Bowline RC", MANY_QPS, "rc", "bulk", small + ["--qps", 1000], 2 * seconds)
    yield driven("Bowline RC", BESIDE_IDLE, "rc", "bulk", ["--size", MIB, "--idle-qps", 10_000], seconds)


def groups(cells):
    """The cells in an order in which those that are compared follow each other, in groups of those that have turns."""
    by_point = {}
    for n, cell in enumerate(cells):
        by_point.setdefault(GROUP_OF.get(cell.point, cell.point) if cell.turns else n, []).append(cell)
    most = pairs_that_fit()
    for group in by_point.values():
        for first in range(0, len(group), most):
            yield group[first:first + most]


def pairs_that_fit():
    """How many pairs with cold buffers may live side by side."""
    with open("/proc/meminfo") as lines:
        free_kib = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    # Half a GiB at each end, and another half for everything else.
    return max(2, free_kib * KIB // (1536 * MIB))


def driven(row, point, kind, mode, options, seconds, variant=""):
    turns = (kind, options, seconds) if mode == "bulk" and kind in BY_TURNS else ()
    return Cell(row, point, lambda: by_driver(kind, mode, options, seconds), variant, turns)


def ucx(test, size, count, options=(), over=LOOPBACK):
    if not shutil.which("ucx_perftest"):
        raise Failed("ucx_perftest is not installed (package ucx-utils)")
    port = str(free_port())
    client = ["ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", str(size), "-n", str(count), "-f", "-v", *options]
    text, cpu_s = tool(["ucx_perftest", "-p", port], client, over)
    rows = [line.split(",") for line in text.splitlines() if re.match(r"\s*\d+,", line)]
    if not rows:
        raise Failed("ucx_perftest printed no numbers")
    return [float(value) for value in rows[-1]], cpu_s


def ucx_bandwidth(test, size, seconds, over=LOOPBACK):
    # It counts messages, not seconds: choose about as many as it can carry.
    gbps = 10 if test == "ucp_put_bw" and over is LOOPBACK else 40
    count = max(50, int(gbps * 1e9 / 8 * seconds / size))
    values, cpu_s = ucx(test, size, count, ["-w", str(max(5, count // 10))], over)
    # iterations, percentile, latency average and overall, bandwidth average and overall in MB/s (2^20).
    return {"gbps": values[5] * MIB * 8 / 1e9, "cpu_s_per_gb": cpu_s / (size * count * 1.1 / 1e9)}


# ucx_perftest takes its percentiles from only the last 2048 round trips.
UCX_SAMPLE = 2048


def ucx_latency(test, seconds, over=LOOPBACK):
    found = {}
    for name, rank in (("p50_us", "50"), ("p99_us", "99"), ("p999_of_2048_us", "99.9")):
        values, _ = ucx(test, 8, int(60_000 * seconds), ["-R", rank, "-w", "2000"], over)
        found[name] = values[1]
    return found


def libfabric(size, seconds):
    if not shutil.which("fi_pingpong"):
        raise Failed("fi_pingpong is not installed (package libfabric-bin)")
    port = str(free_port())
    count = str(max(50, min(int(50_000 * seconds), int(1e9 * seconds / size))))
    common = ["fi_pingpong", "-e", "rdm", "-p", "tcp", "-I", count, "-S", str(size)]
    text, _ = tool(common + ["-B", port], common + ["-P", port, "127.0.0.1"])
    row = text.strip().splitlines()[-1].split()
    # bytes, sent, acknowledged, total, time, MB/sec, usec/xfer, Mxfers/sec.
    if size == 8:
        return {"mean_us": float(row[6])}
    return {"gbps": float(row[5]) * 8 / 1e3}


def rc_latency(seconds, via="udp"):
    common, both = ["-s", "8", "-m", "4096"], ["--via", via]
    row = bowline_perf("write-lat", common + ["-D", f"{seconds}s"], both)
    sample = bowline_perf("write-lat", common + ["-n", UCX_SAMPLE], both)
    return {"p50_us": row["t_typical_us"], "p99_us": row["p99_us"], "p999_us": row["p999_us"],
            "p999_of_2048_us": sample["p999_us"]}
