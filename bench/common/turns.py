"""Senders that take turns on one machine: all are set up, and all but one are stopped."""

import json
import signal
import socket
import time
from pathlib import Path

from bench import Failed
from pair import TURN_S

# What is in flight when a sender is stopped arrives within this time.
DRAIN_S = 0.005
PATIENCE_S = 10


class Sender:
    """A running sender, and the processes that receive what it sends."""

    def __init__(self, process, receivers):
        self.process, self.rates = process, []
        self.sockets = [control_socket(receiver) for receiver in receivers]
        self.rest()
        self.received = self.count()

    def rest(self):
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(DRAIN_S)

    def count(self):
        """Bytes that have arrived at all receivers."""
        return min(message_bytes(name) for name in self.sockets)

    def turn(self):
        begin = time.monotonic()
        self.process.send_signal(signal.SIGCONT)
        time.sleep(TURN_S)
        seconds = time.monotonic() - begin
        self.rest()
        before, self.received = self.received, self.count()
        self.rates.append(8e-9 * (self.received - before) / seconds)


def control_socket(process):
    """The name of a process's control socket, once it has one."""
    wanted, deadline = f"/{process.pid}/", time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        for line in Path("/proc/net/unix").read_text(errors="replace").splitlines():
            name = line.split()[-1]
            if name.startswith("@bowline/") and wanted in name:
                return "\0" + name[1:]
        time.sleep(0.02)
    raise Failed(f"process {process.pid} has no device after {PATIENCE_S} s")


def message_bytes(name):
    """Bytes of messages that have arrived at a device."""
    with socket.socket(socket.AF_UNIX) as control:
        control.settimeout(PATIENCE_S)
        control.connect(name)
        control.sendall(b"counters\n")
        control.shutdown(socket.SHUT_WR)
        return json.loads(control.makefile().read())["nic"]["rx_message_bytes"]


def take_turns(senders, seconds):
    """Lets each sender run for so long, in turns short enough that a slow moment of the machine hits all of them. Gives
    the mean goodput of each, in Gbit/s."""
    for turn in range(max(1, round(seconds / TURN_S))):
        # Alternate the order, so that no sender always follows the same one.
        for sender in senders[:: 1 if turn % 2 else -1]:
            sender.turn()
    return [sum(sender.rates) / len(sender.rates) for sender in senders]
