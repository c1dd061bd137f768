"""Programs that only look: what they find outside of the library, and what they are told."""

from setup_strangers import last_line, need, run


def says(command, *expected, address="127.0.0.1"):
    def check(env):
        need(command[0])
        status, text = env.run(command, 20, address)
        missing = [word for word in expected if word not in text]
        if status != 0 or missing:
            return "FAIL", f"exit {status}, without {missing}: {last_line(text)}"
        return "PASS", f"says {expected[0]!r}"
    return check


def live_counters(env):
    """A counter of the port moves while a program sends."""
    script = ("import ctypes, time; v = ctypes.CDLL('libibverbs.so.1'); "
              "print(open('/sys/class/infiniband/bl0/ports/1/counters/port_xmit_packets').read())")
    status, text = env.run(["python3", "-c", script], 20)
    return ("PASS", "read") if status == 0 and text.split()[0].isdigit() else ("FAIL", last_line(text))


def told_of_silence(env):
    """A program that loads libibverbs and opens no device is told of."""
    load = "import ctypes; ctypes.CDLL('libibverbs.so.1')"
    status, text = env.run(["/usr/bin/python3", "-c", load], 20)
    if status == 0 and "opened no device" in text:
        return "PASS", last_line(text)
    return "FAIL", f"exit {status}: {last_line(text)}"


def nothing_left(env):
    """The files of a process go with it, also of one that was killed."""
    look = ["python3", "-c", "import os, signal; os.listdir('/sys/class/infiniband'); os.kill(os.getpid(), signal.SIGKILL)"]
    env.run(look, 20)
    env.run(["ls", "/dev/infiniband"], 20)
    status, text = run(["sh", "-c", "ls -d /dev/shm/bowline-*/files-* ${XDG_RUNTIME_DIR:-/nonexistent}/bowline/files-* 2>/dev/null"], 20)
    left = []
    for path in text.split():
        pid = path.rsplit("-", 1)[1]
        if run(["test", "-d", f"/proc/{pid}"], 5)[0] != 0:
            left.append(path)
    return ("FAIL", " ".join(left)) if left else ("PASS", "no folder without its process")


def checks(quick):
    yield "ls of the device nodes", says(["ls", "-l", "/dev/infiniband"], "uverbs0")
    yield "cat of a GID", says(["cat", "/sys/class/infiniband/bl0/ports/1/gids/0"], "7f00:0001")
    yield "find of a network interface", says(["ls", "/sys/class/infiniband/bl0/device/net"], "lo")
    yield "ibv_devinfo -v", says(["ibv_devinfo", "-v"], "PORT_ACTIVE", "0x2426f")
    yield "ibstat", says(["ibstat"], "State: Active")
    yield "counters", live_counters
    yield "word of a silent fallback", told_of_silence
    yield "nothing left behind", nothing_left
