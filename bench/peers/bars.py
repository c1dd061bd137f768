"""What must hold, in one run."""

import wan
from bench import Bar
from results import ratio
from rows import BESIDE_IDLE, MANY_QPS, ONE_QP

COLD, HOT = "1 MiB", "1 MiB hot"


def bars(results):
    return list(loopback(results)) + list(across(results))


def loopback(results):
    def gbps(row, point):
        return results.median(row, point, "gbps")

    rc = gbps("Bowline RC", COLD)
    yield Bar("RC 1 MiB, cold, to bare UDP that copies", ratio(rc, gbps("UDP GSO/GRO", COLD)), at_least=0.85)
    yield Bar("RC 1 MiB, cold, to UCX put (hot)", ratio(rc, gbps("UCX put", COLD)), at_least=3.5)
    yield Bar("RC 1 MiB, cold, to quinn", ratio(rc, gbps("quinn", COLD)), at_least=6)
    yield Bar("RC 1 MiB, hot, to TCP CUBIC", ratio(gbps("Bowline RC", HOT), gbps("TCP CUBIC", HOT)), at_least=0.85)
    yield Bar("RC 1 MiB, cold, MTU 1024, to bare UDP of 1024 B",
              ratio(gbps("Bowline RC MTU 1024", COLD), gbps("UDP GSO/GRO MTU 1024", COLD)), at_least=0.75)
    for metric, name in (("p50_us", "p50"), ("p999_of_2048_us", "p99.9 of 2048")):
        found = ratio(results.median("Bowline RC", "8 B", metric), results.median("UCX put", "8 B", metric))
        yield Bar(f"8 B latency, {name}, to UCX put", found, at_most=1)
    yield from memory(results, gbps)
    for end in ("sender", "receiver"):
        yield Bar(f"idle {end}, percent of a core", results.median("Bowline RC", "idle", f"{end}_percent"), at_most=1)
    for point, name in ((COLD, "cold"), (HOT, "hot")):
        found = ratio(results.median("Bowline RC", point, "cpu_s_per_gb"), results.median("TCP CUBIC", point, "cpu_s_per_gb"))
        yield Bar(f"CPU per GB, both ends, {name}, to TCP CUBIC", found, at_most=1.3)
    yield Bar("1000 QPs: Jain's fairness", results.median("Bowline RC", MANY_QPS, "jain"), at_least=0.95)
    yield Bar("1000 QPs: throughput to one QP's", ratio(gbps("Bowline RC", MANY_QPS), gbps("Bowline RC", ONE_QP)), at_least=0.8)
    yield Bar("10000 idle QPs: throughput to that without",
              ratio(gbps("Bowline RC", BESIDE_IDLE), gbps("Bowline RC", HOT)), at_least=0.98)


def memory(results, gbps):
    """Shared memory between processes of one host."""
    p50 = {row: results.median(row, "8 B", "p50_us") for row in ("Bowline RC shm", "Bowline RC", "UCX put shm")}
    yield Bar("shm: 8 B latency, p50, to RC over UDP", ratio(p50["Bowline RC shm"], p50["Bowline RC"]), at_most=0.35)
    yield Bar("shm: 8 B latency, p50, to UCX put over shared memory", ratio(p50["Bowline RC shm"], p50["UCX put shm"]), at_most=4)
    for point, name, least in ((HOT, "hot", 1.0), (COLD, "cold", 1.1)):
        found = ratio(gbps("Bowline RC shm", point), gbps("TCP CUBIC", point))
        yield Bar(f"shm: 1 MiB, {name}, to TCP CUBIC", found, at_least=least)
    found = ratio(gbps("Bowline RC shm", HOT), gbps("UCX put shm", COLD))
    yield Bar("shm: 1 MiB, hot, to UCX put over shared memory (hot)", found, at_least=0.7)


def across(results):
    slow, fast = wan.LINKS
    for link, at_least, metrics in ((slow, 1, ("mean", "p99")), (fast, 1.4, ("p99",))):
        point = wan.point(link, "0.1 %", "16 MiB")
        for metric in metrics:
            best = min(filter(None, (times(results, row, point, metric) for row in wan.OURS)), default=None)
            for peer in ("TCP BBR", "quinn BBR", "SRT"):
                found = ratio(times(results, peer, point, metric), best)
                yield Bar(f"{link.name}, 0.1 %: 16 MiB, {metric}, {peer} to our best", found, at_least=at_least)
    for loss, at_least in (("0.1 %", 0.97), ("1 %", 0.95)):
        found = results.median("Bowline SR", wan.point(slow, loss, "bulk"), "gbps")
        yield Bar(f"{slow.name}, {loss}: SR in bulk to the link's payload rate", ratio(found, wan.payload_gbps(slow)), at_least=at_least)


def times(results, row, point, metric):
    if metric == "mean":
        return results.mean(row, point, "times_ms")
    return results.quantile(row, point, "times_ms", 0.99)
