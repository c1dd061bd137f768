"""Starts the ranks of one end of a link: FIRST COUNT RANKS LEFT OWN CONTROL COMMAND... as arguments.

LEFT is the address where rank 0 listens, OWN that of this end, CONTROL the congestion control of TCP or "-". In COMMAND,
{own} stands for OWN. Prints what rank 0 prints.
"""

import os
import subprocess
import sys

PORT = 29400


def interface(address):
    """The network device that has an address."""
    shown = subprocess.run(["ip", "-o", "addr"], capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        words = line.split()
        if any(word.split("/")[0] == address for word in words[2:]):
            return words[1]
    sys.exit(f"end: no device has the address {address}")


def choose(control, device):
    """Makes TCP of this namespace use a congestion control."""
    try:
        with open("/proc/sys/net/ipv4/tcp_congestion_control", "w") as setting:
            setting.write(control)
    except PermissionError:
        # The host does not allow this controller (tcp_allowed_congestion_control), but a route may
        # still ask for it.
        shown = subprocess.run(["ip", "route", "show", "dev", device], capture_output=True, text=True, check=True).stdout
        for route in shown.splitlines():
            subprocess.run(["ip", "route", "change", *route.split(), "dev", device, "congctl", control], check=True)


def main():
    first, count, ranks = map(int, sys.argv[1:4])
    left, own, control, *command = sys.argv[4:]
    if control != "-":
        choose(control, interface(own))
    command = [word.replace("{own}", own) for word in command]
    place = {**os.environ, "MASTER_ADDR": left, "MASTER_PORT": str(PORT), "WORLD_SIZE": str(ranks),
             "GLOO_SOCKET_IFNAME": interface(own), "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen(command, env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank - first)},
                                stdout=None if rank == 0 else subprocess.DEVNULL)
               for rank in range(first, first + count)]
    sys.exit(max(abs(process.wait()) for process in started))


main()
