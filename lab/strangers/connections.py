"""Programs of librdmacm: how fast they connect, groups, sockets over RDMA."""

import os
import re
import signal
import time

from setup_strangers import free_port, last_line, need, pair, start

HERE, THERE = "127.0.0.1", "127.0.0.2"


def both(server, client, expected, limit_s=40, judge=None):
    """A server and its client, which says `expected`."""
    def check(env):
        need(server[0])
        port = str(free_port())
        fill = lambda words: [word.format(port=port, here=HERE, there=THERE) for word in words]
        status, text, said = pair(env, fill(server), fill(client), limit_s)
        if status != 0 or not re.search(expected, text):
            return "FAIL", f"exit {status}: {last_line(text) or last_line(said)}"
        return judge(text) if judge else ("PASS", last_line(text))
    return check


def connections_per_second(text):
    """cmtime's table: a connection's share of each step, in microseconds."""
    per_step = re.findall(r"(?m)^([a-z ]+?) *: .* ([\d.]+)$", text)
    total = sum(float(us) for _, us in per_step)
    rate = 1e6 / total if total else 0.0
    steps = ", ".join(f"{name} {us}" for name, us in per_step if name in ("connect", "disconnect"))
    return ("PASS" if rate >= 2000 else "FAIL"), f"{rate:.0f}/s, all steps counted (bar 2000); µs: {steps}"


def dlopened(env):
    """A program that opens the libraries by name gets these, by version too."""
    script = ("import ctypes; n = ctypes.c_int(); m = ctypes.CDLL('librdmacm.so.1'); v = ctypes.CDLL('libibverbs.so.1'); "
              "m.rdma_get_devices(ctypes.byref(n)); d = n.value; v.ibv_get_device_list(ctypes.byref(n)); print('devices', d, n.value)")
    status, text = env.run(["/usr/bin/python3", "-c", script], 20)
    return ("PASS" if status == 0 and "devices 1 1" in text else "FAIL"), f"exit {status}: {last_line(text)}"


# The limit in docs/cm.md for an idle connection, and what a busy machine may add.
REST_BOUND_S, SLACK_S = 12, 4


def peers_killed(count):
    """Clients of servers that are killed hear of it, all of them, within their timeouts.

    A server dies at any point of its ping. Its client has a request in flight then, or waits for a message with nothing
    in flight, which is what most of a ping is."""
    def check(env):
        need("rping")
        servers, clients = [], []
        try:
            ports = [str(free_port()) for _ in range(count)]
            for port in ports:
                servers.append(start(env.under_bowline(["rping", "-s", "-a", HERE, "-p", port], HERE)))
            time.sleep(1.5)
            for port in ports:
                clients.append(start(env.under_bowline(["rping", "-c", "-a", HERE, "-p", port, "-C", "100000000"], THERE)))
            time.sleep(2)
            if any(client.poll() is not None for client in clients):
                return "FAIL", "a client ended before its server"
            for server in servers:
                os.killpg(server.pid, signal.SIGKILL)
            return heard(clients)
        finally:
            for process in (*clients, *servers):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return check


def heard(clients):
    """That clients end, and when. rping ends with status 0 where it is told that its peer has disconnected."""
    began, after = time.monotonic(), {}
    while len(after) < len(clients) and time.monotonic() - began < REST_BOUND_S + SLACK_S:
        for number, client in enumerate(clients):
            if number not in after and client.poll() is not None:
                after[number] = time.monotonic() - began
        time.sleep(0.05)
    times = ", ".join(f"{seconds:.1f}" for seconds in sorted(after.values()))
    if len(after) < len(clients):
        return "FAIL", f"{len(clients) - len(after)} of {len(clients)} clients wait for ever; the others: {times} s"
    return "PASS", f"{len(after)} of {len(clients)} heard after {times} s (bar {REST_BOUND_S} s)"


def cmtime(count, judge=None):
    options = ["-c", str(count), "-p", "{port}"]
    return both(["cmtime", *options, "-b", "{here}"], ["cmtime", *options, "-s", "{here}"], "disconnect", judge=judge)


def ucmatose(count):
    options = ["-c", str(count), "-C", "1", "-p", "{port}"]
    return both(["ucmatose", *options, "-b", "{here}"], ["ucmatose", *options, "-s", "{here}"], "return status 0", 60)


def group():
    options = ["-m", "239.72.1.2", "-C", "5", "-S", "64"]
    return both(["mckey", *options, "-b", "{here}"], ["mckey", *options, "-b", "{there}", "-s"], "return status 0")


def streaming(program, size, count):
    options = ["-T", "v", "-p", "{port}", "-S", str(size), "-C", str(count)]
    return both([program, "-b", "{here}", *options], [program, "-s", "{here}", *options], "(?m)^custom")


RSOCKET_SHARE = 0.6


def rsocket_beside_write(env):
    """1 MiB streamed by rsocket beside RC's WRITE of 1 MiB, both with plain `bowline run`, by turns."""
    size, rates = str(1 << 20), {"rstream": [], "ib_write_bw": []}
    options = ["-p", "{port}", "-S", size, "-C", "400", "-I", "3"]
    writes = ["ib_write_bw", "-F", "-p", "{port}", "-s", size, "-n", "2000", "--report_gbits"]
    ways = (("rstream", ["rstream", "-b", "{here}", *options], ["rstream", "-s", "{here}", *options], r"(?m)^custom.* ([\d.]+) +[\d.]+$"),
            ("ib_write_bw", writes, [*writes, "{here}"], r"(?m)^ *1048576 +\d+ +\S+ +([\d.]+)"))
    for _ in range(5):
        for name, server, client, row in ways:
            rate = []
            outcome, why = both(server, client, row, 60, lambda text: ("PASS", rate.append(float(re.search(row, text)[1]))))(env)
            if outcome != "PASS":
                return outcome, f"{name}: {why}"
            rates[name] += rate
    stream, write = (sorted(values)[2] for values in rates.values())
    share = stream / write if write else 0.0
    return ("PASS" if share >= RSOCKET_SHARE else "FAIL"), (f"{share:.2f} of RC's WRITE (bar {RSOCKET_SHARE}): "
                                                            f"{stream:.1f} to {write:.1f} Gbit/s")


def perftest(test):
    options = ["-R", "-F", "-p", "{port}", "-n", "100"]
    return both([test, *options], [test, *options, "{here}"], r"(?m)^ *\d+ +\d+ ")


def checks(quick):
    yield "dlopen gets these libraries", dlopened
    yield "mckey, a multicast group", group()
    yield "rstream of 64 bytes", streaming("rstream", 64, 1000)
    yield "perftest ib_write_bw -R", perftest("ib_write_bw")
    if quick:
        yield "cmtime, 200 connections", cmtime(200)
        return
    yield "cmtime, 1000 connections", cmtime(1000, connections_per_second)
    yield "ucmatose, 10000 connections at once", ucmatose(10000)
    yield "rping, whose server is killed, 5 of 5", peers_killed(5)
    yield "rstream of 1 MiB", streaming("rstream", 1 << 20, 50)
    yield "riostream of 64 bytes", streaming("riostream", 64, 1000)
    yield "riostream of 1 MiB", streaming("riostream", 1 << 20, 50)
    yield "rsocket's stream of 1 MiB beside RC's WRITE", rsocket_beside_write
    for test in ("ib_send_lat", "ib_read_bw"):
        yield f"perftest {test} -R", perftest(test)
