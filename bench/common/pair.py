"""Two processes on two CPUs, and what they say."""

import json
import os
import random
import select
import subprocess
import tempfile
import time

import setup
from bench import BOWLINE, Failed, last_line

SENDER_CPU, RECEIVER_CPU = "0", "1"
PATIENCE_S = 120
# Duration of a turn when pairs are measured in turns: fluctuations of the machine last longer.
TURN_S = 0.1


def free_port():
    """A port below those that the kernel gives away, and the next: the driver needs two."""
    return random.randrange(10_000, 32_000, 2)


def start(command, **options):
    command = [str(c) for c in command]
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **options)
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is not there: run without --no-build, which builds it") from error


def stop(process):
    if process.poll() is None:
        process.kill()
    process.wait()


def ends(kind, mode, options, seconds):
    """What starts the driver's two ends, on loopback."""
    at = f"127.0.0.1:{free_port()}"
    common = [kind, mode, "--at", at, "--from", "127.0.0.2", "--seconds", seconds, *options]
    return ([str(c) for c in [setup.DRIVER, role, *common, "--cpu", cpu]]
            for role, cpu in (("serve", RECEIVER_CPU), ("drive", SENDER_CPU)))


def by_driver(kind, mode, options=(), seconds=1.0):
    """One measurement by the driver, on loopback."""
    serve, drive = ends(kind, mode, options, seconds)
    with tempfile.TemporaryFile("w+") as said:
        server = start(serve, stdout=subprocess.DEVNULL, stderr=said)
        try:
            done = subprocess.run(drive, capture_output=True, text=True, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"did not end within {PATIENCE_S} s") from late
        finally:
            stop(server)
        if done.returncode != 0:
            said.seek(0)
            raise Failed(last_line(said.read()) or last_line(done.stderr))
    return json.loads(done.stdout)


class Turns:
    """The driver's two ends, which send when they are told to and sleep otherwise."""

    def __init__(self, kind, options):
        serve, drive = ends(kind, "bulk", [*options, "--turns"], 1)
        self.said = tempfile.TemporaryFile("w+")
        self.server = start(serve, stdout=subprocess.DEVNULL, stderr=self.said)
        self.driver = subprocess.Popen(drive, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True)
        self.found = []

    def line(self):
        if not select.select([self.driver.stdout], [], [], PATIENCE_S)[0]:
            raise Failed(f"did not answer within {PATIENCE_S} s")
        line = self.driver.stdout.readline()
        if not line:
            self.said.seek(0)
            raise Failed(last_line(self.said.read()) or "ended early")
        return line

    def turn(self, seconds):
        try:
            self.driver.stdin.write(f"{seconds}\n")
            self.driver.stdin.flush()
        except OSError:
            pass  # It has ended: there is no answer, but a reason.
        self.found.append(json.loads(self.line()))

    def total(self):
        """What all turns come to."""
        bytes_, seconds = (sum(found[name] for found in self.found) for name in ("bytes", "seconds"))
        cpu_s = {name: sum(found[name] * found["bytes"] for found in self.found) / bytes_
                 for name in ("sender_cpu_s_per_gb", "receiver_cpu_s_per_gb", "cpu_s_per_gb")}
        # The least equal of the shares.
        jain = [found["jain"] for found in self.found if found["jain"] is not None]
        return {"gbps": 8e-9 * bytes_ / seconds, **cpu_s, "jain": min(jain, default=None)}

    def stop(self):
        stop(self.driver)
        stop(self.server)
        self.said.close()


def by_turns(runs, seconds):
    """Measures all of these (kind and options) for so long each, in turns short enough that a slow moment of the machine
    hits everybody; for each what it found, or why it failed."""
    count = max(1, round(seconds / TURN_S))
    pairs, failures = [], {}

    def attempt(n, what):
        if n not in failures:
            try:
                what(pairs[n])
            except Failed as why:
                failures[n] = why

    try:
        # One at a time: filling half a GiB keeps both cores busy for a while.
        for n, run in enumerate(runs):
            pairs.append(Turns(*run))
            attempt(n, Turns.line)
        for turn in range(count):
            # Alternate the order, so that no pair always follows the same one.
            for n in range(len(pairs))[::1 if turn % 2 else -1]:
                attempt(n, lambda pair: pair.turn(seconds / count))
        return [failures.get(n) or pair.total() for n, pair in enumerate(pairs)]
    finally:
        for pair in pairs:
            pair.stop()


def bowline_perf(test, options, both=(), bowline=BOWLINE, pinned=True):
    """One measurement by `bowline perf`, on loopback; some options are for both ends."""
    port = str(free_port())
    receiver, sender = (["taskset", "-c", cpu] if pinned else [] for cpu in (RECEIVER_CPU, SENDER_CPU))
    serve = [*receiver, bowline, "perf", test, "-d", "127.0.0.1", "-p", port, *both]
    server = start(serve, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        server.stderr.readline()  # It says so when it listens.
        ask = [*sender, bowline, "perf", test, "127.0.0.1", "-d", "127.0.0.2", "-p", port, "--json", *both, *options]
        done = subprocess.run([str(c) for c in ask], capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"did not end within {PATIENCE_S} s") from late
    finally:
        stop(server)
    if done.returncode != 0:
        raise Failed(last_line(done.stderr))
    return json.loads(last_line(done.stdout))["results"][0]


def tool(server, client, env=None):
    """A program's own server and client: what the client printed, and the CPU seconds of both."""
    env = dict(os.environ, **(env or {}))
    pinned = [["taskset", "-c", cpu, *command] for cpu, command in ((RECEIVER_CPU, server), (SENDER_CPU, client))]
    serving = start(pinned[0], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
    try:
        text, cpu_s = retried(pinned[1], serving, env)
        return text, cpu_s + ended_cpu_s(serving)
    finally:
        stop(serving)


def ended_cpu_s(process):
    """CPU seconds of a process that is about to end."""
    for _ in range(200):
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return usage.ru_utime + usage.ru_stime
        time.sleep(0.05)
    raise Failed("the server did not end with its client")


def retried(client, serving, env):
    """Runs a client until its server listens: these say nothing when they do."""
    for _ in range(50):
        before = os.times()
        try:
            done = subprocess.run([str(c) for c in client], capture_output=True, text=True, env=env, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise Failed(f"did not end within {PATIENCE_S} s") from late
        after = os.times()
        if done.returncode == 0:
            ran = after.children_user + after.children_system - before.children_user - before.children_system
            return done.stdout, ran
        if serving.poll() is not None:
            break
        time.sleep(0.05)
    raise Failed(last_line(done.stderr) or last_line(done.stdout))
