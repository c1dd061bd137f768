"""Two ends of Bowline, and ways to make life hard for them."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from listening import listens

# Nothing here takes longer, even on a busy machine.
PATIENCE = 60


class Failed(Exception):
    """A scene that did not end as it should."""


class Skipped(Exception):
    """A scene that cannot be had here."""


def must(condition, otherwise):
    if not condition:
        raise Failed(otherwise)


def needs_root():
    if os.geteuid() != 0:
        raise Skipped("needs root")


class Process:
    """A program whose output is kept, and which does not outlive its scene."""

    def __init__(self, command, env, stdin=subprocess.DEVNULL):
        self.out = tempfile.TemporaryFile()
        self.child = subprocess.Popen([str(part) for part in command], stdin=stdin, stdout=self.out,
                                      stderr=subprocess.STDOUT, env=env, start_new_session=True)

    @property
    def pid(self):
        return self.child.pid

    def signal(self, number):
        """To it and to those that it has started."""
        try:
            os.killpg(self.child.pid, number)
        except ProcessLookupError:
            pass

    def wait(self, seconds=PATIENCE):
        """Its status; it is killed, and the scene fails, if it does not end."""
        try:
            return self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failed(f"hangs: {self.last_line()}") from None

    def kill(self):
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.child.wait()

    def text(self):
        self.out.seek(0)
        return self.out.read().decode(errors="replace")

    def last_line(self):
        lines = [line for line in self.text().splitlines() if line.strip()]
        return lines[-1].strip()[:160] if lines else "(no output)"

    def must_be_sane(self):
        """Killed by no signal of its own doing."""
        status = self.child.returncode
        must(status is not None and status >= 0 and status not in (101, 134, 139),
             f"died of {status}: {self.last_line()}")


class Rig:
    def __init__(self, target, here, quick):
        self.quick = quick
        self.here = here
        self.target = target
        self.tmp = Path(tempfile.mkdtemp(prefix="bowline-hostile-"))
        # Users without privileges must be able to access it.
        self.tmp.chmod(0o755)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("BOWLINE_", "XDG_"))}
        self.started = []
        self.net = random.randint(1, 250)

    def __enter__(self):
        for name in ("bowline", "libbowline_verbs.so"):
            must((self.target / name).exists(), f"{self.target / name} is not there: build it first")
            shutil.copy2(self.target / name, self.tmp / name)
        self.bowline = self.tmp / "bowline"
        return self

    def __exit__(self, *_):
        self.end_all()
        shutil.rmtree(self.tmp, ignore_errors=True)

    def end_all(self):
        while self.started:
            process = self.started.pop()
            if process.child.poll() is None:
                process.kill()

    def addresses(self, count=2):
        """Loopback addresses that nobody else uses."""
        start = random.randint(1, 60) * 4
        return [f"127.91.{self.net}.{start + i}" for i in range(count)]

    def port(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            return s.getsockname()[1]

    def start(self, *command, env=None, **more):
        process = Process(command, dict(self.env, **(env or {})), **more)
        self.started.append(process)
        return process

    def compile(self, source, *options):
        """A helper program, made when it is first needed."""
        made = self.tmp / Path(source).stem
        if not made.exists():
            if shutil.which("cc") is None:
                raise Skipped("needs a C compiler")
            command = ["cc", "-O2", "-Wall", "-o", made, self.here / source, *options]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise Skipped(f"{source} cannot be compiled: {done.stderr.strip()[-120:]}")
        return made

    def serve(self, addr, port, wrap=(), options=(), env=None):
        """A `bowline perf` server that listens."""
        server = self.start(*wrap, self.bowline, "perf", "write-bw", "-d", addr, "-p", port, "--insecure", *options, env=env)
        deadline = time.monotonic() + PATIENCE
        while not listens(port, server.pid):
            if server.child.poll() is not None:
                server.must_be_sane()
                raise Failed(f"the server ended: {server.last_line()}")
            must(time.monotonic() < deadline, f"the server does not listen: {server.last_line()}")
            time.sleep(0.02)
        return server

    def client(self, server_addr, addr, port, *options, wrap=(), env=None):
        return self.start(*wrap, self.bowline, "perf", "write-bw", server_addr, "-d", addr, "-p", port, "--insecure",
                          "--json", *options, env=env)

    def pair(self, *options, wrap=(), env=None, addresses=None):
        """Both ends of a transfer that must succeed; what the client says."""
        (there, here), port = addresses or self.addresses(), self.port()
        server = self.serve(there, port, wrap, env=env)
        client = self.client(there, here, port, *options, wrap=wrap, env=env)
        for name, end in (("client", client), ("server", server)):
            status = end.wait()
            must(status == 0, f"the {name} ended with {status}: {end.last_line()}")
        return client

    def victim(self, mode, wrap=(), env=None):
        """Runs victim.c, which has both ends in it, on two devices."""
        program = self.compile("victim.c", "-libverbs")
        a, b = self.addresses()
        process = self.start(*wrap, self.bowline, "run", "--device", f"bl0={a}", "--device", f"bl1={b}", "--",
                             program, mode, env=env)
        status = process.wait()
        must(status == 0, f"ended with {status}: {process.last_line()}")
        return process

    def mounts(self, *commands):
        """A mount namespace in which these commands have been run; how to start programs in it."""
        needs_root()
        script = " && ".join(["mount --make-rprivate /", *commands, "echo ready", "sleep 600"])
        holder = self.start("unshare", "-m", "sh", "-c", script)
        wait_for(lambda: "ready" in holder.text(), holder)
        return ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--")


def wait_for(condition, process, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        if process.child.poll() is not None or time.monotonic() > deadline:
            raise Skipped(f"cannot be set up: {process.last_line()}")
        time.sleep(0.02)


def goodput(client):
    """What a client's JSON says of its bandwidth."""
    lines = [line for line in client.text().splitlines() if line.startswith("{")]
    must(lines, f"no result: {client.last_line()}")
    gbps = json.loads(lines[-1])["results"][0]["bw_average_gbps"]
    return f"{gbps:.2f} Gbit/s"
