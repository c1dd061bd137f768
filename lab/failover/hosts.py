"""Two hosts with two NICs each: on loopback, or as network namespaces behind two switches."""

import ctypes
import json
import os
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field

CLONE_NEWNET = 0x40000000


@dataclass
class Host:
    addrs: tuple  # of the first NIC and of the backup
    namespace: str = ""

    def command(self, env, mode, store_url, program):
        """How to start a program on the host."""
        run = [env.bowline, "run", "--device", f"bl0={self.addrs[0]}", "--backup", f"bl0={self.addrs[1]}",
               "--via", env.via, f"--failover={mode}", "--store", store_url, "--report", "--json", "--", *program]
        inside = ["ip", "netns", "exec", self.namespace] if self.namespace else []
        return [str(part) for part in inside + run]


class Loopback:
    """Addresses of 127.0.0.0/8; faults are ordered by `bowline fault`."""

    name = "loopback"
    server = Host(("127.0.0.11", "127.0.0.12"))
    client = Host(("127.0.0.21", "127.0.0.22"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Switched:
    """Namespaces whose NICs are veth pairs, each pair of rails on a bridge of its own."""

    name = "namespaces"
    count = 0

    def __init__(self):
        Switched.count += 1
        tag = f"bl{os.getpid() % 10000}n{Switched.count}"
        self.switches = f"{tag}s"
        self.server = Host(("10.77.0.1", "10.77.1.1"), f"{tag}a")
        self.client = Host(("10.77.0.2", "10.77.1.2"), f"{tag}b")

    def __enter__(self):
        try:
            self.build()
        except subprocess.CalledProcessError:
            self.__exit__()
            raise
        return self

    def build(self):
        for namespace in (self.switches, self.server.namespace, self.client.namespace):
            ip("netns", "add", namespace)
            ip("-n", namespace, "link", "set", "lo", "up")
        for rail in (0, 1):
            bridge = f"br{rail}"
            ip("-n", self.switches, "link", "add", bridge, "type", "bridge")
            ip("-n", self.switches, "link", "set", bridge, "up")
            for host, letter in ((self.server, "a"), (self.client, "b")):
                port, nic = f"{letter}{rail}", f"nic{rail}"
                ip("-n", self.switches, "link", "add", port, "type", "veth", "peer", "name", nic,
                   "netns", host.namespace)
                ip("-n", self.switches, "link", "set", port, "master", bridge, "up")
                ip("-n", host.namespace, "address", "add", f"{host.addrs[rail]}/24", "dev", nic)
                ip("-n", host.namespace, "link", "set", nic, "up")

    def port(self, letter, state):
        """A switch port of the first rail: `a` is the server's, `b` the client's."""
        ip("-n", self.switches, "link", "set", f"{letter}0", state)

    def __exit__(self, *_):
        for namespace in (self.server.namespace, self.client.namespace, self.switches):
            subprocess.run(["ip", "netns", "delete", namespace], stderr=subprocess.DEVNULL, check=False)


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def can_switch():
    """Whether namespaces and bridges can be made here; if not, why."""
    if os.geteuid() != 0:
        return "needs root"
    try:
        with Switched():
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or str(error).encode()
        return said.decode(errors="replace").strip()[:80]


@dataclass
class Sampler:
    """Reads the counters of a host's devices ten times a second, as `bowline devinfo` does."""

    host: Host
    direction: str  # tx or rx
    samples: list = field(default_factory=list)  # (seconds, bytes of the first NIC, of the backup)
    stop: threading.Event = field(default_factory=threading.Event)

    def start(self):
        self.begin = time.monotonic()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def end(self):
        self.stop.set()
        self.thread.join()
        return self.samples

    def run(self):
        enter(self.host.namespace)
        while not self.stop.wait(0.1):
            now = time.monotonic() - self.begin
            counts = {account["addr"]: account["nic"][f"{self.direction}_bytes"]
                      for account in accounts(self.host)}
            if counts:
                self.samples.append((now, *(counts.get(addr, 0) for addr in self.host.addrs)))


def enter(namespace):
    """Takes the calling thread, and no other, into a namespace: abstract sockets are the namespace's own."""
    if namespace:
        with open(f"/run/netns/{namespace}") as handle:
            ctypes.CDLL(None, use_errno=True).setns(handle.fileno(), CLONE_NEWNET)


def wait_ready(host, process, limit_s):
    """Waits until a connection of the host has a backup, or the process has ended."""
    def look():
        enter(host.namespace)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and process.poll() is None:
            if any(account.get("failover", {}).get("ready") for account in accounts(host)):
                return
            time.sleep(0.02)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()


def accounts(host):
    """What the live devices of a host say of themselves; the calling thread must be on it."""
    said = [ask(name) for name in live()]
    return [account for account in said if account and account.get("addr") in host.addrs]


def live():
    prefix = f"@bowline/{os.geteuid()}/"
    with open("/proc/thread-self/net/unix") as table:
        names = {line.split()[7] for line in table if len(line.split()) > 7}
    return [name[1:] for name in names if name.startswith(prefix)]


def ask(name):
    try:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(1)
            s.connect("\0" + name)
            s.sendall(b"counters\n")
            s.shutdown(socket.SHUT_WR)
            text = b"".join(iter(lambda: s.recv(65536), b""))
        return json.loads(text) if text else None
    except (OSError, ValueError):
        return None
