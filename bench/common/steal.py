"""Measurements on a virtual machine, whose host may give its cores to others for a while."""

import sys
import time

# Share of all cores' time that may be taken away during a measurement.
MOST = 0.03
TRIES = 8


def stolen():
    """The time that was taken from this machine, and all time, in ticks of all cores."""
    with open("/proc/stat", encoding="ascii") as stat:
        ticks = [int(field) for field in stat.readline().split()[1:9]]
    return ticks[7], sum(ticks)


def calmly(measure):
    """What `measure` returns. It is called again if the host took much of the machine away meanwhile. If no try was calm,
    the calmest one counts, and a line says so."""
    tries = []
    for number in range(TRIES):
        if tries:
            print(f"  measured again: the host took {tries[-1][0]:.0%} of the cores away", file=sys.stderr)
            time.sleep(1)
        before = stolen()
        result = measure()
        taken, all_ticks = (after - first for after, first in zip(stolen(), before))
        tries.append((taken / max(all_ticks, 1), number, result))
        if tries[-1][0] <= MOST:
            return result
    share, _, result = min(tries)
    print(f"  NOT CALM in {TRIES} tries: the one counts in which the host took {share:.0%} away", file=sys.stderr)
    return result
