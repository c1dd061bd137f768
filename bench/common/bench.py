"""What the benches in Python share: options, `bowline`, bars and the last line of JSON."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")).resolve()
BOWLINE = str(TARGET / "release" / "bowline")


class Failed(Exception):
    """A measurement that gave nothing, with the reason."""


def start(main):
    """Runs a bench, and ends the process with its status."""
    try:
        status = main(sys.argv[1:])
    except Failed as why:
        status = f"bench/{Path(sys.argv[0]).resolve().parent.name}: {why}"
    sys.exit(status)


class Options:
    """A command line. Every bench takes --json, --check and --no-build, and prints the head of its README.md for --help."""

    def __init__(self, name, argv, flags=(), values=None, lists=()):
        """`values` are options with a value and its default, `lists` those that may be repeated."""
        self.name, self.flags = name, set()
        self.values, self.lists = dict(values or {}), {option: [] for option in lists}
        known = {"--json", "--check", "--no-build", *flags}
        args = iter(argv)
        for arg in args:
            if arg in ("-h", "--help"):
                print((REPO / "bench" / name / "README.md").read_text().partition("\n## ")[0].rstrip())
                sys.exit(0)
            if arg in known:
                self.flags.add(arg)
            elif arg in self.values:
                self.values[arg] = self._value(arg, args)
            elif arg in self.lists:
                self.lists[arg].append(self._value(arg, args))
            else:
                self.refuse(f"there is no option {arg}: see bench/{name}/run --help")

    def _value(self, option, args):
        value = next(args, None)
        if value is None:
            self.refuse(f"{option} takes a value")
        return value

    def __contains__(self, flag):
        return flag in self.flags

    def __getitem__(self, option):
        return self.values[option]

    def number(self, option, default, kind=int, least=1, most=10_000):
        """An option's number, or the default if it was not given."""
        given = self.values[option]
        try:
            number = kind(default if given is None else given)
        except ValueError:
            number = None
        if number is None or not least <= number <= most:
            self.refuse(f"invalid {option} {given}: a number from {least} to {most}, e.g. {default}")
        return number

    def refuse(self, why):
        """Ends with the status of a wrong command line."""
        print(f"{self.name}: {why}", file=sys.stderr)
        sys.exit(2)

    def say(self, text):
        """Progress, for whoever watches."""
        print(f"{self.name}: {text}", file=sys.stderr, flush=True)

    def build(self, *packages):
        """Builds these packages for release, unless they are to be taken as they are."""
        if "--no-build" not in self:
            names = [f"--package={package}" for package in packages or ("bowline-cli",)]
            subprocess.run(["cargo", "build", "--release", "--quiet", *names], cwd=REPO, check=True)


class Bar:
    """One figure, and what it must reach or stay under. The value is None if it was not measured."""

    def __init__(self, name, value, at_least=None, at_most=None):
        self.name, self.value, self.at_least, self.at_most = name, value, at_least, at_most

    def holds(self):
        if self.value is None:
            return None
        return ((self.at_least is None or self.value >= self.at_least)
                and (self.at_most is None or self.value <= self.at_most))

    def limit(self):
        limits = (("at least", self.at_least), ("at most", self.at_most))
        return ", ".join(f"{word} {limit:.4g}" for word, limit in limits if limit is not None)

    def texts(self):
        """Columns of a table: name, value, limit, verdict."""
        verdict = {None: "not measured", True: "holds", False: "DOES NOT HOLD"}[self.holds()]
        return [self.name, "-" if self.value is None else f"{self.value:.3f}", self.limit(), verdict]

    def as_dict(self):
        return {"name": self.name, "value": self.value, "at_least": self.at_least, "at_most": self.at_most,
                "holds": self.holds()}


def print_bars(bars):
    rows = [bar.texts() for bar in bars]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    for name, value, limit, verdict in rows:
        print(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {limit:<{widths[2]}}  {verdict}")


def finish(options, bars, **more):
    """The end of a bench: the verdict, with --json the object that the last line is, and the exit status."""
    held = sum(bool(bar.holds()) for bar in bars)
    holds = held == len(bars)
    print(f"{options.name}: {held} of {len(bars)} bars hold")
    if "--json" in options:
        print(json.dumps({**more, "bars": [bar.as_dict() for bar in bars], "holds": holds}))
    return 1 if "--check" in options and not holds else 0


def free_port():
    """A TCP port of loopback that nobody had a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def last_line(text):
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""
