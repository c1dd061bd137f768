#!/usr/bin/env python3
"""The ends of lab/wan's measurements over UDP. Each prints one JSON object.

  probe.py echo ADDRESS                              sends back what comes
  probe.py ping ADDRESS COUNT                        round trips to an echo
  probe.py source ADDRESS                            sends what a sink asks for
  probe.py sink ADDRESS COUNT SIZE PER_SECOND GSO    asks a source for numbered packets and looks at them
"""

import hashlib
import json
import os
import socket
import statistics
import struct
import sys
import time

PORT = 9000
SO_RCVBUFFORCE = 33
UDP_SEGMENT, UDP_GRO = 103, 104
# As many as fit into a 64 KiB datagram, and as the kernel accepts.
GSO_BYTES, GSO_SEGMENTS = 65_000, 60
NUMBER = struct.Struct("!I")
PING_EVERY_S = 0.005
# A stream has ended when nothing has arrived for this long.
SILENCE_S = 0.6


def udp_socket():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 256 << 20)
    return sock


def run_promptly():
    """Before others, where that is allowed: the link is measured, not the machine's load."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pass


def run_often():
    """More than others, for who keeps a link busy; but never before the emulator."""
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except PermissionError:
        pass


def echo(address):
    run_promptly()
    sock = udp_socket()
    sock.bind((address, PORT))
    while True:
        data, peer = sock.recvfrom(2048)
        sock.sendto(data, peer)


def ping(address, count):
    """Whether the last is back or not, so that there are many in little time."""
    run_promptly()
    sock = udp_socket()
    sock.connect((address, PORT))
    count, sent_at, round_trips_ms = int(count), [], []
    start = time.perf_counter()
    while len(round_trips_ms) < count:
        wait = 5.0
        if len(sent_at) < count:
            wait = start + PING_EVERY_S * len(sent_at) - time.perf_counter()
            if wait <= 0:
                sent_at.append(time.perf_counter())
                sock.send(NUMBER.pack(len(sent_at) - 1))
                continue
        sock.settimeout(wait)
        try:
            number, = NUMBER.unpack(sock.recv(2048))
            round_trips_ms.append((time.perf_counter() - sent_at[number]) * 1e3)
        except TimeoutError:
            if len(sent_at) == count:
                sys.exit("no answer")
    print(json.dumps({"min_ms": min(round_trips_ms), "median_ms": statistics.median(round_trips_ms),
                      "max_ms": max(round_trips_ms)}))


def source(address):
    run_often()
    sock = udp_socket()
    sock.bind((address, PORT))
    request, peer = sock.recvfrom(2048)
    count, size, per_second, gso = json.loads(request)
    sock.connect(peer)
    each = min(GSO_BYTES // size, GSO_SEGMENTS) if gso else 1
    if gso:
        sock.setsockopt(socket.SOL_UDP, UDP_SEGMENT, size)
    buffer = bytearray(each * size)
    start, sent = time.perf_counter(), 0
    while sent < count:
        some = min(each, count - sent)
        for place in range(some):
            NUMBER.pack_into(buffer, place * size, sent + place)
        sock.send(memoryview(buffer)[:some * size])
        sent += some
        ahead = sent / per_second - (time.perf_counter() - start)
        if ahead > 0.002:
            time.sleep(ahead)
    seconds = time.perf_counter() - start
    print(json.dumps({"gbps": sent * (size + 28) * 8e-9 / seconds}))


def sink(address, count, size, per_second, gso):
    run_often()
    count, size, per_second, gso = int(count), int(size), float(per_second), gso == "gso"
    sock = udp_socket()
    sock.setsockopt(socket.SOL_UDP, UDP_GRO, int(gso))
    sock.connect((address, PORT))
    sock.settimeout(0.5)
    while True:
        sock.send(json.dumps([count, size, per_second, gso]).encode())
        try:
            data = sock.recv(1 << 16)
            break
        except TimeoutError:
            continue
    sock.settimeout(SILENCE_S)
    first_at = last_at = time.perf_counter()
    after_first, numbers, buffer = 0, [], bytearray(1 << 16)
    buffer[:len(data)], got = data, len(data)
    # Read the clock once per call, and extract the numbers afterwards.
    while True:
        numbers.extend(NUMBER.unpack_from(buffer, at)[0] for at in range(0, got, size))
        try:
            got = sock.recv_into(buffer)
        except TimeoutError:
            break
        last_at = time.perf_counter()
        after_first += got + 28 * -(-got // size)
    report(count, numbers, after_first, last_at - first_at)


def report(count, numbers, after_first, seconds):
    seen = bytearray(count)
    inversions = sum(b < a for a, b in zip(numbers, numbers[1:]))
    for number in numbers:
        seen[number] = 1
    bursts = [len(run) for run in seen.replace(b"\1", b" ").split() if run]
    print(json.dumps({
        "received": len(numbers),
        "missing": count - sum(seen),
        "inversions": inversions,
        "gbps": after_first * 8e-9 / seconds if seconds > 0 else 0,
        "bursts": bursts,
        "which": hashlib.sha256(seen).hexdigest()[:16],
    }))


if __name__ == "__main__":
    {"echo": echo, "ping": ping, "source": source, "sink": sink}[sys.argv[1]](*sys.argv[2:])
