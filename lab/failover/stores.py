"""What happens to the store while programs run, before a NIC dies: nothing may be lost, and what went
wrong must be said."""

import shutil
import socket
import subprocess
import tempfile
import time

from hosts import Loopback, Switched, accounts
from scenes import Pair, Result, break_it, judge, last_line, mend_it

# Longer than everything that happens in between takes on a busy machine.
SECONDS = 12
PATIENCE_S = 6


class Redis:
    """A server without a memory, on a port that stays the same."""

    def __init__(self, env):
        self.dir = env.tmp
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(self.port), "--save", "",
                   "--dir", str(self.dir)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        until("redis-server takes connections", self.entries)

    def kill(self):
        if self.process:
            self.process.kill()
            self.process.wait()

    def entries(self):
        """How many it has, in a text that is not empty; nothing if it does not answer."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as s:
                s.sendall(b"DBSIZE\r\n")
                return s.recv(64).decode().strip()
        except OSError:
            return ""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()


def redis_restarted(env, mode):
    """Killed, and started again with nothing in it."""
    with Redis(env) as redis:
        redis.start()
        with pair_on(env, Loopback(), mode, "send", redis.url) as pair:
            pair.wait_ready()
            redis.kill()
            until_said(pair, "does not answer")
            redis.start()
            until_said(pair, "answers again")
            until("both ends' entries are in the store again", lambda: redis.entries() == ":2")
            return fail_over(env, [pair])


def redis_gone(env, mode):
    """Killed for good: nobody is asked when a NIC dies."""
    with Redis(env) as redis:
        redis.start()
        with pair_on(env, Loopback(), mode, "write", redis.url) as pair:
            pair.wait_ready()
            redis.kill()
            until_said(pair, "does not answer")
            return fail_over(env, [pair])


def redis_late(env, mode):
    """Not there when the programs start: data flows, and backups come with it."""
    with Redis(env) as redis, pair_on(env, Loopback(), mode, "send", redis.url) as pair:
        until_said(pair, "does not answer")
        until("data flows without a store", lambda: received(pair) > 1 << 20)
        before = [account["failover"]["ready"] for account in accounts(pair.net.client) if "failover" in account]
        expect(before == [0], f"connections with a backup but no store: {before}")
        redis.start()
        until_said(pair, "answers again")
        pair.wait_ready(PATIENCE_S)
        return fail_over(env, [pair])


def directory_removed(env, mode):
    """The directory of a file store, with all that is in it."""
    store = env.tmp / "removed"

    def has_entries():
        return len(list(store.rglob("qp+*"))) == 2

    with pair_on(env, Loopback(), mode, "write", f"file://{store}") as pair:
        pair.wait_ready()
        # Ends that know about each other's backups may still be publishing their own.
        until("both ends' entries are in the store", has_entries)
        shutil.rmtree(store)
        until_said(pair, "has lost the entries")
        until("both ends' entries are in the store again", has_entries)
        return fail_over(env, [pair])


def same_name_same_hosts(env, mode):
    """Two jobs of one name on the same NICs: their queue pairs have numbers of their own."""
    url, net = f"file://{env.tmp}/shared", Loopback()
    with pair_on(env, net, mode, "send", url) as first, pair_on(env, net, mode, "write", url) as second:
        until("both have backups", lambda: ready(net.client) == [1, 1])
        return fail_over(env, [first, second])


def same_name_same_addresses(env, mode):
    """Two jobs of one name in two networks with the same addresses: queue pairs have drawn numbers, so both have
    backups, each finds its own peer, and a NIC that dies in one network is nothing to the other."""
    url = f"file://{env.tmp}/twice"
    hosts = [tempfile.mkdtemp(dir=env.tmp) for _ in range(2)]
    with Switched() as net, Switched() as other, pair_on(env, net, mode, "send", url, hosts[0]) as first:
        first.wait_ready()
        with pair_on(env, other, mode, "send", url, hosts[1]) as second:
            second.wait_ready()
            done = fail_over(env, [first], "switch port down")
            texts = second.finish(SECONDS + 20)
        expect(second.codes == [0, 0], f"the second job: exit {second.codes}: {last_line(texts[0])}")
        return done


SCENES = {
    "redis restarted": redis_restarted,
    "redis gone": redis_gone,
    "redis late": redis_late,
    "directory removed": directory_removed,
    "one name, same hosts": same_name_same_hosts,
    "one name, same addresses": same_name_same_addresses,
}


class Failed(Exception):
    """What was expected of a scene and did not happen."""


def store(env, what, mode):
    """Runs a scene."""
    result = Result(f"store, {what}, {mode}", "verify", what, mode)
    start = time.monotonic()
    try:
        for codes, texts in SCENES[what](env, mode):
            if result.outcome == "PASS":
                judge(result, codes, texts)
    except (Failed, subprocess.CalledProcessError) as failure:
        result.outcome, result.why = "FAIL", str(failure)
    result.seconds = time.monotonic() - start
    return result


def pair_on(env, net, mode, kind, url, runtime_dir=None):
    return Pair(env, net, mode, [env.verify, kind, str(SECONDS)], None, url, runtime_dir)


def fail_over(env, pairs, fault="initiator down"):
    """Kills and mends a NIC under all pairs; gives how they ended and what they said."""
    net = pairs[0].net
    break_it(env, net, fault)
    time.sleep(1.5)
    mend_it(env, net, fault)
    texts = [pair.finish(SECONDS + 20) for pair in pairs]
    return [(pair.codes, said) for pair, said in zip(pairs, texts)]


def ready(host):
    return sorted(account["failover"]["ready"] for account in accounts(host) if "failover" in account)


def received(pair):
    return sum(account["nic"]["rx_bytes"] for account in accounts(pair.net.server))


def until_said(pair, words):
    """Waits until both ends have said something."""
    until(f"both say that the store {words!r}", lambda: all(words in text for text in pair.texts()))


def until(what, done):
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        expect(time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}")
        time.sleep(0.02)


def expect(fact, otherwise):
    if not fact:
        raise Failed(otherwise)
