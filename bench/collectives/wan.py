"""Allreduce of 16 MiB over a link of 1 Gbit/s and a round trip of 10 ms, beside gloo over TCP.

usage: bench/collective --wan [--quick] [--ranks N]... [--json] [--check] [--no-build] [--no-install]

  --quick       few operations: a look, not a measurement
  --ranks N     only groups of so many ranks; may be repeated [2 and 4]
  --json        last line is one JSON object with every row and every bar
  --check       exit with an error if a bar does not hold or was not measured
  --no-build    take `bowline` as it is in target/release
  --no-install  do not install torch; say what is missing

The link is `bowline wan`, which needs root: half of the ranks are at its left end, the others at its right. "xp exact" may lose
nothing, "xp 1%" has an adaptive deadline and may lack 1 %, "sr-nack" is SDR's selective repeat. Needs about a quarter of an
hour on a quiet machine.

The bars, for 2 and 4 ranks. Exact at a loss of 0.1 %: mean at most 0.65 and p99 at most 0.4 of gloo over BBR, and without
loss no slower than gloo over either. "xp 1%" at a loss of 1 %: p99 at most 1.15 of its own without loss, and at most 0.8 of
sr-nack's.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target"))
BOWLINE = TARGET / "release" / "bowline"
PYTHON = TARGET / "python" / "venv" / "bin" / "python"
HERE = REPO / "bench" / "collectives"
sys.path.insert(0, str(REPO / "lab" / "wan"))

from emulator import Emulator, Failed  # noqa: E402

SIZE = 16 << 20
LINK = "rate=1Gbps,delay=5ms,queue=1bdp"
BOUNDED = "--transport xp --chunk 128K --window 2M"
# Name, congestion control of TCP, arguments of `bowline collective`, losses.
ROWS = [
    ("gloo, BBR", "bbr", None, ["0", "0.1%"]),
    ("gloo, CUBIC", "cubic", None, ["0", "0.1%"]),
    ("xp exact", "-", BOUNDED, ["0", "0.1%"]),
    ("xp 1%", "-", f"{BOUNDED} --deadline adaptive --max-loss 1%", ["0", "1%"]),
    ("sr-nack", "-", "--transport sr-nack", ["0", "0.1%", "1%"]),
]
# Row, its loss, statistic, row that it is held against, its loss, at most this many times.
BARS = [
    ("xp exact", "0.1%", "mean_ms", "gloo, BBR", "0.1%", 0.65),
    ("xp exact", "0.1%", "p99_ms", "gloo, BBR", "0.1%", 0.4),
    ("xp exact", "0", "mean_ms", "gloo, BBR", "0", 1.0),
    ("xp exact", "0", "mean_ms", "gloo, CUBIC", "0", 1.0),
    ("xp 1%", "1%", "p99_ms", "xp 1%", "0", 1.15),
    ("xp 1%", "1%", "p99_ms", "sr-nack", "1%", 0.8),
]
# CUBIC at a loss takes seconds for one.
OPERATIONS, SLOW_OPERATIONS, QUICK_OPERATIONS = 100, 20, 5
LIMIT_S = 900


class Options:
    def __init__(self, argv):
        self.flags, self.ranks = set(), []
        args = iter(argv)
        for arg in args:
            if arg in ("-h", "--help"):
                print(__doc__.strip())
                sys.exit(0)
            if arg == "--ranks":
                value = next(args, "")
                if value not in ("2", "4", "6", "8"):
                    sys.exit("collective: --ranks with --wan takes 2, 4, 6 or 8")
                self.ranks.append(int(value))
            elif arg in ("--wan", "--quick", "--json", "--check", "--no-build", "--no-install"):
                self.flags.add(arg)
            else:
                sys.exit(f"collective: there is no option {arg} with --wan: see bench/collective --wan --help")
        self.ranks = self.ranks or [2, 4]

    def operations(self, name, loss):
        if "--quick" in self.flags:
            return QUICK_OPERATIONS
        return SLOW_OPERATIONS if name == "gloo, CUBIC" and loss != "0" else OPERATIONS


def say(text):
    print(f"collective: {text}", file=sys.stderr, flush=True)


def prepare(options):
    """What is missing."""
    if "--no-build" not in options.flags:
        subprocess.run(["cargo", "build", "--release", "-p", "bowline-cli"], cwd=REPO, check=True)
    if not BOWLINE.exists():
        sys.exit(f"collective: no {BOWLINE}: build it by `cargo build --release`")
    if PYTHON.exists() and not subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode:
        return None
    if "--no-install" in options.flags:
        return "no torch: run `lab/python/run --release --collect-only` first"
    done = subprocess.run([REPO / "lab/python/run", "--release", "--collect-only"], stdout=sys.stderr)
    return None if done.returncode == 0 else "lab/python/run could not install torch (see above)"


def measure(emulator, ranks, control, arguments, loss, operations):
    """Mean and p99 in ms, the share that was missing, and whether results were right."""
    if arguments is None:
        program = f"{PYTHON} {HERE / 'torch_allreduce.py'} gloo {SIZE}:{operations}"
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
                say(f"{ranks} ranks, {name}, loss {loss}")
                try:
                    operations = options.operations(name, loss)
                    mean, p99, lost, right = measure(emulator, ranks, control, arguments, loss, operations)
                except (Failed, subprocess.TimeoutExpired, KeyError) as error:
                    failures.append(f"{name}, {ranks} ranks, loss {loss}: {error}")
                    continue
                if not right:
                    failures.append(f"{name}, {ranks} ranks, loss {loss}: wrong results")
                row = {"ranks": ranks, "name": name, "loss": loss, "operations": operations, "mean_ms": mean,
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
            out.append({"name": text, "value": value, "at_most": most, "holds": None if value is None else value <= most})
    return out


def main():
    options = Options(sys.argv[1:])
    missing = prepare(options)
    emulator = Emulator(BOWLINE, "")
    if why := emulator.refusal():
        sys.exit(f"collective: no link on this machine: {why}")
    print(f"{'ranks':>5}  {'':<12} {'loss':>5} {'mean ms':>9} {'p99 ms':>9} {'missing':>9}", flush=True)
    rows, failures = rows_of(options, emulator, missing)
    checked = bars(options, rows)
    print()
    for bar in checked:
        value = "not measured" if bar["value"] is None else f"{bar['value']:.2f}"
        verdict = {True: "holds", False: "DOES NOT HOLD", None: ""}[bar["holds"]]
        print(f"{bar['name']:<66} {value:>12}  (at most {bar['at_most']:g})  {verdict}")
    for line in failures:
        print(f"not measured: {line}")
    if "--json" in options.flags:
        print(json.dumps({"rows": rows, "bars": checked, "failures": failures, "refused": emulator.refused}))
    if "--check" in options.flags and (failures or not all(bar["holds"] for bar in checked)):
        sys.exit(1)


main()
