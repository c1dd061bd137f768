"""What is done to Bowline, and what must come of it."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

from listening import listens
from rig import Failed, Skipped, goodput, must, needs_root, wait_for

NOBODY = 65534
SHORT = ("-n", "400")


def plan():
    """(name, function of the rig that returns a text) of every scene."""
    yield "as it should be", lambda rig: goodput(rig.pair(*SHORT))
    yield "full shared memory", full_shared_memory
    yield "shared memory with room for the table alone", little_shared_memory
    yield "no shared memory", no_shared_memory
    yield "another user has taken the runtime directory", squatted
    yield "full disk, a capture", full_disk_capture
    yield "full disk, a report", full_disk_report
    yield "full disk, files received", full_disk_recv
    yield "16 file descriptors", few_descriptors
    yield "16 file descriptors, a verbs program", few_descriptors_verbs
    for end in ("server", "client"):
        yield f"the {end} stopped for a moment", stopped(end, 0.3, True)
        yield f"the {end} stopped for longer than retries last", stopped(end, 8.0, False)
    yield "an interface removed and added", unplugged
    yield "a clock that jumps", jumping_clock
    yield "a tenth of a core", little_cpu
    yield "a user without privileges", unprivileged
    yield "a user without privileges, a verbs program", unprivileged_verbs
    yield "a program that forks", lambda rig: victim(rig, "fork")
    yield "a program that execs itself", lambda rig: victim(rig, "exec")
    yield "a program that closes all descriptors", lambda rig: victim(rig, "close")
    yield "a program with a signalfd", lambda rig: victim(rig, "signalfd")
    yield "a program that exits in a signal handler", exits
    yield "a stranger has a device's control socket", impostor


def perform(name, scene, rig):
    start = time.monotonic()
    try:
        outcome, text = "PASS", scene(rig)
    except Failed as error:
        outcome, text = "FAIL", str(error)
    except Skipped as error:
        outcome, text = "SKIP", str(error)
    finally:
        rig.end_all()
    seconds = round(time.monotonic() - start, 2)
    return {"name": name, "outcome": outcome, "text": text, "seconds": seconds}


def victim(rig, mode, **more):
    rig.victim(mode, **more)
    return "every byte right"


def exits(rig):
    for _ in range(3 if rig.quick else 10):
        rig.victim("exit")
    return "ends each time"


def notices(process):
    found = [line for line in process.text().splitlines() if line.startswith("bowline: ")]
    must(found, "nothing was said about it")
    return found[-1][9:].split(";")[0]


def full_shared_memory(rig):
    wrap = rig.mounts("mount -t tmpfs -o size=64k tmpfs /dev/shm", "head -c 64k /dev/zero > /dev/shm/full")
    client = rig.pair(*SHORT, wrap=wrap)
    return f"{goodput(client)}; {notices(client)}"


def little_shared_memory(rig):
    wrap = rig.mounts("mount -t tmpfs -o size=16k tmpfs /dev/shm")
    client = rig.pair(*SHORT, wrap=wrap)
    return f"{goodput(client)}; {notices(client)}"


def no_shared_memory(rig):
    wrap = rig.mounts("mount -t tmpfs -o ro tmpfs /dev/shm")
    client = rig.pair(*SHORT, wrap=wrap)
    said = notices(client)
    # Two processes on one address need a place to meet, and are told so.
    (there, here), port = rig.addresses(), rig.port()
    rig.serve(there, port, wrap)
    second = rig.client(there, there, port, *SHORT, wrap=wrap)
    must(second.wait() != 0, "a second process shared an address without a registry")
    second.must_be_sane()
    must("XDG_RUNTIME_DIR" in second.text(), f"the refusal does not help: {second.last_line()}")
    return f"{goodput(client)}; {said}"


def squatted(rig):
    own = f"/dev/shm/bowline-{os.geteuid()}"
    wrap = rig.mounts("mount -t tmpfs tmpfs /dev/shm", f"mkdir {own}", f"chown {NOBODY} {own}")
    client = rig.pair(*SHORT, wrap=wrap)
    return f"{goodput(client)}; {notices(client)}"


def full_disk(rig, size="256k"):
    """A small file system of its own, and how to start programs that see it."""
    place = rig.tmp / "disk"
    place.mkdir(exist_ok=True)
    return place, rig.mounts(f"mount -t tmpfs -o size={size} tmpfs {place}")


def full_disk_capture(rig):
    place, wrap = full_disk(rig)
    (there, here), port = rig.addresses(), rig.port()
    server = rig.serve(there, port)
    client = rig.client(there, here, port, *SHORT, "--pcap", place / "all.pcap", wrap=wrap)
    status = client.wait()
    client.must_be_sane()
    if status == 0:
        must(server.wait() == 0, f"the server: {server.last_line()}")
        return f"goes on; {client.last_line()[:60]}"
    must(re.search(r"all\.pcap|[Nn]o space", client.text()), f"does not say why: {client.last_line()}")
    return client.last_line()


def full_disk_report(rig):
    place, wrap = full_disk(rig, "4k")
    fill = rig.start(*wrap, "sh", "-c", f"head -c 4k /dev/zero > {place}/full")
    must(fill.wait() == 0, "the disk cannot be filled")
    process = rig.victim("plain", wrap=wrap, env={"BOWLINE_REPORT": str(place / "report")})
    must("BOWLINE_REPORT" in process.text(), "a report was lost without a word")
    return process.last_line()


def full_disk_recv(rig):
    place, wrap = full_disk(rig, "6m")
    ballast = rig.start(*wrap, "sh", "-c", f"head -c 4m /dev/zero > {place}/ballast && mkdir {place}/in")
    must(ballast.wait() == 0, "the disk cannot be filled")
    source = rig.tmp / "source.bin"
    source.write_bytes(os.urandom(4 << 20))
    there, here = rig.addresses()
    port = rig.port()

    def transfer():
        receiver = rig.start(*wrap, rig.bowline, "recv", place / "in", "-d", there, "-p", port, "--once")
        wait_listening(receiver, port)
        sender = rig.start(rig.bowline, "send", source, there, "-d", here, "-p", port)
        statuses = sender.wait(), receiver.wait()
        receiver.must_be_sane()
        sender.must_be_sane()
        return sender, receiver, statuses

    sender, receiver, statuses = transfer()
    must(statuses[0] != 0, "success was reported for a file that cannot be there")
    must(re.search("space|free", sender.text()), f"does not say why: {sender.last_line()}")
    said = sender.last_line()
    must(rig.start(*wrap, "rm", place / "ballast").wait() == 0, "the disk cannot be emptied")
    sender, receiver, statuses = transfer()
    must(statuses == (0, 0), f"with room: {sender.last_line()}")
    compared = rig.start(*wrap, "cmp", source, place / "in" / "source.bin")
    must(compared.wait() == 0, "the file is not what was sent")
    return f"goes on with room; before: {said[:80]}"


def wait_listening(process, port):
    wait_for(lambda: listens(port, process.pid), process, 20)


def few_descriptors(rig):
    wrap = ("prlimit", "--nofile=16", "--")
    (there, here), port = rig.addresses(), rig.port()
    server = rig.serve(there, port)
    client = rig.client(there, here, port, *SHORT, wrap=wrap)
    return enough_or_said(client)


def few_descriptors_verbs(rig):
    program = rig.compile("victim.c", "-libverbs")
    a, b = rig.addresses()
    process = rig.start("prlimit", "--nofile=16", "--", rig.bowline, "run", "--device", f"bl0={a}", "--device",
                        f"bl1={b}", "--", program, "plain")
    return enough_or_said(process)


def enough_or_said(process):
    status = process.wait()
    process.must_be_sane()
    if status == 0:
        return "enough"
    must("open files" in process.text(), f"does not say why: {process.last_line()}")
    return process.last_line()


def stopped(end, seconds, survives):
    """One end does not run for a while. Retries last about half a second."""
    def scene(rig):
        (there, here), port = rig.addresses(), rig.port()
        server = rig.serve(there, port)
        duration = 2 if survives else 3
        client = rig.client(there, here, port, "-D", f"{duration}s")
        time.sleep(1)
        one = server if end == "server" else client
        one.signal(signal.SIGSTOP)
        time.sleep(seconds)
        one.signal(signal.SIGCONT)
        statuses = client.wait(), server.wait()
        client.must_be_sane()
        server.must_be_sane()
        if survives:
            must(statuses == (0, 0), f"ended with {statuses}: {client.last_line()}")
            return goodput(client)
        return f"both end, with {statuses[0]} and {statuses[1]}"
    return scene


def unplugged(rig):
    """The link is taken away, addresses and all, and made anew, within the time of the retries."""
    needs_root()
    tag = f"blh{os.getpid() % 100000}"
    spaces = (f"{tag}a", f"{tag}b")

    def ip(*words):
        done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Skipped(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def plug():
        ip("link", "add", "nic", "netns", spaces[0], "type", "veth", "peer", "name", "nic", "netns", spaces[1])
        for last, space in enumerate(spaces, 1):
            ip("-n", space, "address", "add", f"10.91.0.{last}/24", "dev", "nic")
            ip("-n", space, "link", "set", "nic", "up")

    try:
        for space in spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        plug()
        inside = [("ip", "netns", "exec", space) for space in spaces]
        port = rig.port()
        server = rig.serve("10.91.0.1", port, inside[0])
        client = rig.client("10.91.0.1", "10.91.0.2", port, "-D", "3s", wrap=inside[1])
        time.sleep(1.5)
        start = time.monotonic()
        ip("-n", spaces[0], "link", "del", "nic")
        plug()
        away = time.monotonic() - start
        statuses = client.wait(), server.wait()
        client.must_be_sane()
        server.must_be_sane()
        must(statuses == (0, 0), f"away for {away:.2f} s, ended with {statuses}: {client.last_line()}")
        return f"{goodput(client)}, away for {away:.2f} s"
    finally:
        rig.end_all()
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)


def jumping_clock(rig):
    """The time of day jumps by an hour, back and forth, whenever it is asked for."""
    library = rig.compile("jumpy.c", "-shared", "-fPIC", "-ldl")
    env = {"LD_PRELOAD": str(library)}
    seen = rig.start("date", "+%s", env=env)
    must(seen.wait() == 0 and abs(int(seen.text()) - time.time()) > 3000, "the clock does not jump")
    result = goodput(rig.pair(*SHORT, env=env))
    lossy = rig.pair("-n", "200", "--link", "loss=1%", env=env)
    return f"{result}, {goodput(lossy)} with loss"


def little_cpu(rig):
    needs_root()
    group = limited_group()
    try:
        wrap = ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")
        result = goodput(rig.pair("-D", "2s", wrap=wrap))
        throttled = re.search(r"nr_throttled (\d+)", (group / "cpu.stat").read_text())
        must(throttled and int(throttled[1]) > 0, "the limit was never reached")
        return f"{result}, held back {throttled[1]} times"
    finally:
        rig.end_all()
        group.rmdir()


def limited_group():
    """A control group with a tenth of a core."""
    name = f"bowline-hostile-{os.getpid()}"
    for root, limit, value in (("/sys/fs/cgroup", "cpu.max", "10000 100000"),
                               ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "10000")):
        # Skip directories that are only parents of mounted control groups.
        if not (Path(root) / "cgroup.procs").exists():
            continue
        group = Path(root) / name
        try:
            group.mkdir()
            (group / limit).write_text(value)
            return group
        except OSError:
            if group.is_dir():
                group.rmdir()
    raise Skipped("no control group can be made that limits the CPU")


def as_nobody():
    needs_root()
    return ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--inh-caps=-all",
            "--bounding-set=-all", "--no-new-privs", "--")


def unprivileged(rig):
    return goodput(rig.pair(*SHORT, wrap=as_nobody(), env={"HOME": "/nonexistent"}))


def unprivileged_verbs(rig):
    return victim(rig, "plain", wrap=as_nobody(), env={"HOME": "/nonexistent"})


def impostor(rig):
    """Somebody else listens under a name that a device of ours might have."""
    name = f"bowline/{os.geteuid()}/1/0/bl666"
    script = ("import socket, time; s = socket.socket(socket.AF_UNIX); "
              f"s.bind('\\0{name}'); s.listen(0); print('ready', flush=True); time.sleep(60)")
    stranger = rig.start(*as_nobody(), "python3", "-c", script)
    wait_for(lambda: "ready" in stranger.text(), stranger)
    info = rig.start(rig.bowline, "devinfo")
    must(info.wait(10) == 0, f"devinfo: {info.last_line()}")
    must("bl666" not in info.text(), "devinfo believes it")
    return "not believed"
