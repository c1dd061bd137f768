"""The tables and drawings, as text and for the page."""

import rows
import wan
from rows import BESIDE_IDLE, MANY_QPS, ONE_QP, SIZES

LOSS_OF = {"0.01 %": 1e-4, "0.1 %": 1e-3, "1 %": 1e-2}


def cell(value, digits=2):
    return "-" if value is None else f"{value:.{digits}f}"


class Section:
    """A heading with what belongs under it."""

    def __init__(self, heading, paragraphs=()):
        self.heading, self.paragraphs = heading, list(paragraphs)
        self.head, self.rows, self.charts, self.list = [], [], [], []

    def print(self):
        print(f"\n{self.heading}")
        for text in self.paragraphs:
            print(text)
        if self.rows:
            widths = [max(len(row[i]) for row in [self.head, *self.rows]) for i in range(len(self.head))]
            print()
            for row in [self.head, *self.rows]:
                rest = "".join(f"  {text:>{width}}" for text, width in zip(row[1:], widths[1:]))
                print(f"{row[0]:<{widths[0]}}{rest}")
        for text in self.list:
            print(f"  {text}")

    def as_dict(self):
        return vars(self)


def sections(results, quick, bars):
    found = [loopback(results, quick), crowd(results)]
    found += [across(results, link, loss) for link in wan.LINKS for loss in wan.LOSSES]
    found += [drawings(results, link) for link in wan.LINKS]
    found += [meaning(results), not_run(results), verdicts(bars)]
    return [section for section in found if section]


def loopback(results, quick):
    points = ["1 MiB", "1 MiB hot"] if quick else [*SIZES, "1 MiB hot"]
    met = results.rows([*points, "8 B"])
    if not met:
        return None
    section = Section("Loopback", [
        "Gbit/s by size of message, CPU seconds per GB of both ends together, latency of 8 B in us (half a round trip). Medians.",
        "The last column is of 2048 round trips, which is all that ucx_perftest takes its percentiles of; the others are of a whole measurement.",
        "512 MiB of buffers at either end gone through in turn, but for the hot columns, and for UCX and libfabric, whose programs reuse one message's."])
    section.head = ["", *points, "CPU s/GB", "CPU hot", "p50", "p99", "p99.9", "of 2048"]
    for row in met:
        values = [results.median(row, p, "gbps") for p in points]
        values += [results.median(row, p, "cpu_s_per_gb") for p in ("1 MiB", "1 MiB hot")]
        values += [results.median(row, "8 B", m) or results.median(row, "8 B", n)
                   for m, n in (("p50_us", "mean_us"), ("p99_us", ""), ("p999_us", ""), ("p999_of_2048_us", ""))]
        section.rows.append([row, *map(cell, values)])
    if not quick:
        lines = [{"name": row, "points": [(size, 1e9 * gbps) for point, size in SIZES.items()
                                          if (gbps := results.median(row, point, "gbps"))]} for row in met]
        section.charts.append(chart("loopback", "Throughput on loopback", ("message", "bytes"), ("throughput", "bits_per_second"),
                                    [line for line in lines if len(line["points"]) > 1]))
    return section


def crowd(results):
    figures = (("one QP, 64 KiB, Gbit/s", ONE_QP, "gbps"),
               ("1000 QPs, 64 KiB, Gbit/s", MANY_QPS, "gbps"),
               ("their fairness (Jain)", MANY_QPS, "jain"),
               ("1 MiB beside 10000 idle QPs, Gbit/s", BESIDE_IDLE, "gbps"),
               ("idle sender, % of a core", "idle", "sender_percent"),
               ("idle receiver, % of a core", "idle", "receiver_percent"))
    section = Section("Many queue pairs of Bowline's, and none at work")
    section.head = ["", "median"]
    section.rows = [[name, cell(value, 3)] for name, point, metric in figures
                    if (value := results.median("Bowline RC", point, metric)) is not None]
    return section if section.rows else None


def across(results, link, loss):
    points = [wan.point(link, loss, what) for what in ("bulk", *wan.MESSAGES)]
    met = results.rows(points)
    if not met:
        return None
    section = Section(f"{link.name}, loss: {loss}", [
        f"Goodput in bulk, Gbit/s; time in ms until the sender knows that a message has arrived, mean and p99 of so many. IP packets of {link.mtu} B, "
        "queue of one bandwidth-delay product."])
    section.head = ["", "Gbit/s", *(text for size in wan.MESSAGES for text in (size, "p99", "of"))]
    for row in met:
        texts = [row, cell(results.median(row, points[0], "gbps"), 3)]
        for point in points[1:]:
            mean, p99 = results.mean(row, point, "times_ms"), results.quantile(row, point, "times_ms", 0.99)
            texts += [cell(mean, 1), cell(p99, 1), str(len(results.of(row, point, "times_ms")) or "-")]
        section.rows.append(texts)
    return section


def drawings(results, link):
    """Over loss: what is left of the goodput, and the tail of completion times."""
    section = Section(f"{link.name}, over loss")
    goodput, tail = [], []
    for row in wan.ROWS:
        bulk = [(p, results.median(row, wan.point(link, loss, "bulk"), "gbps")) for loss, p in LOSS_OF.items()]
        p99 = [(p, results.quantile(row, wan.point(link, loss, "16 MiB"), "times_ms", 0.99)) for loss, p in LOSS_OF.items()]
        goodput.append({"name": row, "points": [(p, 1e9 * v) for p, v in bulk if v]})
        tail.append({"name": row, "points": [(p, v / 1e3) for p, v in p99 if v]})
    if not any(len(line["points"]) > 1 for line in goodput + tail):
        return None
    name = "wan-" + link.rate.lower()
    section.charts = [
        chart(f"{name}-goodput", f"Goodput, {link.name}", ("loss", "probability"), ("goodput", "bits_per_second"), goodput),
        chart(f"{name}-p99", f"16 MiB, p99, {link.name}", ("loss", "probability"), ("completion", "seconds"), tail, log_y=True)]
    return section


def chart(name, title, x, y, series, log_y=False):
    return {"name": name, "title": title, "x": {"label": x[0], "unit": x[1], "log": True},
            "y": {"label": y[0], "unit": y[1], "log": log_y}, "series": [line for line in series if line["points"]]}


def meaning(results):
    section = Section("What the rows do")
    section.list = [f"{row}: {rows.WHAT[row]}." for row in results.rows([*SIZES, "1 MiB hot", "8 B"]) if row in rows.WHAT]
    measured = {point for _, point, _ in results.samples}
    if any(point.startswith(link.name) for link in wan.LINKS for point in measured):
        section.list.append("Across the WAN: connections stand and are warm; a message follows when the one before has been answered with 8 bytes "
                            "(Bowline: acknowledged, with everything in its place).")
        section.list += [f"{row} there: {what}." for row, (_, what) in wan.ROWS.items()]
    return section


def not_run(results):
    section = Section("Not run, or failed at least once")
    section.list = [f"{row}, {point}: {why}" for (row, point), why in results.failures.items()]
    return section if section.list else None


def verdicts(bars):
    section = Section("Bars")
    section.head = ["", "found", "bar", ""]
    section.rows = [bar.texts() for bar in bars]
    return section if bars else None
