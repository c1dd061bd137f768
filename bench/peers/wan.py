"""Rows across a long link, which `bowline wan` puts between two network namespaces."""

import json
import subprocess
from dataclasses import dataclass

import setup
from bench import BOWLINE, last_line
from pair import Failed, free_port
from rows import MIB, Cell

# Exit status of `bowline wan` when packets left too late for the run to be valid.
TOO_LATE = 75
TRIES = 3
# Chunk sizes of SDR at which one lost packet costs little: smaller if losses are frequent and whole
# chunks are retransmitted.
CHUNK = 4096
SMALL_CHUNK = 2048
# Parity for the loss of the link, as `bowline plan` would choose it: data and parity chunks of a
# group.
CODES = {"no loss": (128, 2), "0.01 %": (128, 4), "0.1 %": (128, 6), "1 %": (128, 16), "bursts": (128, 16)}
# Each end is a separate network: the largest windows for TCP, and no window reset after a pause.
TUNING = ("sysctl -qw net.ipv4.tcp_rmem='4096 131072 536870912' net.ipv4.tcp_wmem='4096 131072 536870912' "
          "net.ipv4.tcp_slow_start_after_idle=0 net.ipv4.tcp_no_metrics_save=1; ")
MESSAGES = {"1 MiB": MIB, "16 MiB": 16 * MIB, "64 MiB": 64 * MIB}
LOSSES = {"no loss": "", "0.01 %": "0.01%", "0.1 %": "0.1%", "1 %": "1%", "bursts": "ge(0.0001,0.1)"}


@dataclass(frozen=True)
class Link:
    name: str
    rate: str
    bps: int
    rtt_ms: int
    # MTU of an IP packet; payload of a packet for Bowline; size of a datagram for quinn.
    mtu: int
    path_mtu: int
    datagram: int

    def profile(self, loss):
        text = f"rate={self.rate},delay={self.rtt_ms // 2}ms,queue=1bdp"
        return text + (f",loss={LOSSES[loss]}" if LOSSES[loss] else "")


LINKS = [Link("1 Gbit/s, 40 ms", "1Gbps", 10**9, 40, 1500, 1024, 1372),
         Link("5 Gbit/s, 80 ms", "5Gbps", 5 * 10**9, 80, 9000, 4096, 8900)]

ROWS = {
    "TCP CUBIC": ("tcp-cubic", "windows of up to 512 MiB, none closed after a pause"),
    "TCP BBR": ("tcp-bbr", "the same"),
    "quinn BBR": ("quinn-bbr", "one stream, windows of four times what fits on the way, datagrams that fill the link's packets, its round trip told"),
    "SRT": ("srt", "file mode, windows and buffers of four times what fits on the way, packets of 1500 bytes, which is the most it has"),
    "Bowline RC": ("rc", "go-back-N, window of twice what fits on the way, paced by its congestion control"),
    "Bowline RC+FEC": ("rc-fec", "the same over LoWAR, code chosen by itself"),
    "Bowline SR": ("sr-nack", "selective repeat by NACK, chunks of 4 KiB (2 KiB at 1 % where packets are smaller); finds the rate out"),
    "Bowline EC": ("ec-mds", "Reed-Solomon over groups of 128 chunks of 4 KiB with 2 to 16 of parity, by the link's loss; finds the rate out"),
}
OURS = [row for row in ROWS if row.startswith("Bowline")]
# Bowline's packets of MTU bytes: BTH, RETH, immediate, ICRC, UDP, IP.
HEADER_BYTES = 12 + 16 + 4 + 4 + 8 + 20


def payload_gbps(link):
    """What the link carries at best of Bowline's payload."""
    return link.bps / 1e9 * link.path_mtu / (link.path_mtu + HEADER_BYTES)


def cells(quick):
    """Cells of one round, with the number of rounds in which each takes part."""
    links = LINKS[:1] if quick else LINKS
    for link in links:
        for loss in (["0.1 %"] if quick else LOSSES):
            for row, (kind, _) in ROWS.items():
                yield bulk(row, kind, link, loss, quick), loss in ("0.1 %", "1 %")
                for size in (["16 MiB"] if quick else MESSAGES):
                    yield message(row, kind, link, loss, size, quick), (loss, size) == ("0.1 %", "16 MiB")


def is_across(cell):
    return any(cell.point.startswith(link.name) for link in LINKS)


def point(link, loss, what):
    return f"{link.name}, {loss}: {what}"


def bulk(row, kind, link, loss, quick):
    options = ["--size", MIB, "--seconds", 2 if quick else 5, "--warm-up", 2 if quick else 4]
    return Cell(row, point(link, loss, "bulk"), lambda: run(kind, "bulk", link, loss, options))


def message(row, kind, link, loss, size, quick):
    count = {"1 MiB": 60, "16 MiB": 10 if quick else 30, "64 MiB": 10}[size]
    options = ["--size", MESSAGES[size], "--count", count, "--warm-count", 5, "--seconds", 5 if quick else 15]
    return Cell(row, point(link, loss, size), lambda: run(kind, "message", link, loss, options))


def run(kind, mode, link, loss, options):
    """One measurement; again if the link was late, and not for ever."""
    port = free_port()
    mtu = link.datagram if kind == "quinn-bbr" else link.path_mtu
    chunk = max(SMALL_CHUNK, link.path_mtu) if kind == "sr-nack" and loss == "1 %" else CHUNK
    common = [kind, mode, "--at", f"{{left}}:{port}", "--from", "{right}", "--rate", link.bps, "--rtt", link.rtt_ms,
              "--mtu", mtu, "--chunk", chunk, "--code", *CODES[loss], *options]
    words = " ".join(str(word) for word in common)
    command = [BOWLINE, "wan", "--link", link.profile(loss), "--mtu", link.mtu, "--json",
               "--left", f"{TUNING}exec {setup.DRIVER} serve {words}",
               "--right", f"{TUNING}exec {setup.DRIVER} drive {words}"]
    for attempt in range(TRIES):
        try:
            done = subprocess.run([str(c) for c in [*command, "--seed", attempt + 1]], capture_output=True, text=True, timeout=300)
        except subprocess.TimeoutExpired as late:
            raise Failed("did not end within 300 s") from late
        if done.returncode != TOO_LATE:
            break
    else:
        raise Failed(f"packets left the link too late, {TRIES} times: this machine is too busy for it")
    if done.returncode != 0:
        raise Failed(last_line(done.stderr))
    found = [line.partition("{") for line in done.stdout.splitlines() if line.startswith("right")]
    if not found:
        raise Failed("the driver printed nothing")
    return json.loads("{" + found[-1][2])
