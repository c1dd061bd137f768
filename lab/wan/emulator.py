"""Running `bowline wan` and reading what it and the programs at its ends print."""

import json
import subprocess
import sys

REFUSED = 75
# How `bowline wan` begins the line that says so, whatever its status.
INVALID = "bowline: invalid run: "
TRIES = 4


class Failed(Exception):
    """A run that gave no result."""


class Busy(Exception):
    """The emulator refused to vouch for any of its tries: the machine had no time for it."""


def last_words(stderr):
    """The last lines, as one: those of the ends say more than the emulator's own."""
    return " | ".join(stderr.strip().splitlines()[-4:]) or "nothing said why"


class Emulator:
    def __init__(self, bowline, probe):
        self.bowline = str(bowline)
        self.probe = f"{sys.executable} {probe}"
        # Number of runs that were too late to be valid, and were repeated.
        self.refused = 0

    def refusal(self):
        """Why there can be no link on this machine; None if there can."""
        done = subprocess.run([self.bowline, "wan", "--right", "true"], capture_output=True,
                              text=True, check=False, timeout=60)
        return done.stderr.strip() if done.returncode not in (0, REFUSED) else None

    def run(self, link, left, right, *options, timeout=90):
        """The report of a run, and the lines that its ends printed."""
        command = [self.bowline, "wan", "--json", "--link", link, *options]
        command += ["--left", left, "--right", right]
        for _ in range(TRIES):
            done = subprocess.run(command, capture_output=True, text=True, check=False,
                                  timeout=timeout)
            if done.returncode == REFUSED or done.returncode != 0 and INVALID in done.stderr:
                # Programs that fail where the link stalled prove nothing, unless they fail every time.
                self.refused += 1
                continue
            if done.returncode != 0:
                raise Failed(f"status {done.returncode}: {last_words(done.stderr)}")
            *lines, report = done.stdout.splitlines()
            ends = {end: [line.removeprefix(f"{end:5} | ") for line in lines
                          if line.startswith(f"{end:5} | ")] for end in ("left", "right")}
            return json.loads(report), ends
        why = f"{TRIES} tries, status {done.returncode}: {last_words(done.stderr)}"
        raise Busy(why) if done.returncode == REFUSED else Failed(why)

    def ping(self, link, count):
        _, ends = self.run(link, f"{self.probe} echo {{left}}", f"{self.probe} ping {{left}} {count}")
        return json.loads(ends["right"][-1])

    def stream(self, link, count, size, per_second, gso, *options):
        """Numbered packets from left to right: what the emulator did, and what came of them, with the
        rate at which they were sent as `offered_gbps`."""
        sink = f"{self.probe} sink {{left}} {count} {size} {per_second} {'gso' if gso else 'plain'}"
        report, ends = self.run(link, f"{self.probe} source {{left}}", sink, *options)
        offered = json.loads(ends["left"][-1])["gbps"]
        return report["to_right"], json.loads(ends["right"][-1]) | {"offered_gbps": offered}

    def iperf(self, link, control, seconds, omit, *options):
        """TCP's goodput in Gbit/s, without its first seconds."""
        client = f"iperf3 -c {{left}} -C {control} -t {seconds} -O {omit} -J"
        _, ends = self.run(link, "iperf3 -s -1 > /dev/null", client, *options)
        return json.loads("\n".join(ends["right"]))["end"]["sum_received"]["bits_per_second"] / 1e9

    def perf(self, link, seconds, *arguments, options=()):
        """Goodput of `bowline perf write-bw` in Gbit/s."""
        text = " ".join(arguments)
        server = f"{self.bowline} perf write-bw -d {{left}} --insecure"
        client = f"{self.bowline} perf write-bw {{left}} -d {{right}} -D {seconds}s --insecure --json {text}"
        _, ends = self.run(link, server, client, *options)
        return json.loads(ends["right"][-1])
