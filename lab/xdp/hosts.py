"""Two hosts with a cable between them: network namespaces and a veth pair."""

import os
import signal
import socket
import subprocess
import time

from listening import wait_listening

AF_XDP = 44


class Failed(Exception):
    """A row that gave no result."""


class Host:
    def __init__(self, namespace, last):
        self.namespace = namespace
        self.addr = f"10.78.0.{last}"
        self.addr6 = f"fd78::{last}"

    def inside(self, *command):
        return ["ip", "netns", "exec", self.namespace, *(str(part) for part in command)]

    def run(self, *command, timeout=20):
        return subprocess.run(self.inside(*command), capture_output=True, text=True, check=False,
                              timeout=timeout)

    def is_up(self):
        return "state UP" in self.run("ip", "link", "show", "dev", "nic").stdout

    def has_program(self):
        """Whether an XDP program is attached to its NIC."""
        return "xdp" in self.run("ip", "link", "show", "dev", "nic").stdout


class Hosts:
    def __init__(self, bowline):
        self.bowline = bowline
        tag = f"blx{os.getpid() % 100000}"
        self.server, self.client = Host(f"{tag}a", 1), Host(f"{tag}b", 2)

    def __enter__(self):
        try:
            for host in (self.server, self.client):
                ip("netns", "add", host.namespace)
            ip("link", "add", "nic", "netns", self.server.namespace, "type", "veth", "peer", "name", "nic",
               "netns", self.client.namespace)
            for host in (self.server, self.client):
                within = ("-n", host.namespace)
                ip(*within, "address", "add", f"{host.addr}/24", "dev", "nic")
                ip(*within, "address", "add", f"{host.addr6}/64", "dev", "nic", "nodad")
                ip(*within, "link", "set", "lo", "up")
                ip(*within, "link", "set", "nic", "up")
            # The kernel reports this some time after both ends are up, and programs look at the
            # port's state.
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline and not all(h.is_up() for h in (self.server, self.client)):
                time.sleep(0.02)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for host in (self.server, self.client):
            subprocess.run(["ip", "netns", "delete", host.namespace], stderr=subprocess.DEVNULL, check=False)

    def pair(self, server, client, port):
        """Runs a server and then its client; the output of both, client first."""
        processes = []
        try:
            processes.append(spawn(self.server.inside(*server)))
            wait_listening(port, processes[0])
            processes.append(spawn(self.client.inside(*client)))
            texts = [process.communicate(timeout=15) for process in reversed(processes)]
        except subprocess.TimeoutExpired:
            raise Failed("did not end") from None
        finally:
            for process in processes:
                kill(process)
        for process, (_, stderr) in zip(reversed(processes), texts):
            if process.returncode != 0:
                raise Failed(f"status {process.returncode}: {last_line(stderr)}")
        return [stdout for stdout, _ in texts]

def spawn(command):
    # Use a process group, so that all of it can be ended, but not a session: the kernel schedules
    # sessions as groups, and on a busy machine Linux 6.18 leaves out for seconds a group that spins
    # and naps.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            stdin=subprocess.DEVNULL, process_group=0)


def kill(process):
    """Ends a process that still runs, and what it has started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "nothing said why"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def refusal():
    """Why nothing can be run here; empty if it can."""
    if os.geteuid() != 0:
        return "namespaces and AF_XDP need root"
    try:
        socket.socket(AF_XDP, socket.SOCK_RAW).close()
    except OSError as error:
        return f"no AF_XDP sockets here: {error.strerror}"
    try:
        with Hosts(None):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or str(error)
        return f"no namespaces with veth pairs: {said.strip()[:120]}"
