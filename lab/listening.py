"""When a server of a rig is ready: who listens, read from the kernel's own tables."""

import time

TCP_LISTEN = "0A"


def listens(port, pid="self"):
    """Whether somebody listens on a TCP port, in the network of a process."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as lines:
                rows = [line.split() for line in lines]
        except OSError:
            continue
        if any(len(row) > 3 and row[1].endswith(wanted) and row[3] == TCP_LISTEN for row in rows):
            return True
    return False


def wait_listening(port, server, seconds=15):
    """Waits until a server listens for its client. Says whether it does; one that has ended never will."""
    deadline = time.monotonic() + seconds
    while not listens(port, server.pid):
        if server.poll() is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
