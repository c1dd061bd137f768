"""Samples, and what they come to."""

import math
import statistics
from collections import defaultdict

# For these, larger is better.
HIGHER = {"gbps", "jain"}


class Results:
    """Samples of every cell by metric, and why cells have none."""

    def __init__(self):
        self.samples = defaultdict(lambda: defaultdict(list))
        self.failures = {}

    def add(self, cell, found):
        for metric, value in found.items():
            if isinstance(value, list):
                self.samples[cell.row, cell.point, cell.variant][metric].extend(value)
            elif isinstance(value, (int, float)):
                self.samples[cell.row, cell.point, cell.variant][metric].append(value)

    def fail(self, cell, why):
        self.failures[cell.row, cell.point] = why

    def of(self, row, point, metric):
        """Samples of a cell's better variant; none if it was not measured."""
        found = [metrics[metric] for (r, p, _), metrics in self.samples.items() if (r, p) == (row, point) and metrics.get(metric)]
        if not found:
            return []
        best = max if metric in HIGHER else min
        return best(found, key=statistics.median)

    def median(self, row, point, metric):
        samples = self.of(row, point, metric)
        return statistics.median(samples) if samples else None

    def mean(self, row, point, metric):
        samples = self.of(row, point, metric)
        return statistics.fmean(samples) if samples else None

    def quantile(self, row, point, metric, q):
        """The smallest sample that at least so many of them do not exceed."""
        samples = sorted(self.of(row, point, metric))
        return samples[max(math.ceil(q * len(samples)), 1) - 1] if samples else None

    def rows(self, points):
        """Rows with a cell at one of the points, in the order in which they were first met."""
        met = [r for r, p, _ in self.samples if p in points] + [r for r, p in self.failures if p in points]
        return list(dict.fromkeys(met))

    def as_dict(self):
        cells = []
        for (row, point, variant), metrics in self.samples.items():
            each = {"row": row, "point": point, "variant": variant}
            for metric, samples in metrics.items():
                each[metric] = {"median": statistics.median(samples), "mean": statistics.fmean(samples),
                                "low": min(samples), "high": max(samples), "samples": len(samples)}
                if metric == "times_ms":
                    each[metric]["p99"] = self.quantile(row, point, metric, 0.99)
            cells.append(each)
        not_run = [{"row": row, "point": point, "why": why} for (row, point), why in self.failures.items()]
        return {"cells": cells, "not_run": not_run}


def ratio(a, b):
    return a / b if a is not None and b else None
