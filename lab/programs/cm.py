"""Programs that connect by librdmacm, of which nobody can see from outside whether they listen."""

import shutil
import subprocess
import time
from dataclasses import dataclass, field

from pair import explain, free_port, last_line, terminate
from rows import Row

# Servers listen after this long.
START_S = 5
HOSTS = {"bl0": "127.0.0.1", "bl1": "127.0.0.2"}


@dataclass
class ConnectionPair:
    """A server and a client. The client is refused until the server listens, and tries again."""

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
        patience = time.monotonic() + START_S
        with open(env.tmp / "server.log", "w+") as server_log:
            server = self.spawn(env, self.server.format(**where), self.devices[0], server_log)
            client = None
            try:
                while True:
                    with open(env.tmp / "client.log", "w+") as client_log:
                        client = self.spawn(env, self.client.format(**where), self.devices[1],
                                            client_log)
                        status = client.wait(max(0.1, deadline - time.monotonic()))
                        client_log.seek(0)
                        said = client_log.read()
                    if status == 0 or server.poll() is not None or time.monotonic() > patience:
                        break
                    time.sleep(0.1)
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
