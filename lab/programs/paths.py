"""Which path packets take between two programs of a host under plain `bowline run`, and when memory is not it."""

import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass, field

from listening import wait_listening
from pair import free_port, last_line, terminate
from rows import Row

STRANGER = 64242


def on(bowline, address, options):
    return [bowline, "run", "--device", f"bl0={address}", *options, "--"]


@dataclass
class Ends:
    """ib_send_bw, or another tool of perftest, with what each end is told."""

    name: str
    tool: str = "ib_send_bw -n 300"
    server: tuple = ()  # options of `bowline run`
    client: tuple = ()
    server_wrap: tuple = ()  # what starts the server's `bowline run`
    client_wrap: tuple = ()
    memory: bool = True  # whether packets go through it
    judge: object = None  # looks at the client's report and words; says what is wrong
    program: object = None  # the server's `bowline`, if it is another
    variables: dict = field(default_factory=dict)

    def run(self, env):
        tool = self.tool.split()
        if not shutil.which(tool[0]):
            return Row(self.name, "SKIP", f"{tool[0]} is not installed", bar="paths")
        start = time.monotonic()
        outcome, why = self.attempt(env, tool)
        return Row(self.name, outcome, why, time.monotonic() - start, "paths")

    def attempt(self, env, tool):
        port = free_port()
        command = [*tool, "-F", "-p", str(port), "--report_gbits"]
        variables = dict(os.environ, **self.variables)
        with open(env.tmp / "paths.log", "w+") as log:
            served = [*self.server_wrap, *on(self.program or env.bowline, "127.0.0.1", self.server), *command]
            server = subprocess.Popen(served, env=variables, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            try:
                if not wait_listening(port, server):
                    log.seek(0)
                    return "FAIL", f"no server: {last_line(log.read())}"
                called = [*self.client_wrap, *on(env.bowline, "127.0.0.2", ("--report", "--json", *self.client)), *command, "127.0.0.1"]
                client = subprocess.run(called, env=variables, capture_output=True, text=True, timeout=60, check=False)
                ended = server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                return "FAIL", "no end"
            finally:
                terminate(server)
        if client.returncode or ended:
            return "FAIL", f"exit {client.returncode} and {ended}: {last_line(client.stdout + client.stderr)}"
        report = json.loads([line for line in client.stderr.splitlines() if line.startswith("{")][-1])
        return self.verdict(report, client.stdout)

    def verdict(self, report, text):
        port = report["port"]
        through = port["shm_tx_bursts"]
        said = f"{through} bursts of {port['tx_bursts']} through memory"
        if bool(through) != self.memory:
            return "FAIL", said
        wrong = self.judge(report, text) if self.judge else ""
        return ("FAIL", wrong) if wrong else ("PASS", said)


def lossy(report, _):
    lost, again = report["port"]["impair_lost"], report["nic"]["retransmitted_packets"]
    return "" if lost and again else f"{lost} packets lost, {again} repeated: the link was not impaired"


def repeated(report, _):
    return "" if report["nic"]["retransmitted_packets"] else "nothing was repeated: flipped bits were not seen"


def slow(report, text):
    rate = float(re.findall(r"(?m)^\s*65536\s+\d+\s+\S+\s+(\S+)", text)[-1])
    return "" if rate < 1.05 else f"{rate} Gbit/s over a link of 1"


def late(report, text):
    typical = float(re.findall(r"(?m)^\s*2\s+\d+\s+\S+\s+\S+\s+(\S+)", text)[-1])
    return "" if typical >= 1000 else f"{typical} us over a link of 2 ms"


@contextmanager
def private_memory(*commands):
    """A mount namespace in which these commands have been run; how to start programs in it."""
    script = " && ".join(["mount --make-rprivate /", *commands, "echo ready", "exec sleep 300"])
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = holder.stdout.readline()
        yield ("nsenter", f"--mount=/proc/{holder.pid}/ns/mnt", "--") if "ready" in said else None
    finally:
        terminate(holder)


@dataclass
class NoPlace:
    """Neither end has a place where processes meet, hence no names and no rings."""

    name: str
    command: str

    def run(self, env):
        if os.geteuid() != 0:
            return Row(self.name, "SKIP", "takes root", bar="paths")
        with private_memory(self.command) as inside:
            if not inside:
                return Row(self.name, "SKIP", "no mount namespaces", bar="paths")
            nowhere = dict(XDG_RUNTIME_DIR="")
            return Ends(self.name, memory=False, server_wrap=inside, client_wrap=inside, variables=nowhere).run(env)


@dataclass
class Stranger:
    """The server is of another user, who may read nothing of ours: the program is copied to where he can."""

    name: str

    def run(self, env):
        if os.geteuid() != 0 or not shutil.which("setpriv"):
            return Row(self.name, "SKIP", "takes root", bar="paths")
        place = env.tmp / "stranger"
        place.mkdir(exist_ok=True)
        os.chmod(env.tmp, 0o755)
        for file in (env.bowline, env.preload):
            shutil.copy(file, place)
        wrap = ("setpriv", f"--reuid={STRANGER}", f"--regid={STRANGER}", "--clear-groups", "env", "XDG_RUNTIME_DIR=",
                f"BOWLINE_VERBS={place / env.preload.name}")
        return Ends(self.name, memory=False, server_wrap=wrap, program=place / "bowline").run(env)


def both(name, *options, **more):
    return Ends(name, server=options, client=options, **more)


def cases():
    yield both("nothing said")
    yield both("nothing said, UC", tool="ib_send_bw -c UC -n 300")
    yield both("nothing said, UD", tool="ib_send_bw -c UD -n 300")
    yield both("--via udp at both ends", "--via", "udp", memory=False)
    yield Ends("--via udp at the server", server=("--via", "udp"), memory=False)
    yield Ends("--via udp at the client", client=("--via", "udp"), memory=False)
    yield both("--link loss", "--link", "loss=1%", judge=lossy)
    yield both("--link rate", "--link", "rate=1Gbps", judge=slow)
    yield both("--link delay", "--link", "delay=1ms", tool="ib_send_lat -n 50", judge=late)
    yield both("--link corrupt", "--link", "corrupt=1%", judge=repeated)
    yield both("--fec", "--fec", "32,1", "--link", "loss=0.5%")
    yield both("--lanes 2", "--lanes", "2", tool="ib_write_bw -q 4 -n 300")
    yield both("--cc dcqcn", "--cc", "dcqcn")
    yield Stranger("a server of another user")
    yield NoPlace("no /dev/shm", "mount -t tmpfs -o ro none /dev/shm")
    yield NoPlace("a full /dev/shm", "mount -t tmpfs -o size=4k none /dev/shm && "
                  "dd if=/dev/zero of=/dev/shm/x bs=4k count=1 2>/dev/null")
    yield Ends("few descriptors", client_wrap=("prlimit", "--nofile=40", "--"))
