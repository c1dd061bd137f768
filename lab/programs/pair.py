"""Running a program as server and client, with a limit on everything."""

import os
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field

from listening import listens, wait_listening
from rows import Row


def terminate(process):
    """Ends a process that we started, by its own id."""
    if process.poll() is None:
        process.kill()
    process.wait()


def explain(name, processes):
    """Shows where programs that do not end are, to whoever set BOWLINE_LAB_DEBUG."""
    if not os.environ.get("BOWLINE_LAB_DEBUG") or not shutil.which("gdb"):
        return
    for process in processes:
        if process and process.poll() is None:
            command = ["gdb", "-batch", "-ex", "thread apply all bt 12", "-p", str(process.pid)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            lines = [l for l in done.stdout.splitlines() if l.startswith(("#", "Thread"))]
            print(f"{name}, process {process.pid}:", *lines, sep="\n  ", flush=True)


def free_port():
    while True:
        port = random.randint(21000, 29000)
        if not listens(port):
            return port


def last_line(text):
    lines = [l.strip() for l in text.splitlines() if l.strip() and not set(l.strip()) <= set("-")]
    return lines[-1][:150] if lines else ""


@dataclass
class Pair:
    """A program that is started twice: without a host it waits, with one it connects."""

    name: str
    command: list
    result: object = last_line  # what to say of the client's output
    how: str = "preload"
    limit_s: float = 20
    bar: str = "programs"
    devices: tuple = ("bl0", "bl1")
    variables: dict = field(default_factory=dict)
    host: str = "127.0.0.1"

    def command_line(self, port, device, host=None):
        return [*self.command, "-p", port, "-d", device, *([host] if host else [])]

    def run(self, env):
        if not shutil.which(self.command[0]):
            return Row(self.name, "SKIP", f"{self.command[0]} is not installed", bar=self.bar)
        start = time.monotonic()
        outcome, why = self.attempt(env)
        return Row(self.name, outcome, why, time.monotonic() - start, self.bar)

    def attempt(self, env):
        port = str(free_port())
        deadline = time.monotonic() + self.limit_s
        with open(env.tmp / "server.log", "w+") as server_log, \
             open(env.tmp / "client.log", "w+") as client_log:
            def spawn(device, log, host=None):
                command = self.command_line(port, device, host)
                variables = env.variables(self.how, **self.variables)
                return subprocess.Popen(["stdbuf", "-oL", *command], env=variables, stdout=log,
                                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)

            server = spawn(self.devices[0], server_log)
            client = None
            try:
                if wait_listening(int(port), server, deadline - time.monotonic()):
                    client = spawn(self.devices[1], client_log, self.host)
                codes = [wait(p, deadline) for p in (client, server) if p]
                explain(self.name, (client, server))
            finally:
                for process in (client, server):
                    if process:
                        terminate(process)
            texts = []
            for log in (client_log, server_log):
                log.seek(0)
                texts.append(log.read())
        return self.judge(codes, texts)

    def judge(self, codes, texts):
        both = "\n".join(texts)
        if None in codes:
            return "FAIL", f"no end within {self.limit_s:.0f} s: {last_line(both)}"
        if any(codes):
            return "FAIL", f"exit {codes}: {last_line(texts[0] or texts[-1])}"
        return "PASS", self.result(texts[0])


class FabricPair(Pair):
    """libfabric's pingpong, which has words of its own for port and device."""

    def command_line(self, port, device, host=None):
        where = ["-P", port, host] if host else ["-B", port]
        return [*self.command, "-d", f"{device}-dgram", *where]


def wait(process, deadline):
    try:
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


@dataclass
class Single:
    """A program that runs alone; with `stop_after_s` it is interrupted and must still be there."""

    name: str
    command: list
    expect: str
    how: str = "preload"
    stop_after_s: float = 0
    limit_s: float = 20
    bar: str = "programs"

    def run(self, env):
        if not shutil.which(self.command[0]):
            return Row(self.name, "SKIP", f"{self.command[0]} is not installed", bar=self.bar)
        start = time.monotonic()
        process = subprocess.Popen(["stdbuf", "-oL", *self.command], env=env.variables(self.how),
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        died = False
        try:
            if self.stop_after_s:
                time.sleep(self.stop_after_s)
                died = process.poll() is not None
                process.send_signal(signal.SIGINT)
            text, _ = process.communicate(timeout=self.limit_s)
        except subprocess.TimeoutExpired:
            terminate(process)
            return Row(self.name, "FAIL", f"no end within {self.limit_s:.0f} s", self.limit_s,
                       self.bar)
        good = self.expect in text and not died and (self.stop_after_s or process.returncode == 0)
        why = f"says {self.expect!r}" if good else f"exit {process.returncode}: {last_line(text)}"
        return Row(self.name, "PASS" if good else "FAIL", why, time.monotonic() - start, self.bar)
