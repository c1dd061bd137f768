"""What is run, what goes wrong meanwhile, and whether the programs noticed."""

import json
import re
import subprocess
import time
from dataclasses import asdict, dataclass, field

from hosts import Sampler, wait_ready

# Which way the payload goes, seen from the client.
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
    command = [env.bowline, "fault", host.addrs[0], action]
    if host.namespace:
        command = ["ip", "netns", "exec", host.namespace, *command]
    subprocess.run([str(c) for c in command], check=True, capture_output=True)


def perftest(env, net, program, fault, mode, seconds):
    command = [program, "-d", "bl0", "-D", str(seconds), "--report_gbits"]
    if seconds < 10:
        # perftest's eight tries of 67 ms and more would be a good part of a short blackhole.
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


def play(env, net, result, command, port_option, seconds, direction):
    """Runs server and client with a fault at a third of the time, gone at two thirds."""
    start = time.monotonic()
    port = str(env.free_port())
    program = [*command, port_option, port] if port_option else [*command, port]
    logs = [open(env.tmp / f"{who}.log", "w+") for who in ("client", "server")]
    processes = []

    def spawn(host, log, *more):
        line = host.command(env, result.mode, env.tmp / "store", [*program, *more])
        process = subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        processes.append(process)
        return process

    try:
        server = spawn(net.server, logs[1])
        env.wait_listening(int(port), net.server.namespace, server)
        client = spawn(net.client, logs[0], net.server.addrs[1 if net.server.namespace else 0])
        sampler = Sampler(net.client, direction).start() if direction else None
        wait_ready(net.client, client, 10)
        begin = time.monotonic()
        sleep_until(begin + seconds / 3)
        break_it(env, net, result.fault)
        sleep_until(begin + seconds * 2 / 3)
        mend_it(env, net, result.fault)
        codes = [wait(process, begin + seconds + 20) for process in (client, server)]
        if sampler:
            result.samples = sampler.end()
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
    texts = []
    for log in logs:
        log.seek(0)
        texts.append(log.read())
        log.close()
    result.seconds = time.monotonic() - start
    judge(result, codes, texts)
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
