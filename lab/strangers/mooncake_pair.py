"""One of two Mooncake transfer engines: `target FILE` lets itself be written to, `initiator FILE` writes and reads back.

FILE is where the target leaves what the initiator has to know. The protocol is RDMA; Mooncake falls back to TCP
in silence, which the device's counters give away."""

import json
import os
import sys
import time

import numpy as np
from mooncake.engine import TransferEngine

LENGTH = 1 << 20
PATIENCE_S = 40
SENT = "/sys/class/infiniband/bl0/ports/1/counters/port_xmit_data"


def until(what, done):
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come")
        time.sleep(0.002)


def engine_with(host, content):
    engine = TransferEngine()
    if engine.initialize(host, "P2PHANDSHAKE", "rdma", "bl0") != 0:
        sys.exit("no transfer engine over RDMA")
    memory = np.full(LENGTH, content, dtype=np.uint8)
    if engine.register_memory(memory.ctypes.data, LENGTH) != 0:
        sys.exit("memory is not registered")
    return engine, memory


def target(path):
    engine, memory = engine_with("127.0.0.1", 0)
    known = {"session": f"127.0.0.1:{engine.get_rpc_port()}", "addr": memory.ctypes.data}
    with open(path + ".part", "w") as file:
        json.dump(known, file)
    os.rename(path + ".part", path)
    until("the initiator's end", lambda: os.path.exists(path + ".done"))
    sys.exit(0 if (memory == 7).all() else "the bytes are wrong")


def sent_bytes():
    """The counter is in words of four bytes."""
    with open(SENT) as file:
        return 4 * int(file.read())


def initiator(path):
    until("the target", lambda: os.path.exists(path))
    with open(path) as file:
        known = json.load(file)
    engine, memory = engine_with("127.0.0.2", 7)
    before, at = sent_bytes(), memory.ctypes.data
    if engine.transfer_sync_write(known["session"], at, known["addr"], LENGTH) != 0:
        sys.exit("the write failed")
    sent = sent_bytes() - before
    memory[:] = 0
    if engine.transfer_sync_read(known["session"], at, known["addr"], LENGTH) != 0:
        sys.exit("the read failed")
    if not (memory == 7).all():
        sys.exit("the bytes are wrong")
    if sent < LENGTH:
        sys.exit(f"the device sent {sent} bytes of {LENGTH}: the rest went another way")
    open(path + ".done", "w").close()
    print("written and read back")


{"target": target, "initiator": initiator}[sys.argv[1]](sys.argv[2])
