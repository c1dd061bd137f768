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
    """What `measure` returns. It is called again if the host took much of the machine away meanwhile. After the last try,
    the calmest one counts."""
    tries = []
    for _ in range(TRIES):
        before = stolen()
        result = measure()
        taken, all_ticks = (after - first for after, first in zip(stolen(), before))
        share = taken / max(all_ticks, 1)
        if share <= MOST:
            return result
        print(f"  measured again: the host took {share:.0%} of the cores away", file=sys.stderr)
        tries.append((share, len(tries), result))
        time.sleep(1)
    return min(tries)[2]
