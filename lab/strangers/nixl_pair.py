"""One of two NIXL agents: `target FILE` lets itself be written to, `initiator FILE` writes. Both check the bytes.

FILE is where the target leaves what the initiator has to know. UCX is the backend.

Whoever is done ends without ending its libraries: those of nixl-cu12 1.5.1 crash in libnl's destructor, without
Bowline and over TCP as well."""

import json
import os
import sys
import time

import numpy as np
from nixl._api import nixl_agent, nixl_agent_config

LENGTH = 1 << 20
PATIENCE_S = 40


def until(what, done):
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            sys.exit(f"{what} did not come")
        time.sleep(0.002)


def agent_with(name, content):
    agent = nixl_agent(name, nixl_agent_config(backends=["UCX"]))
    memory = np.full(LENGTH, content, dtype=np.uint8)
    agent.register_memory([(memory.ctypes.data, LENGTH, 0, "")], "DRAM")
    return agent, memory


def end(error=None):
    print(error or "written and read back", flush=True)
    os._exit(1 if error else 0)


def target(path):
    agent, memory = agent_with("target", 0)
    known = {"metadata": agent.get_agent_metadata().hex(), "addr": memory.ctypes.data}
    with open(path + ".part", "w") as file:
        json.dump(known, file)
    os.rename(path + ".part", path)
    until("the initiator's word", lambda: any(agent.get_new_notifs().values()))
    end(None if (memory == 7).all() else "the bytes are wrong")


def initiator(path):
    until("the target", lambda: os.path.exists(path))
    with open(path) as file:
        known = json.load(file)
    agent, memory = agent_with("initiator", 7)
    peer = agent.add_remote_agent(bytes.fromhex(known["metadata"]))
    ours = agent.get_xfer_descs([(memory.ctypes.data, LENGTH, 0)], "DRAM")
    theirs = agent.get_xfer_descs([(known["addr"], LENGTH, 0)], "DRAM")

    def run(operation, word):
        handle = agent.initialize_xfer(operation, ours, theirs, peer, word)
        state = [agent.transfer(handle)]

        def done():
            state[0] = agent.check_xfer_state(handle)
            if state[0] == "ERR":
                sys.exit(f"{operation} failed")
            return state[0] == "DONE"
        until(operation, done)

    run("WRITE", b"")
    memory[:] = 0
    run("READ", b"read back")
    end(None if (memory == 7).all() else "the bytes are wrong")


{"target": target, "initiator": initiator}[sys.argv[1]](sys.argv[2])
