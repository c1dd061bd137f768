"""What is run, and what must come of it."""

import json
import subprocess
import threading
import time
from pathlib import Path

from hosts import Failed, ip, kill, last_line, spawn
from listening import wait_listening

PORT = 18515
# The server's port and the client's.
PAIRS = (("xdp", "xdp"), ("xdp", "udp"), ("udp", "xdp"))


def plan(verify):
    """(name, function of the hosts that returns a text) of every row."""
    for pair in PAIRS:
        for kind in ("write", "send", "read"):
            yield f"every byte, {kind}, {named(pair)}", verified(verify, kind, pair)
    # The last pair is for comparison.
    for pair in (*PAIRS, ("udp", "udp")):
        yield f"bandwidth, write, {named(pair)}", perf("write-bw", pair, "-D", "1s")
    for test in ("send-bw", "read-bw"):
        yield f"bandwidth, {test[:4]}, xdp to xdp", perf(test, PAIRS[0], "-D", "1s")
    yield "latency, write, xdp to xdp", perf("write-lat", PAIRS[0], "-n", "2000")
    for pair in PAIRS:
        yield f"bandwidth, write, IPv6, {named(pair)}", perf("write-bw", pair, "-n", "500", v6=True)
    yield "one packet in 200 lost", perf("write-bw", PAIRS[0], "-n", "500", "--link", "loss=0.5%")
    yield "an interface down for 0.2 s", unplugged
    yield "the host keeps its NIC", pinged
    yield "a switch copies for two members", switched()
    yield "the same, one packet in 200 lost", switched("--link", "loss=0.5%,seed=4")
    yield "nothing is left of a killed process", killed
    yield "nothing is left of a killed switch", killed_switch
    yield "a second port is refused", second
    yield "loopback is refused", loopback


def perform(name, row, hosts):
    start = time.monotonic()
    try:
        outcome, text = "PASS", row(hosts)
    except Failed as error:
        outcome, text = "FAIL", str(error)
    except Skipped as error:
        outcome, text = "SKIP", str(error)
    seconds = round(time.monotonic() - start, 2)
    return {"name": name, "outcome": outcome, "text": text, "seconds": seconds}


class Skipped(Exception):
    """A row that cannot be had here."""


def named(pair):
    server, client = pair
    return f"{client} to {server}"


def must(condition, otherwise):
    if not condition:
        raise Failed(otherwise)


def verified(verify, kind, pair):
    """Numbered messages whose every byte the receiver looks at, by a program that knows no Bowline."""
    def row(hosts):
        if verify is None:
            raise Skipped("verify.c cannot be compiled here (gcc, libibverbs-dev)")
        sides = []
        for host, via, more in ((hosts.server, pair[0], []), (hosts.client, pair[1], [hosts.server.addr])):
            sides.append([hosts.bowline, "run", "--device", f"bl0={host.addr}", "--via", via, "--",
                          verify, kind, "1", str(PORT), *more])
        return last_line(hosts.pair(*sides, PORT)[0])
    return row


def perf(test, pair, *options, v6=False):
    def row(hosts):
        server, client = hosts.server, hosts.client
        ours, theirs = (client.addr6, server.addr6) if v6 else (client.addr, server.addr)
        serve = [hosts.bowline, "perf", test, "-d", theirs, "--via", pair[0], "--insecure"]
        ask = [hosts.bowline, "perf", test, theirs, "-d", ours, "--via", pair[1], "--insecure", "--json", *options]
        report = json.loads(last_json(hosts.pair(serve, ask, PORT)[0]))
        expected = "xdp, copy" if pair[1] == "xdp" else "udp"
        must(report["via"] == expected, f"went by {report['via']}, not by {expected}")
        result = report["results"][0]
        if "t_typical_us" in result:
            return f"{result['t_typical_us']:.1f} us, 99 % within {result['p99_us']:.1f}"
        must(result["bw_average_gbps"] > 0.02, f"{result['bw_average_gbps']} Gbit/s")
        return f"{result['bw_average_gbps']:.2f} Gbit/s"
    return row


class Switching:
    """A switch with an AF_XDP port on the server's host, and two members on the client's, beside the sender.

    A port takes what the NIC receives. So whoever talks to the switch is at the other end of the cable.
    """

    MEMBERS = (4, 5)

    def __init__(self, hosts, *options):
        self.hosts, self.options, self.processes = hosts, options, []

    def __enter__(self):
        bowline, client = self.hosts.bowline, self.hosts.client
        try:
            for last in self.MEMBERS:
                addr = f"10.78.0.{last}"
                ip("-n", client.namespace, "address", "replace", f"{addr}/24", "dev", "nic")
                serve = [bowline, "perf", "write-bw", "-d", addr, "-p", PORT + last, "--insecure"]
                self.processes.append(spawn(client.inside(*serve)))
                wait_listening(PORT + last, self.processes[-1])
            to = ",".join(f"10.78.0.{last}:{PORT + last}" for last in self.MEMBERS)
            forward = [bowline, "switch", self.hosts.server.addr, "--members", to, "--via", "xdp", "--once",
                       *self.options]
            self.switch = spawn(self.hosts.server.inside(*forward))
            self.processes.append(self.switch)
            wait_listening(PORT, self.switch)
            must(self.hosts.server.has_program(), "no program is attached")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            kill(process)

    def sender(self, *options):
        client = self.hosts.client
        ask = [self.hosts.bowline, "perf", "write-bw", self.hosts.server.addr, "-d", client.addr, "--insecure",
               "--json", *options]
        self.processes.append(spawn(client.inside(*ask)))
        return self.processes[-1]


def switched(*options):
    """Members check the ICRC of every packet, and the sender's completions mean that both have it."""
    def row(hosts):
        with Switching(hosts, *options) as switching:
            try:
                out, err = switching.sender("-n", "500").communicate(timeout=15)
                said, _ = switching.switch.communicate(timeout=5)
            except subprocess.TimeoutExpired:
                raise Failed("did not end") from None
            must(out.strip(), last_line(err))
            result = json.loads(last_json(out))["results"][0]
        must("xdp, copy" in said, f"the switch went by {said.splitlines()[0]}")
        words = [line.split() for line in said.splitlines()]
        counts = {line[0]: int(line[1]) for line in words if len(line) == 2 and line[1].isdigit()}
        data, copies = counts.get("data_in", 0), counts.get("copies_out", 0)
        must(data >= 500 * 64 and copies >= 2 * 500 * 64, f"{data} packets became {copies}")
        must(not hosts.server.has_program(), "its program is still attached")
        return f"{data} packets became {copies}, {result['bw_average_gbps']:.2f} Gbit/s to each"
    return row


def killed_switch(hosts):
    with Switching(hosts) as switching:
        switching.sender("-D", "20s")
        time.sleep(1)
        kill(switching.switch)
        deadline = time.monotonic() + 2
        while hosts.server.has_program():
            must(time.monotonic() < deadline, "its program is still attached")
            time.sleep(0.02)
    return "its program is gone, and the next one opens: " + switched()(hosts)


def last_json(text):
    lines = [line for line in text.splitlines() if line.startswith("{")]
    must(lines, "printed no result")
    return lines[-1]


class Waiting:
    """A server with an AF_XDP port that waits for its client's first message."""

    def __init__(self, hosts):
        self.hosts = hosts

    def __enter__(self):
        bowline, server, client = self.hosts.bowline, self.hosts.server, self.hosts.client
        serve = [bowline, "perf", "write-bw", "-d", server.addr, "--via", "xdp", "--insecure"]
        ask = [bowline, "perf", "write-bw", server.addr, "-d", client.addr, "-D", "20s", "--insecure"]
        self.server = spawn(server.inside(*serve))
        wait_listening(PORT, self.server)
        self.client = spawn(client.inside(*ask))
        deadline = time.monotonic() + 5
        while not server.has_program():
            if time.monotonic() > deadline:
                self.__exit__()
                raise Failed("no program is attached")
            time.sleep(0.02)
        return self

    def __exit__(self, *_):
        for process in (self.client, self.server):
            kill(process)


def pinged(hosts):
    """TCP and other UDP get past the program: the kernel answers while the port is open."""
    with Waiting(hosts):
        probe = Path(__file__).with_name("probe.py")
        server = spawn(hosts.server.inside("python3", probe, "echo", hosts.server.addr))
        try:
            must(server.stdout.readline() == "ready\n", "the echo server did not start")
            done = hosts.client.run("python3", probe, "ask", hosts.server.addr)
        finally:
            kill(server)
    must(done.returncode == 0, last_line(done.stderr))
    return done.stdout.strip()


def unplugged(hosts):
    """The port outlives it, finds the neighbour again, and so does the connection."""
    def pull():
        time.sleep(0.7)
        for state, pause in (("down", 0.2), ("up", 0)):
            ip("-n", hosts.client.namespace, "link", "set", "nic", state)
            time.sleep(pause)

    puller = threading.Thread(target=pull)
    puller.start()
    try:
        return perf("write-bw", PAIRS[0], "-D", "2s")(hosts)
    finally:
        puller.join()


def killed(hosts):
    with Waiting(hosts) as waiting:
        kill(waiting.server)
        deadline = time.monotonic() + 2
        while hosts.server.has_program():
            must(time.monotonic() < deadline, "its program is still attached")
            time.sleep(0.02)
    return "its program is gone, and the next port opens: " + perf("write-bw", PAIRS[0], "-n", "200")(hosts)


def second(hosts):
    """The message must say what to do."""
    with Waiting(hosts):
        done = refused_perf(hosts, hosts.server, hosts.server.addr)
    must("does not share" in done, done)
    return done


def loopback(hosts):
    done = refused_perf(hosts, hosts.server, "127.0.0.1")
    must("no Ethernet interface" in done, done)
    return done


def refused_perf(hosts, host, addr):
    """What a client says whose port cannot be opened: it gets as far as a server's TCP port."""
    port = PORT + 1
    server = spawn(host.inside(hosts.bowline, "perf", "write-bw", "-d", "127.0.0.1", "-p", port))
    try:
        wait_listening(port, server)
        done = host.run(hosts.bowline, "perf", "write-bw", "127.0.0.1", "-d", addr, "-p", port, "--via", "xdp")
    finally:
        kill(server)
    must(done.returncode != 0, "was not refused")
    said = [line for line in done.stderr.splitlines() if not line.startswith("hint:")]
    return last_line("\n".join(said))
