"""Checks that are no programs of others: the layout, lookup by version, and the bars."""

import ctypes
import json
import os
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from listening import wait_listening
from pair import Pair, free_port, last_line, terminate
from rows import Row
from setup import REPO

HERE = Path(__file__).resolve().parent
HEADER = Path("/usr/include/infiniband/verbs.h")
RATIO = 0.80
RUNS = 5


def checks(quick, with_bars):
    yield layout
    yield nccl_like
    yield qperf
    yield bowline_run
    if with_bars:
        yield bandwidth_ratio
        yield rust_tests


def verdicts(rows):
    """For every bar whether all of its rows passed."""
    found = {}
    for row in rows:
        if row.bar:
            good = row.outcome != "FAIL"
            found[row.bar] = found.get(row.bar, True) and good
    return found


def timed(name, bar, f):
    start = time.monotonic()
    outcome, why = f()
    return Row(name, outcome, why, time.monotonic() - start, bar)


def compile_c(env, source, *flags):
    """Compiles one file; the program's path, or what the compiler said."""
    program = env.tmp / source.removesuffix(".c")
    command = ["cc", "-O1", "-Wall", "-o", str(program), str(HERE / source), *flags, "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (program, "") if done.returncode == 0 else (None, last_line(done.stderr))


def needs_header(name, bar):
    if HEADER.exists() and shutil.which("cc"):
        return None
    return Row(name, "SKIP", "needs a C compiler and libibverbs' header", bar=bar)


class Entry(ctypes.Structure):
    _fields_ = [("structure", ctypes.c_char_p), ("field", ctypes.c_char_p),
                ("value", ctypes.c_size_t)]


def layout(env):
    """Every size and offset against the installed header."""
    name, bar = "layout against verbs.h", "layout"
    if skipped := needs_header(name, bar):
        yield skipped
        return

    def run():
        library = ctypes.CDLL(str(env.preload))
        library.bowline_verbs_layout.restype = ctypes.POINTER(Entry)
        count = ctypes.c_size_t()
        entries = library.bowline_verbs_layout(ctypes.byref(count))
        lines = []
        for entry in entries[:count.value]:
            structure = entry.structure.decode()
            c_type = ("union " if structure == "ibv_gid" else "struct ") + structure
            if entry.field:
                field = entry.field.decode()
                value = f"offsetof({c_type}, {field})"
                lines.append(f'{{"{structure}", "{field}", {value}}},')
            else:
                lines.append(f'{{"{structure}", 0, sizeof({c_type})}},')
        (env.tmp / "layout_table.h").write_text("\n".join(lines) + "\n")
        program, why = compile_c(env, "layout.c", f"-I{env.tmp}")
        if not program:
            return "FAIL", why
        done = subprocess.run([program, env.preload], capture_output=True, text=True, check=False)
        return ("PASS" if done.returncode == 0 else "FAIL"), last_line(done.stdout)

    yield timed(name, bar, run)


def nccl_like(env):
    """A client that looks verbs up by version, as NCCL does."""
    name, bar = "NCCL-like client (dlvsym)", "programs"
    if skipped := needs_header(name, bar):
        yield skipped
        return

    def run(variables):
        def inner():
            program, why = compile_c(env, "nccl_like.c")
            if not program:
                return "FAIL", why
            try:
                done = subprocess.run([program], env=variables, capture_output=True, text=True,
                                      timeout=20, check=False)
            except subprocess.TimeoutExpired:
                return "FAIL", "no end within 20 s"
            return ("PASS" if done.returncode == 0 else "FAIL"), last_line(done.stdout + done.stderr)
        return inner

    yield timed(name, bar, run(env.variables("versioned")))
    plain = env.variables("versioned", NCCL_IBVERBS_LIB=str(env.versioned / "libibverbs.so.1"))
    del plain["LD_LIBRARY_PATH"]
    yield timed("NCCL-like client (NCCL_IBVERBS_LIB)", bar, run(plain))


def qperf(env):
    """qperf routes by LID alone: without librdmacm it has no way to name a RoCE peer."""
    name = "qperf rc_bw"
    if not shutil.which("qperf"):
        yield Row(name, "SKIP", "qperf is not installed", bar="programs")
        return

    def run():
        port = free_port()
        command = ["qperf", "-lp", str(port)]
        server = subprocess.Popen(command, env=env.variables(BOWLINE_DEVICES="bl0=127.0.0.1"),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_listening(port, server)
            command = ["qperf", "-lp", str(port), "-t", "1", "127.0.0.1", "rc_bw"]
            client = subprocess.run(command, env=env.variables(BOWLINE_DEVICES="bl0=127.0.0.1"),
                                    capture_output=True, text=True, timeout=20, check=False)
            text = client.stdout + client.stderr
        except subprocess.TimeoutExpired:
            return "FAIL", "no end within 20 s"
        finally:
            terminate(server)
        if "Invalid argument" in text:
            return "PASS", "refused, as it should be: it sets no GID, which RoCE needs (EINVAL)"
        return ("PASS" if client.returncode == 0 else "FAIL"), last_line(text)

    yield timed(name, "programs", run)


def bowline_run(env):
    """`bowline run` and `bowline devinfo`, on two programs that talk over an impaired link."""
    name, bar = "bowline run --report --pcap --link, devinfo", "programs"
    if not env.bowline.exists() or not shutil.which("ib_send_bw"):
        yield Row(name, "SKIP", "needs bowline and ib_send_bw", bar=bar)
        return

    def run():
        port, capture = free_port(), env.tmp / "run.pcap"
        command = ["ib_send_bw", "-F", "-n", "300", "-p", str(port)]
        server = subprocess.Popen([env.bowline, "run", "--device", "bl0=127.0.0.1", "--", *command],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_listening(port, server)
            live = said(env.bowline, "devinfo", "--json")
            if server.pid not in [p.get("pid") for p in json.loads(live.stdout)["processes"]]:
                return "FAIL", "devinfo does not see the server"
            client = said(env.bowline, "run", "--device", "bl0=127.0.0.2", "--pcap", capture,
                          "--link", "loss=1%,delay=1ms", "--report", "--json", "--", *command,
                          "127.0.0.1")
        finally:
            terminate(server)
        if client.returncode != 0:
            return "FAIL", last_line(client.stdout + client.stderr)
        report = json.loads(client.stderr.strip().splitlines()[-1])
        lost, again = report["port"]["impair_lost"], report["nic"]["retransmitted_packets"]
        if not lost or not again:
            return "FAIL", f"{lost} packets lost, {again} repeated: the link was not impaired"
        packets = said(env.bowline, "dissect", capture)
        if packets.returncode != 0 or "BAD 0" not in packets.stdout:
            return "FAIL", f"the capture: {last_line(packets.stdout + packets.stderr)}"
        return "PASS", f"{lost} packets lost, {again} repeated, all seen and reported"

    yield timed(name, bar, run)


def said(*command):
    """A command that has ended, with what it said."""
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def write_bw(env):
    """perftest's bandwidth in Gbit/s, by UDP as `bowline perf` measures it."""
    pair = Pair("ib_write_bw", ["ib_write_bw", "-F", "-s", "65536", "-n", "20000", "-N",
                                "--report_gbits"], result=lambda text: text, limit_s=60, variables=dict(BOWLINE_VIA="udp"))
    outcome, text = pair.attempt(env)
    rows = re.findall(r"^\s*65536\s+\d+\s+\S+\s+(\S+)", text, re.MULTILINE)
    return float(rows[-1]) if outcome == "PASS" and rows else None


def bowline_bw(env):
    """`bowline perf`'s bandwidth in Gbit/s, with the same shape."""
    port = str(free_port())
    common = [str(env.bowline), "perf", "write-bw", "-p", port]
    server = subprocess.Popen([*common, "-d", "127.0.0.1"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        wait_listening(int(port), server)
        client = subprocess.run([*common, "127.0.0.1", "-d", "127.0.0.2", "-s", "65536", "-n",
                                 "20000", "--json"], capture_output=True, text=True, timeout=60,
                                check=False)
        found = json.loads(client.stdout.strip().splitlines()[-1])
        return find_gbps(found)
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        return None
    finally:
        terminate(server)


def find_gbps(value):
    """The average bandwidth somewhere in `bowline perf`'s object."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("bw_average_gbps", "average_gbps", "bw_avg_gbps", "gbps"):
                return float(inner)
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            if (found := find_gbps(inner)) is not None:
                return found
    return None


def bandwidth_ratio(env):
    """64 KiB writes: perftest on Bowline against Bowline's own tool, by turns."""
    name, bar = "ib_write_bw / bowline perf write-bw", "bandwidth"
    if not env.bowline.exists() or not shutil.which("ib_write_bw"):
        yield Row(name, "SKIP", "needs bowline and ib_write_bw", bar=bar)
        return

    def run():
        theirs, ours = [], []
        for _ in range(RUNS):
            theirs.append(write_bw(env))
            ours.append(bowline_bw(env))
        if None in theirs or None in ours:
            return "FAIL", f"a run failed: {theirs} {ours}"
        ratio = statistics.median(theirs) / statistics.median(ours)
        why = (f"{statistics.median(theirs):.1f} of {statistics.median(ours):.1f} Gbit/s = "
               f"{ratio:.2f}, at least {RATIO:.2f} wanted")
        return ("PASS" if ratio >= RATIO else "FAIL"), why

    yield timed(name, bar, run)


def rust_tests(env):
    """Many processes on one address, and programs that misbehave: tests of the crate."""
    for test, bar in (("crowd", "many processes"), ("misbehave", "misbehaviour"),
                      ("verbs", "verbs"), ("events", "verbs"), ("fork", "verbs")):
        def run(test=test):
            command = ["cargo", "test", "--release", "--quiet", "-p", "bowline-verbs-abi", "--test",
                       test]
            try:
                done = subprocess.run(command, cwd=REPO, capture_output=True, text=True,
                                      timeout=600, check=False,
                                      env=dict(os.environ, CARGO_TERM_COLOR="never"))
            except subprocess.TimeoutExpired:
                return "FAIL", "no end within 600 s"
            found = re.findall(r"test result: (.*?);", done.stdout)
            return ("PASS" if done.returncode == 0 else "FAIL"), (
                found[-1] if found else last_line(done.stderr))
        yield timed(f"tests: {test}", bar, run)
