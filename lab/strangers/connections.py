"""Programs of librdmacm: how fast they connect, groups, sockets over RDMA."""

import os
import re
import signal
import subprocess
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


def peer_killed(env):
    """The client of a server that was killed hears of it within its timeouts."""
    need("rping")
    port = str(free_port())
    server = start(env.under_bowline(["rping", "-s", "-a", HERE, "-p", port], HERE))
    time.sleep(1)
    client = start(env.under_bowline(["rping", "-c", "-a", HERE, "-p", port, "-C", "1000000"], THERE))
    try:
        time.sleep(1)
        if client.poll() is not None:
            return "FAIL", "the client ended before its server"
        os.killpg(server.pid, signal.SIGKILL)
        began = time.monotonic()
        client.wait(30)
        return "PASS", f"heard after {time.monotonic() - began:.1f} s"
    except subprocess.TimeoutExpired:
        return "FAIL", "the client waits for ever"
    finally:
        for process in (client, server):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
    yield "rping, whose server is killed", peer_killed
    yield "rstream of 1 MiB", streaming("rstream", 1 << 20, 50)
    yield "riostream of 64 bytes", streaming("riostream", 64, 1000)
    yield "riostream of 1 MiB", streaming("riostream", 1 << 20, 50)
    for test in ("ib_send_lat", "ib_read_bw"):
        yield f"perftest {test} -R", perftest(test)
