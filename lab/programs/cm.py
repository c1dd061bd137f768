"""Programs that connect by librdmacm, of which nobody can see from outside whether they listen."""

import shutil
import subprocess
import time
from dataclasses import dataclass, field

from pair import explain, free_port, last_line, terminate
from rows import Row

# How long a server takes to listen after it has opened its device.
LISTEN_S = 0.5
# UDP 4791 in the notation of /proc/net/udp.
ROCE_PORT = "12B7"
# Separate addresses: a process of an older Bowline on a shared address would keep messages to
# itself.
HOSTS = {"bl0": "127.0.7.1", "bl1": "127.0.7.2"}


def wait_for_device(host, deadline):
    """Waits until somebody has the RoCE port of an address."""
    address = "".join(f"{int(part):02X}" for part in reversed(host.split(".")))
    while time.monotonic() < deadline:
        with open("/proc/net/udp") as table:
            if any(line.split()[1] == f"{address}:{ROCE_PORT}" for line in table):
                return
        time.sleep(0.02)


@dataclass
class ConnectionPair:
    """A server, and a client that is started once the server listens."""

    name: str
    server: str
    client: str
    result: object = last_line  # what to say of the client's output
    limit_s: float = 30
    bar: str = "programs"
    devices: tuple = ("bl0", "bl1")
    variables: dict = field(default_factory=dict)

    def run(self, env):
        program = self.server.split()[0]
        if not shutil.which(program):
            return Row(self.name, "SKIP", f"{program} is not installed", bar=self.bar)
        start = time.monotonic()
        outcome, why = self.attempt(env)
        return Row(self.name, outcome, why, time.monotonic() - start, self.bar)

    def attempt(self, env):
        where = dict(host=HOSTS[self.devices[0]], port=free_port())
        deadline = time.monotonic() + self.limit_s
        with open(env.tmp / "server.log", "w+") as server_log:
            server = self.spawn(env, self.server.format(**where), self.devices[0], server_log)
            client = None
            try:
                wait_for_device(where["host"], deadline)
                time.sleep(LISTEN_S)
                with open(env.tmp / "client.log", "w+") as client_log:
                    client = self.spawn(env, self.client.format(**where), self.devices[1],
                                        client_log)
                    status = client.wait(max(0.1, deadline - time.monotonic()))
                    client_log.seek(0)
                    said = client_log.read()
                ended = server.wait(max(0.1, deadline - time.monotonic()))
                server_log.seek(0)
                theirs = server_log.read()
                if status == 0 and ended == 0:
                    return "PASS", self.result(said) or last_line(theirs)
                ours, theirs = last_line(said), last_line(theirs)
                return "FAIL", f"client {status}: {ours}; server {ended}: {theirs}"
            except subprocess.TimeoutExpired:
                explain(self.name, [server, client])
                return "FAIL", f"not done after {self.limit_s:.0f} s"
            finally:
                for process in (server, client):
                    if process:
                        terminate(process)

    def spawn(self, env, command, device, log):
        devices = f"{device}={HOSTS[device]}"
        variables = env.variables("preload", BOWLINE_DEVICES=devices, **self.variables)
        return subprocess.Popen(["stdbuf", "-oL", *command.split()], env=variables, stdout=log,
                                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
