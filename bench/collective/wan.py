"""Allreduce of 16 MiB over a link of 1 Gbit/s and a round trip of 10 ms, beside gloo over TCP."""

import json
import subprocess
import sys
from pathlib import Path

import bench
import torch_python
from bench import BOWLINE
from emulator import Busy, Emulator, Failed

HERE = Path(__file__).resolve().parent
# Half of them are at each end.
RANKS = ("2", "4", "6", "8")
SIZE = 16 << 20
LINK = "rate=1Gbps,delay=5ms,queue=1bdp"
BOUNDED = "--transport xp --window 8M"
# What is repaired holds its slot for a round trip more: twice the slots of what gives up.
EXACT = "--transport xp --chunk 256K --window 4M"
# Name, congestion control of TCP, arguments of `bowline collective`, losses.
ROWS = [
    ("gloo, BBR", "bbr", None, ["0", "0.1%"]),
    ("gloo, CUBIC", "cubic", None, ["0", "0.1%"]),
    ("xp exact", "-", EXACT, ["0", "0.1%"]),
    ("xp 1%", "-", f"{BOUNDED} --deadline adaptive --max-loss 1%", ["0", "1%"]),
    ("sr-nack", "-", "--transport sr-nack", ["0", "0.1%", "1%"]),
]
# Row, its loss, statistic, row that it is compared with, the loss of that row, maximum ratio.
BARS = [
    ("xp exact", "0.1%", "mean_ms", "gloo, BBR", "0.1%", 0.65),
    ("xp exact", "0.1%", "p99_ms", "gloo, BBR", "0.1%", 0.4),
    ("xp exact", "0", "mean_ms", "gloo, BBR", "0", 1.0),
    ("xp exact", "0", "mean_ms", "gloo, CUBIC", "0", 1.0),
    ("xp 1%", "1%", "p99_ms", "xp 1%", "0", 1.15),
    ("xp 1%", "1%", "p99_ms", "sr-nack", "1%", 0.8),
]
# Under loss, CUBIC takes seconds for one operation.
OPERATIONS, SLOW_OPERATIONS, QUICK_OPERATIONS = 100, 20, 5
LIMIT_S = 900


def operations(options, name, loss):
    if "--quick" in options:
        return QUICK_OPERATIONS
    return SLOW_OPERATIONS if name == "gloo, CUBIC" and loss != "0" else OPERATIONS


def measure(emulator, ranks, control, arguments, loss, operations):
    """Mean and p99 in ms, the share that was missing, and whether results were right."""
    if arguments is None:
        program = f"{torch_python.PYTHON} {HERE / 'torch_allreduce.py'} gloo {SIZE}:{operations}"
    else:
        program = (f"{BOWLINE} collective allreduce --member --device {{{{own}}}} -b {SIZE} -e {SIZE} -n {operations} -w 3 "
                   f"--json {arguments}")
    half = ranks // 2
    end = f"{sys.executable} {HERE / 'end.py'}"
    left = f"{end} 0 {half} {ranks} {{left}} {{left}} {control} {program}".replace("{{own}}", "{left}")
    right = f"{end} {half} {half} {ranks} {{left}} {{right}} {control} {program}".replace("{{own}}", "{right}")
    link = LINK if loss == "0" else f"{LINK},loss={loss}"
    _, ends = emulator.run(link, left, right, timeout=LIMIT_S)
    rows = [json.loads(line) for line in ends["left"] if line.startswith("{")]
    if not rows:
        raise Failed("rank 0 printed no result")
    if arguments is None:
        row = rows[-1]
        return row["time_us"] / 1e3, row["p99_us"] / 1e3, 0.0, row["right"]
    row = rows[-1]["rows"][0]
    inner = row["in_place"]
    return inner["time_us"] / 1e3, inner["p99_us"] / 1e3, inner.get("loss", 0.0), inner["wrong"] == 0


def print_row(row):
    print(f"{row['ranks']:>5}  {row['name']:<12} {row['loss']:>5} {row['mean_ms']:>9.1f} {row['p99_ms']:>9.1f} "
          f"{row['missing'] * 100:>8.3f}%", flush=True)


def rows_of(options, emulator, missing):
    rows, failures = [], []
    for ranks in options.ranks:
        for name, control, arguments, losses in ROWS:
            if arguments is None and missing:
                failures.append(f"{name}: {missing}")
                continue
            for loss in losses:
                options.say(f"{ranks} ranks, {name}, loss {loss}")
                try:
                    count = operations(options, name, loss)
                    mean, p99, lost, right = measure(emulator, ranks, control, arguments, loss, count)
                except (Busy, Failed, subprocess.TimeoutExpired, KeyError) as error:
                    failures.append(f"{name}, {ranks} ranks, loss {loss}: {error}")
                    continue
                if not right:
                    failures.append(f"{name}, {ranks} ranks, loss {loss}: wrong results")
                row = {"ranks": ranks, "name": name, "loss": loss, "operations": count, "mean_ms": mean,
                       "p99_ms": p99, "missing": lost}
                print_row(row)
                rows.append(row)
    return rows, failures


def bars(options, rows):
    at = {(row["ranks"], row["name"], row["loss"]): row for row in rows}
    out = []
    for ranks in options.ranks:
        for name, loss, what, other, other_loss, most in BARS:
            ours, theirs = at.get((ranks, name, loss)), at.get((ranks, other, other_loss))
            value = ours[what] / theirs[what] if ours and theirs else None
            text = f"{ranks} ranks: {what[:-3]} of {name} at {loss} over that of {other} at {other_loss}"
            out.append(bench.Bar(text, value, at_most=most))
    return out


def main(options):
    options.build()
    missing = torch_python.missing(options, ["torch"])
    emulator = Emulator(BOWLINE, "")
    if why := emulator.refusal():
        raise bench.Failed(f"no link on this machine: {why}")
    print(f"{'ranks':>5}  {'':<12} {'loss':>5} {'mean ms':>9} {'p99 ms':>9} {'missing':>9}", flush=True)
    rows, failures = rows_of(options, emulator, missing)
    checked = bars(options, rows)
    print()
    bench.print_bars(checked)
    for line in failures:
        print(f"not measured: {line}")
    status = bench.finish(options, checked, rows=rows, failures=failures, refused=emulator.refused)
    return 1 if "--check" in options and failures else status
