"""What is run, what goes wrong meanwhile, and whether the programs noticed."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass, field

from hosts import Sampler, wait_ready
from listening import wait_listening

# The direction of the payload, seen from the client.
PERFTEST = {"ib_send_bw": "tx", "ib_write_bw": "tx", "ib_read_bw": "rx"}
VERIFY = ("write", "send", "read", "atomic")
FAULTS = ("initiator down", "responder down", "blackhole", "switch port down")


@dataclass
class Result:
    name: str
    program: str
    fault: str
    mode: str
    outcome: str = "PASS"
    why: str = ""
    gbps: float = 0.0
    seconds: float = 0.0
    detect_ms: float = None
    handover_ms: float = None
    requests: int = 0
    samples: list = field(default_factory=list)

    def as_dict(self):
        return asdict(self)


def break_it(env, net, fault):
    order(env, net, fault, True)


def mend_it(env, net, fault):
    order(env, net, fault, False)


def order(env, net, fault, broken):
    if fault == "switch port down":
        return net.port("a", "down" if broken else "up")
    host = net.client if fault == "initiator down" else net.server
    action = ("blackhole=in" if fault == "blackhole" else "down") if broken else "clear"
    command = [env.bowline, "fault", host.addrs[0], action, "--all"]
    if host.namespace:
        command = ["ip", "netns", "exec", host.namespace, *command]
    subprocess.run([str(c) for c in command], check=True, capture_output=True)


def perftest(env, net, program, fault, mode, seconds):
    command = [program, "-d", "bl0", "-D", str(seconds), "--report_gbits"]
    if seconds < 10:
        # perftest's default, eight tries of at least 67 ms, would take up much of a short
        # blackhole.
        command += ["-u", "12"]
    result = Result(f"{program}, {fault}, {mode}", program, fault, mode)
    texts = play(env, net, result, command, "-p", seconds, PERFTEST[program])
    if result.outcome == "PASS":
        lines = [l.split() for l in texts[0].splitlines() if re.match(r"\s*\d+\s+\d+\s", l)]
        result.gbps = float(lines[-1][3]) if lines else 0.0
    return result


def verify(env, net, kind, fault, mode, seconds):
    command = [env.verify, kind, str(seconds)]
    result = Result(f"verify {kind}, {fault}, {mode}", f"verify {kind}", fault, mode)
    texts = play(env, net, result, command, None, seconds, None)
    if result.outcome == "PASS":
        result.why = f"{last_line(texts[0])}; {result.why}"
    return result


class Pair:
    """A server and its client under `bowline run`, and what they print."""

    def __init__(self, env, net, mode, command, port_option=None, store_url=None, runtime_dir=None):
        self.env, self.net, self.mode = env, net, mode
        self.port = env.free_port()
        self.program = [*command, *([port_option] if port_option else []), str(self.port)]
        self.store_url = store_url or f"file://{env.tmp}/store"
        self.environ = dict(os.environ, **({"XDG_RUNTIME_DIR": str(runtime_dir)} if runtime_dir else {}))
        self.logs, self.processes, self.codes = [], [], []

    def __enter__(self):
        server = self.spawn(self.net.server)
        wait_listening(self.port, server)
        # They meet over the rail that stays intact.
        self.spawn(self.net.client, self.net.server.addrs[1 if self.net.server.namespace else 0])
        return self

    def spawn(self, host, *more):
        line = host.command(self.env, self.mode, self.store_url, [*self.program, *more])
        log = tempfile.TemporaryFile("w+", dir=self.env.tmp)
        # Use a process group, so that all of it can be ended, but not a session: the kernel
        # schedules sessions as groups, and on a busy machine Linux 6.18 leaves out for seconds a
        # group that spins and naps.
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                   env=self.environ, process_group=0)
        # The client comes first wherever both are named.
        self.logs.insert(0, log)
        self.processes.insert(0, process)
        return process

    def wait_ready(self, limit_s=10):
        wait_ready(self.net.client, self.processes[0], limit_s)

    def texts(self):
        """What client and server have printed so far."""
        return [os.pread(log.fileno(), 1 << 24, 0).decode(errors="replace") for log in self.logs]

    def finish(self, limit_s):
        deadline = time.monotonic() + limit_s
        self.codes = [wait(process, deadline) for process in self.processes]
        return self.texts()

    def __exit__(self, *_):
        for process, log in zip(self.processes, self.logs):
            if process.poll() is None:
                # Also kills the program that `bowline run` waits for.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.close()


def play(env, net, result, command, port_option, seconds, direction):
    """Runs server and client with a fault at a third of the time, gone at two thirds."""
    start = time.monotonic()
    with Pair(env, net, result.mode, command, port_option) as pair:
        sampler = Sampler(net.client, direction).start() if direction else None
        pair.wait_ready()
        begin = time.monotonic()
        sleep_until(begin + seconds / 3)
        break_it(env, net, result.fault)
        sleep_until(begin + seconds * 2 / 3)
        mend_it(env, net, result.fault)
        texts = pair.finish(begin + seconds + 20 - time.monotonic())
        if sampler:
            result.samples = sampler.end()
    result.seconds = time.monotonic() - start
    judge(result, pair.codes, texts)
    return texts


def judge(result, codes, texts):
    """Both ended well, the connection moved, and came back."""
    if codes != [0, 0]:
        result.outcome = "FAIL"
        result.why = f"exit {codes}: {last_line(texts[0]) or last_line(texts[1])}"
        return
    timelines = [failover_of(text)["timeline"] for text in texts]
    for who, timeline in zip(("client", "server"), timelines):
        rails = [event["rail"] for event in timeline if event["outcome"] == "moved"]
        if "backup" not in rails:
            result.outcome, result.why = "FAIL", f"the {who} never moved: {timeline}"
            return
        if rails[-1] != "first":
            result.outcome, result.why = "FAIL", f"the {who} is not back on its first NIC: {timeline}"
            return
    away = [next(e for e in t if e["rail"] == "backup") for t in timelines]
    noticed = min(away, key=lambda event: -(event["handover_ns"] or 0))
    detected = [e["detect_ns"] for e in away if e["detect_ns"]]
    result.detect_ms = round(min(detected) / 1e6, 2) if detected else None
    result.handover_ms = round(noticed["handover_ns"] / 1e6, 2)
    result.requests = max(event["requests"] for event in away)
    result.why = (f"{noticed['cause']}, over in {result.handover_ms} ms with {result.requests} requests, "
                  f"back {sum(e['rail'] == 'first' for e in timelines[0])}x")


def failover_of(text):
    """The failover part of the report of bl0, which is among the lines of a log."""
    for line in text.splitlines():
        if line.startswith('{"') and '"failover"' in line:
            return json.loads(line)["failover"]
    return {"timeline": []}


def last_line(text):
    lines = [l.strip() for l in text.splitlines() if l.strip() and not l.startswith(("{", "-", "bowline:"))]
    return lines[-1][:150] if lines else ""


def sleep_until(moment):
    time.sleep(max(0, moment - time.monotonic()))


def wait(process, deadline):
    try:
        return process.wait(max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
