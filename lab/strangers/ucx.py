"""UCX, which looks for device nodes before it believes libibverbs."""

import os
import re
import subprocess
import time

from listening import wait_listening
from setup_strangers import free_port, last_line, need, run

TESTS = ["tag_lat", "tag_bw", "tag_sync_lat", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_add", "ucp_fadd", "ucp_swap",
         "ucp_cswap", "ucp_am_lat", "ucp_am_bw", "stream_lat", "stream_bw"]
ATOMICS = {"ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"}
VERBS = {"rc_verbs": "rc_verbs,ud_verbs", "ud_verbs": "ud_verbs"}


def perftest(env, test, size, count, transports, on_bowline=True):
    """Runs a test between two processes: the client's status and output."""
    port = free_port()
    options = ["-p", str(port), "-t", test, "-s", str(size), "-n", str(count), "-w", "20", "-f"]

    def command(host, address):
        program = ["ucx_perftest", *([host] if host else []), *options]
        return env.under_bowline(program, address) if on_bowline else program

    variables = dict(os.environ, UCX_TLS=transports, UCX_LOG_LEVEL="warn")
    with open(env.tmp / "server.log", "w+") as log:
        server = subprocess.Popen(command(None, "127.0.0.1"), env=variables, stdout=log, stderr=log,
                                  stdin=subprocess.DEVNULL)
        try:
            if not wait_listening(port, server, 20):
                log.seek(0)
                return None, "no server: " + last_line(log.read())
            return run(command("127.0.0.1", "127.0.0.2"), 60, UCX_TLS=transports, UCX_LOG_LEVEL="warn")
        finally:
            server.kill()
            server.wait()


def finds_devices(env):
    need("ucx_info")
    status, text = env.run(["ucx_info", "-d"], 30)
    found = re.findall(r"Transport: (\w+_verbs)", text)
    good = status == 0 and {"rc_verbs", "ud_verbs"} <= set(found)
    return ("PASS", " ".join(found)) if good else ("FAIL", f"exit {status}: {found}")


def one(test, name, size):
    def check(env):
        need("ucx_perftest")
        status, text = perftest(env, test, size, 200, VERBS[name])
        if status != 0:
            return "FAIL", f"exit {status}: {last_line(text)}"
        return "PASS", last_line(text)
    return check


def overall_mb_per_s(text):
    """The last line of `-f` is the result: count, three latencies, two bandwidths, two rates."""
    numbers = re.findall(r"[\d.]+", last_line(text))
    return float(numbers[5]) if len(numbers) >= 7 else 0.0


def put_beside_tcp(env):
    """64 KiB put over rc_verbs at least twice as fast as over UCX's own TCP, by turns."""
    need("ucx_perftest")
    found = {"rc_verbs,ud_verbs": [], "tcp": []}
    for _ in range(5):
        for transports, values in found.items():
            status, text = perftest(env, "ucp_put_bw", 65536, 40000, transports, transports != "tcp")
            if status != 0:
                return "FAIL", f"{transports}: exit {status}: {last_line(text)}"
            values.append(overall_mb_per_s(text))
            time.sleep(0.2)
    ours, tcp = (sorted(values)[2] for values in found.values())
    ratio = ours / tcp if tcp else 0.0
    return ("PASS" if ratio >= 2 else "FAIL"), f"{ratio:.2f} of TCP's (bar 2): {ours:.0f} to {tcp:.0f} MB/s"


def checks(quick):
    yield "UCX finds its transports", finds_devices
    tests = ["tag_bw", "ucp_put_lat", "ucp_fadd"] if quick else TESTS
    for transport in VERBS:
        for test in tests:
            size = 8 if test in ATOMICS else 4096
            yield f"ucx_perftest {test} over {transport}", one(test, transport, size)
    if not quick:
        yield "UCX put of 64 KiB beside its TCP", put_beside_tcp
