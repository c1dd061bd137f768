"""What is measured, and what it must be."""

import dataclasses
import math
import shutil

from emulator import Busy, Failed

RATE_GBPS = 1


@dataclasses.dataclass
class Result:
    name: str
    outcome: str
    text: str
    bar: str
    value: object = None

    def as_dict(self):
        return dataclasses.asdict(self) | {"holds": self.outcome == "PASS"}


@dataclasses.dataclass
class Row:
    """A measurement: gives its value, how to print it, and whether the bar holds."""

    name: str
    bar: str
    measure: object
    needs: str = ""

    def run(self, emulator):
        if self.needs and shutil.which(self.needs) is None:
            return Result(self.name, "SKIP", f"no {self.needs}", self.bar)
        try:
            value, text, holds = self.measure(emulator)
        except Busy as why:
            return Result(self.name, "SKIP", str(why), self.bar)
        except (Failed, KeyError, IndexError, ValueError) as error:
            return Result(self.name, "FAIL", f"{type(error).__name__}: {error}", self.bar)
        return Result(self.name, "PASS" if holds else "FAIL", text, self.bar, value)


def round_trip(delay_ms, count):
    def measure(emulator):
        got = emulator.ping(f"delay={delay_ms}ms", count)
        over_ms = got["median_ms"] - 2 * delay_ms
        never_early = got["min_ms"] >= 2 * delay_ms
        return got["median_ms"], f"{got['median_ms']:.3f} ms", never_early and over_ms < 0.5
    return Row(f"round trip, delay={delay_ms}ms", "at most 0.5 ms more, never less", measure)


def rate(gbps, size, gso, seconds, mtu):
    def measure(emulator):
        per_second = 1.3 * gbps * 1e9 / 8 / (size + 28)
        # A queue of 0.2 s, so that the link stays busy while the source is not scheduled.
        link = f"rate={gbps}Gbps,delay=5ms,queue=20bdp"
        # If the source is not scheduled for long, the link goes idle: take the best of three.
        best, offered = 0, 0
        for _ in range(3):
            _, got = emulator.stream(link, int(per_second * seconds), size, per_second, gso,
                                     "--mtu", str(mtu))
            best, offered = max(best, got["gbps"]), max(offered, got["offered_gbps"])
            if best > 0.99 * gbps:
                break
        if offered < 1.1 * gbps:
            raise Failed(f"only {offered:.2f} Gbit/s were sent")
        return best, f"{best:.4f} Gbit/s", abs(best / gbps - 1) < 0.01
    kind = "superpackets" if gso else "packets"
    return Row(f"rate={gbps}Gbps, {kind} of {size + 28} B", "within 1 %", measure)


def loss(text, probability, gso, count):
    """Independent loss: as often as asked for, and what arrives is exactly what is not lost."""
    def measure(emulator):
        link = f"delay=2ms,loss={text},seed=11"
        did, got = emulator.stream(link, count, 200, 100_000, gso)
        sigma = math.sqrt(probability * (1 - probability) / count)
        share = got["missing"] / count
        exact = did["segments"] == count and got["missing"] == did["lost"] == count - got["received"]
        holds = exact and abs(share - probability) < 4 * sigma
        return share, f"{100 * share:.3f} % of {count}", holds
    kind = "superpackets" if gso else "packets"
    return Row(f"loss={text}, {kind}", "within 4σ, and as reported", measure)


def bursts(good_to_bad, bad_to_good, gso, count):
    """Gilbert's bursts are geometric: the mean, and the largest distance of the distributions."""
    def measure(emulator):
        link = f"delay=2ms,loss=ge({good_to_bad},{bad_to_good}),seed=5"
        _, got = emulator.stream(link, count, 200, 100_000, gso)
        lengths = got["bursts"]
        mean = sum(lengths) / len(lengths)
        distance = max(abs(sum(n <= k for n in lengths) / len(lengths) - 1 + (1 - bad_to_good) ** k)
                       for k in range(1, max(lengths) + 1))
        # Kolmogorov's bound for one in a thousand.
        holds = distance < 1.95 / math.sqrt(len(lengths))
        return ({"mean": mean, "distance": distance, "bursts": len(lengths)},
                f"mean {mean:.2f} of {len(lengths)}", holds)
    kind = "superpackets" if gso else "packets"
    return Row(f"loss=ge({good_to_bad},{bad_to_good}), {kind}",
               f"geometric, mean {1 / bad_to_good:.0f}", measure)


def seeds(count):
    def measure(emulator):
        def which(seed, gso):
            link = f"delay=2ms,loss=2%,seed={seed}"
            return emulator.stream(link, count, 200, 100_000, gso)[1]["which"]
        same = which(3, False), which(3, True)
        other = which(4, True)
        holds = same[0] == same[1] != other
        return holds, "the same" if same[0] == same[1] else "others", holds
    return Row("one seed: the losses again, packed or not", "the same packets", measure)


def disorder(count):
    def measure(emulator):
        link = "delay=2ms,duplicate=1%,reorder=1%,corrupt=1%,seed=9"
        did, got = emulator.stream(link, count, 200, 50_000, True)
        # UDP's checksum detects every single-bit error, also in duplicates.
        lost = got["missing"]
        whole = count + did["duplicated"] - got["received"]
        holds = (0 < lost <= did["corrupted"] <= whole <= did["corrupted"] + did["duplicated"]
                 and 0 < got["inversions"] and 0 < did["reordered"])
        value = {k: did[k] for k in ("duplicated", "reordered", "corrupted")} | {"missing": lost}
        return value, f"{did['corrupted']} corrupted, {lost} gone", holds
    return Row("duplicate, reorder, corrupt", "none arrives corrupt, order changes", measure)


WAN = f"rate={RATE_GBPS}Gbps,delay=20ms,queue=1bdp"


def tcp(control, loss_text, low, high, seconds, omit):
    def measure(emulator):
        gbps = emulator.iperf(f"{WAN},loss={loss_text},seed=1", control, seconds, omit)
        return gbps, f"{gbps:.3f} Gbit/s", low <= gbps <= high
    bar = f"at least {low}" if high >= RATE_GBPS else f"{low} to {high}"
    return Row(f"TCP {control}, 1 Gbit/s, 40 ms, loss {loss_text}", bar, measure, needs="iperf3")


def rdma(name, loss_text, low, seconds, *arguments):
    def measure(emulator):
        got = emulator.perf(f"{WAN},loss={loss_text},seed=1", seconds, *arguments)
        gbps = got["results"][0]["bw_average_gbps"]
        return gbps, f"{gbps:.3f} Gbit/s", gbps >= low
    return Row(f"Bowline {name}, 1 Gbit/s, 40 ms, loss {loss_text}", f"at least {low}", measure)


def plan(quick):
    count = 50_000 if quick else 500_000
    yield round_trip(20, 200 if quick else 1000)
    if not quick:
        yield round_trip(1, 1000)
    yield rate(1, 1400, True, 0.7 if quick else 3, 1500)
    if not quick:
        yield rate(0.2, 1400, False, 3, 1500)
        yield rate(5, 8900, True, 3, 9000)
    yield loss("1%", 0.01, False, count)
    yield loss("1%", 0.01, True, count)
    if not quick:
        yield loss("0.1%", 0.001, True, count)
        yield bursts(0.002, 0.2, False, count)
    yield bursts(0.002, 0.2, True, count)
    yield seeds(20_000 if quick else 100_000)
    yield disorder(20_000 if quick else 100_000)
    seconds, omit = (2, 1) if quick else (10, 3)
    yield tcp("bbr", "0.1%", 0.6 if quick else 0.8, 1, seconds, omit)
    yield tcp("cubic", "0.1%", 0.003, 0.08, seconds, omit)
    if not quick:
        yield tcp("bbr", "0", 0.85, 1, seconds, omit)
        yield tcp("bbr", "0.01%", 0.85, 1, seconds, omit)
        yield tcp("bbr", "1%", 0.8, 1, seconds, omit)
        yield tcp("cubic", "0", 0.9, 1, seconds, omit)
        yield tcp("cubic", "0.01%", 0.02, 0.3, seconds, omit)
        yield tcp("cubic", "1%", 0.001, 0.02, seconds, omit)
    yield rdma("RC", "0", 0.2, 2 if quick else 5)
    if not quick:
        yield rdma("sr-nack", "0.1%", 0.4, 5, "-s 16M -t 4 --scheme sr-nack --rate 950Mbps")
