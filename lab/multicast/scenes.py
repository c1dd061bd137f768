"""One sender, a switch, members: what each row runs and what must come of it."""

import shutil
import subprocess
import time
from dataclasses import dataclass, field, replace

from listening import wait_listening
from pair import free_port, last_line, terminate
from rows import Row

PATIENCE_S = 90
MESSAGE_BYTES = 65536
MTU_BYTES = 4096


@dataclass
class Scene:
    """A program with so many members behind a switch."""

    name: str
    program: str
    members: int
    messages: int = 500
    seconds: int = 0  # instead of a number of messages
    switch: list = field(default_factory=list)
    kill_after_s: float = 0  # the last member is killed, or the switch
    kills_switch: bool = False
    sender_fails: bool = False
    inner: int = 0  # so many of the first members are behind a switch of their own, a member of the other
    inner_switch: list = field(default_factory=list)
    managed: bool = False  # that switch gets its tables from the other, which knows all members
    kills_inner: bool = False  # that switch
    kills_first: bool = False  # the first member, not the last
    proof: object = None  # says what is wrong with the switch's counters, if anything

    def run(self, env, net):
        start = time.monotonic()
        missing = self.missing()
        if missing:
            return Row(self.name, "SKIP", missing)
        processes = []
        try:
            why = self.play(env, net, processes)
        finally:
            for process in processes:
                terminate(process)
        outcome = "FAIL" if why else "PASS"
        return Row(self.name, outcome, why or self.summary, time.monotonic() - start)

    def missing(self):
        """What is not there and has to be; nothing if all is."""
        return "" if shutil.which(self.program) else f"{self.program} is not installed"

    def play(self, env, net, processes):
        """Runs everything; says what went wrong, if anything did."""
        length = ["-D", str(self.seconds)] if self.seconds else ["-n", str(self.messages)]
        common = [self.program, "-d", "bl0", "-s", str(MESSAGE_BYTES), "-F", *length]

        def start(name, command):
            with open(env.tmp / f"{name}.log", "w") as log:
                process = subprocess.Popen([str(c) for c in command], stdout=log,
                                           stderr=subprocess.STDOUT)
            processes.append(process)
            return process

        def on_device(host, *args):
            device = f"bl0=127.{net}.0.{host}"
            # A switch forwards UDP, and what it costs is compared with UDP.
            return [env.bowline, "run", "--device", device, "--via", "udp", "--", *common, *args]

        ports = [free_port() for _ in range(self.members)]
        members = [start(f"member{i}", on_device(2 + i, "-p", port))
                   for i, port in enumerate(ports)]
        for i, (member, port) in enumerate(zip(members, ports)):
            if not wait_listening(port, member):
                return f"member {i} does not listen: {self.tail(env, f'member{i}')}"
        listen, addr = free_port(), f"127.{net}.0.100"
        at = [f"127.0.0.1:{port}" for port in ports]
        inner, through = None, []
        if self.inner:
            inner_listen = free_port()
            inner = start("inner", [env.bowline, *self.inner_command(f"127.{net}.0.99", at, inner_listen)])
            if not wait_listening(inner_listen, inner):
                return f"the inner switch does not listen: {self.tail(env, 'inner')}"
            at, through = self.outer_members(f"127.{net}.0.99:{inner_listen}", at)
        switch = start("switch", [env.bowline, "switch", addr, "--members", ",".join(at),
                                  "--listen", listen, "--once", *through, *self.switch])
        if not wait_listening(listen, switch):
            return f"the switch does not listen: {self.tail(env, 'switch')}"
        sender = start("sender", on_device(1, "-p", listen, addr))
        self.inner_process = inner
        return self.judge(env, sender, switch, self.kill(switch, inner, members))

    def inner_command(self, addr, at, listen):
        """Starts the inner switch: with members of its own, or managed."""
        if self.managed:
            return ["switch", addr, "--managed", "--listen", listen, *self.inner_switch]
        return ["switch", addr, "--members", ",".join(at[:self.inner]), "--listen", listen, "--once",
                *self.inner_switch]

    def outer_members(self, inner_at, at):
        """What the outer switch has for members, and what it has to know about the inner one."""
        if self.managed:
            return at, ["--through", f"{inner_at}={','.join(at[:self.inner])}"]
        return [inner_at, *at[self.inner:]], []

    def most(self, copies):
        """Without losses there are few retransmissions; with them, whole windows are sent again."""
        return 20 * copies if "--link" in (*self.switch, *self.inner_switch) else 2 * copies

    def kill(self, switch, inner, members):
        """Kills what the row says, when it says; returns the members that are left."""
        if not self.kill_after_s:
            return members
        time.sleep(self.kill_after_s)
        if self.kills_switch:
            switch.kill()
        elif self.kills_inner:
            inner.kill()
        else:
            victim = members[0 if self.kills_first else -1]
            victim.kill()
            members = [m for m in members if m is not victim]
        return members

    def judge(self, env, sender, switch, members):
        try:
            status = sender.wait(timeout=PATIENCE_S)
            if self.sender_fails:
                self.summary = f"the sender ended with status {status}"
                return "" if status != 0 else "the sender did not notice"
            if status != 0:
                return f"sender: status {status}: {self.tail(env, 'sender')}"
            for i, member in enumerate(members):
                if member.wait(timeout=10) != 0:
                    return f"member {i}: status {member.returncode}: {self.tail(env, f'member{i}')}"
            if switch.wait(timeout=10) != 0:
                return f"switch: status {switch.returncode}: {self.tail(env, 'switch')}"
        except subprocess.TimeoutExpired as late:
            return f"still running after {late.timeout:.0f} s"
        self.summary = last_line((env.tmp / "sender.log").read_text())
        found = counters(env)
        if self.inner and not self.managed:
            self.inner_process.wait(timeout=10)
            found["inner"] = counters(env, "inner")
        return self.proof(self, found) if self.proof else ""

    def tail(self, env, name):
        return last_line((env.tmp / f"{name}.log").read_text(errors="replace"))


@dataclass
class Perf(Scene):
    """`bowline perf`, whose set-up is Bowline's own: through a switch, or copied in the sender's port."""

    replicate: str = ""  # without a switch, by this
    sender: list = field(default_factory=list)  # more arguments
    member_fault: str = ""  # what happens to the first member's device while it runs
    v6: bool = False  # in a network namespace with addresses of IPv6
    restarts: bool = False  # the switch is killed, and another one takes its place

    def play(self, env, net, processes):
        self.inside = []
        if self.v6:
            namespace = own_network(net)
            processes.append(namespace)
            self.inside = ["nsenter", "-t", str(namespace.pid), "-U", "-n", "--preserve-credentials"]
        played = self.play_once(env, net, processes)
        if self.restarts and not played:
            # The address is free again, and the next sender is served.
            again = replace(self, restarts=False, seconds=0)
            played = again.play(env, net, processes)
            self.summary = getattr(again, "summary", "")
        return played

    def addr(self, net, host):
        return f"fd00:{net}::{host}" if self.v6 else f"127.{net}.0.{host}"

    def start(self, env, processes, name, *command):
        with open(env.tmp / f"{name}.log", "w") as log:
            process = subprocess.Popen([str(c) for c in (*self.inside, env.bowline, *command)],
                                       stdout=log, stderr=subprocess.STDOUT)
        processes.append(process)
        return process

    def play_once(self, env, net, processes):
        def start(*args):
            return self.start(env, processes, *args)

        def at(host, port):
            addr = self.addr(net, host)
            return f"[{addr}]:{port}" if self.v6 else f"{addr}:{port}"

        # Loopback needs no authentication; other addresses do.
        trust = ["--insecure"] if self.v6 else []
        ports = [free_port() for _ in range(self.members)]
        members = [start(f"member{i}", "perf", self.program, "-d", self.addr(net, 2 + i), "-p", port,
                         *trust)
                   for i, port in enumerate(ports)]
        for i, (member, port) in enumerate(zip(members, ports)):
            if not wait_listening(port, member):
                return f"member {i} does not listen: {self.tail(env, f'member{i}')}"
        to = ",".join(at(2 + i, port) for i, port in enumerate(ports))
        length = ["-D", f"{self.seconds}s"] if self.seconds else ["-n", self.messages]
        common = ["-d", self.addr(net, 1), "-s", MESSAGE_BYTES, *length, "-t", 32, *trust,
                  *self.sender]
        if self.replicate:
            sender = start("sender", "perf", self.program, "--to", to, "--replicate",
                           self.replicate, *common)
            # There is nothing else to wait for.
            return self.judge(env, sender, sender, members)
        listen, inner, through = free_port(), None, []
        if self.inner:
            inner_listen = free_port()
            inner = start("inner", *self.inner_command(self.addr(net, 99), to.split(","), inner_listen))
            if not wait_listening(inner_listen, inner):
                return f"the inner switch does not listen: {self.tail(env, 'inner')}"
            left, through = self.outer_members(at(99, inner_listen), to.split(","))
            to = ",".join(left)
        once = [] if self.restarts else ["--once"]
        switch = start("switch", "switch", self.addr(net, 100), "--members", to, "--listen", listen,
                       *once, *through, *self.switch)
        if not wait_listening(listen, switch):
            return f"the switch does not listen: {self.tail(env, 'switch')}"
        sender = start("sender", "perf", self.program, at(100, listen), *common)
        if self.member_fault and not self.inject(env, net):
            return f"the fault of member 0 was refused: {self.member_fault}"
        if self.restarts:
            return self.kill_switch(env, sender, switch)
        self.inner_process = inner
        return self.judge(env, sender, switch, self.kill(switch, inner, members))

    def inject(self, env, net):
        """Makes the first member's device fail, once it is there."""
        command = [str(env.bowline), "fault", self.addr(net, 2), self.member_fault]
        deadline = time.monotonic() + PATIENCE_S
        while subprocess.run(command, capture_output=True, check=False).returncode != 0:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def kill_switch(self, env, sender, switch):
        """The sender of a switch that is gone must not believe that anything was delivered."""
        time.sleep(self.kill_after_s)
        switch.kill()
        switch.wait()
        try:
            status = sender.wait(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            return "the sender did not notice that the switch is gone"
        return "" if status != 0 else "the sender ended well although the switch was killed"

    def missing(self):
        if not self.v6:
            return ""
        network = own_network(0)
        if not network:
            return "no user and network namespaces with IPv6 here"
        terminate(network)
        return ""


def own_network(net):
    """A process in a network of its own with the addresses of IPv6 that a scene needs; none if that is not allowed."""
    if not shutil.which("unshare") or not shutil.which("nsenter") or not shutil.which("ip"):
        return None
    hosts = " ".join(f"fd00:{net}::{host}" for host in (*range(1, 10), 99, 100))
    script = (f"ip link set lo up && for a in {hosts}; do ip -6 addr add $a/128 dev lo nodad || exit 1; done "
              "&& echo ready && exec sleep 600")
    process = subprocess.Popen(["unshare", "-Urn", "sh", "-c", script], stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    if process.stdout.readline().strip() == "ready":
        return process
    terminate(process)
    return None


def counters(env, name="switch"):
    """What a switch printed when it ended."""
    found = {}
    for line in (env.tmp / f"{name}.log").read_text().splitlines():
        words = line.split()
        if len(words) == 2 and words[1].isdigit():
            found[words[0]] = int(words[1])
        elif "evicted member" in line:
            found["said who"] = 1
    return found


def copied(scene, found):
    """Every packet went to every member, and acknowledgements became fewer."""
    packets = scene.messages * (MESSAGE_BYTES // MTU_BYTES)
    if found.get("data_in", 0) < packets:
        return f"{found.get('data_in', 0)} packets came to the switch, not {packets}"
    if found.get("copies_out", 0) < packets * scene.members:
        return f"{found.get('copies_out', 0)} copies of {packets} packets"
    if found.get("acks_out", 0) >= found.get("acks_in", 0) and scene.members > 1:
        return "acknowledgements were not merged"
    return ""


def copied_twice(scene, found):
    """The outer switch made one copy for the inner one, which made one for each of its members."""
    packets = scene.messages * (MESSAGE_BYTES // MTU_BYTES)
    branches = scene.members - scene.inner + 1
    for name, found, copies in (("outer", found, branches), ("inner", found["inner"], scene.inner)):
        if found.get("copies_out", 0) < packets * copies:
            return f"{found.get('copies_out', 0)} copies at the {name} switch, not {packets * copies}"
        if found.get("copies_out", 0) > scene.most(packets * copies):
            return f"{found.get('copies_out', 0)} copies at the {name} switch of {packets} packets"
    return ""


def copied_through(scene, found):
    """The root made one copy for all that is behind the managed switch."""
    packets = scene.messages * (MESSAGE_BYTES // MTU_BYTES)
    copies = packets * (scene.members - scene.inner + 1)
    if not copies <= found.get("copies_out", 0) <= scene.most(copies):
        return f"{found.get('copies_out', 0)} copies at the root, not {copies}"
    return ""


def repaired_twice(scene, found):
    """Packets were lost between the switches, and all came in the end."""
    return copied_twice(scene, found) or ("" if found.get("naks_in") else "nothing was lost")


def evicted_inside(_scene, found):
    """The inner switch said who left, and the outer one has kept all that it has."""
    if found.get("evicted"):
        return "the outer switch evicted the inner one"
    return evicted(_scene, found["inner"])


def repaired(scene, found):
    """There were losses, and members that had a packet did not get it again."""
    missing = [name for name in ("naks_in", "filtered") if not found.get(name)]
    return copied(scene, found) or (f"no {missing[0]}: nothing was lost" if missing else "")


def spared(scene, found):
    """One member lost packets, and the others did not get them again."""
    missing = [name for name in ("naks_in", "filtered") if not found.get(name)]
    return f"no {missing[0]}: nothing was lost" if missing else ""


def evicted(_scene, found):
    """The switch said who left."""
    if not found.get("evicted") or not found.get("said who"):
        return "nobody was evicted"
    return ""


def scenes(quick):
    """The rows; few of them if there is little time."""
    rows = [
        Scene("ib_write_bw to 2", "ib_write_bw", 2, proof=copied),
        Scene("ib_send_bw to 3", "ib_send_bw", 3, proof=copied),
        Scene("ib_write_bw to 3, 1 % loss", "ib_write_bw", 3, switch=["--link", "loss=1%,seed=7"],
              proof=repaired),
        Scene("a member is killed and evicted", "ib_write_bw", 3, seconds=4, kill_after_s=3,
              switch=["--policy", "evict=200ms"], proof=evicted),
        Perf("bowline perf write-bw to 3", "write-bw", 3, proof=copied),
        Perf("bowline perf write-bw to 3, in the port", "write-bw", 3, replicate="port"),
        Perf("bowline perf write-bw to 3 by IP multicast", "write-bw", 3, replicate="multicast"),
        Perf("ec-mds to 3, in the port, 1 % loss", "write-bw", 3, replicate="port",
             sender=["--scheme", "ec-mds", "--link", "loss=1%,seed=5"]),
        Perf("bowline perf write-bw to 2 over IPv6", "write-bw", 2, v6=True, proof=copied),
        Perf("1 % loss on one branch of 3", "write-bw", 3, seconds=4, member_fault="loss=1%",
             proof=spared),
        Scene("ib_write_bw to 3 over two levels", "ib_write_bw", 3, inner=2, proof=copied_twice),
        Perf("bowline perf write-bw to 3 over two levels, 1 % loss", "write-bw", 3, inner=2,
             switch=["--link", "loss=1%,seed=9"], proof=repaired_twice),
        Scene("ib_write_bw to 3 through a managed switch", "ib_write_bw", 3, inner=2, managed=True,
              proof=copied_through),
        Perf("bowline perf write-bw to 4 through a managed switch, 1 % loss", "write-bw", 4, inner=3,
             managed=True, inner_switch=["--link", "loss=1%,seed=9"], proof=copied_through),
    ]
    if quick:
        return rows
    return rows + [
        Scene("ib_write_bw to 1", "ib_write_bw", 1, proof=copied),
        Scene("ib_write_bw to 7", "ib_write_bw", 7, messages=200, proof=copied),
        Scene("ib_send_bw to 2, 0.1 % loss", "ib_send_bw", 2, messages=2000,
              switch=["--link", "loss=0.1%,seed=7"], proof=repaired),
        Scene("ib_send_bw to 2 by the paper's rules", "ib_send_bw", 2,
              switch=["--merge", "paper"], proof=copied),
        Scene("a member is killed, the group fails", "ib_write_bw", 2, seconds=6, kill_after_s=3,
              sender_fails=True),
        Scene("the switch is killed, the sender notices", "ib_write_bw", 2, seconds=6, kill_after_s=3,
              kills_switch=True, sender_fails=True),
        Perf("bowline perf send-bw to 2, 1 % loss", "send-bw", 2, switch=["--link", "loss=1%,seed=3"],
             proof=repaired),
        Perf("bowline perf send-bw to 2, in the port", "send-bw", 2, replicate="port"),
        Perf("bowline perf write-bw to 2 by fan-out", "write-bw", 2, replicate="fan-out"),
        Perf("bowline perf write-bw to 3 by a chain", "write-bw", 3, replicate="chain"),
        Perf("bowline perf write-bw to 3 over IPv6, in the port", "write-bw", 3, v6=True,
             replicate="port"),
        Perf("sr-nack to 3, in the port, 1 % loss", "write-bw", 3, replicate="port",
             sender=["--scheme", "sr-nack", "--link", "loss=1%,seed=6"]),
        Perf("ec-mds to 3 by fan-out, 1 % loss", "write-bw", 3, replicate="fan-out",
             sender=["--scheme", "ec-mds", "--link", "loss=1%,seed=7"]),
        Perf("the switch is killed and another one takes its place", "write-bw", 2, seconds=30,
             kill_after_s=2, restarts=True, proof=copied),
        Scene("ib_send_bw to 4 over two levels, 0.1 % loss", "ib_send_bw", 4, inner=2, messages=2000,
              switch=["--link", "loss=0.1%,seed=8"], inner_switch=["--link", "loss=0.1%,seed=2"],
              proof=repaired_twice),
        Scene("an inner switch is killed, the sender notices", "ib_write_bw", 3, inner=2, seconds=6,
              kill_after_s=3, kills_inner=True, sender_fails=True),
        Scene("a member of an inner switch is killed and evicted there", "ib_write_bw", 3, inner=2,
              seconds=4, kill_after_s=3, kills_first=True, inner_switch=["--policy", "evict=200ms"],
              proof=evicted_inside),
        Scene("a managed switch is killed, the sender notices", "ib_send_bw", 3, inner=2, managed=True,
              seconds=6, kill_after_s=3, kills_inner=True, sender_fails=True),
        Perf("bowline perf write-bw to 3 through a managed switch over IPv6", "write-bw", 3, inner=2,
             managed=True, v6=True, switch=["--insecure"], inner_switch=["--insecure"],
             proof=copied_through),
        Perf("an inner switch is killed, bowline perf notices", "write-bw", 3, inner=2, seconds=30,
             kill_after_s=2, kills_inner=True, sender_fails=True),
    ]
