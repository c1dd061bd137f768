#!/usr/bin/env python3
"""Two ranks of torch.distributed over NCCL and the plug-in, on a machine with GPUs.

usage: lab/nccl/two_ranks.py PLUGIN [MIB]

  PLUGIN  the library, e.g. target/release/libnccl_net_bowline.so
  MIB     length of the tensor that is reduced; 64 unless given

Each rank is a process, with a GPU of its own if there are two. NCCL refuses two ranks on one GPU of one host
("Duplicate GPU detected"), so NCCL_HOSTID makes each rank a host of its own. That also keeps NCCL from its
paths inside a host, and the data goes over the network. Releases of NCCL that refuse nevertheless end the
script with status 77.
"""

import os
import subprocess
import sys

NO_GPUS = 77
# The whole run takes seconds.
SECONDS = 180


def rank_main(mib):
    import torch
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    for count in (1, 1000, mib << 18):
        tensor = torch.full((count,), float(rank + 1), device="cuda")
        dist.all_reduce(tensor)
        expected = world * (world + 1) / 2
        assert torch.all(tensor == expected), f"{count} floats: {tensor[0]} and not {expected}"
        if rank == 0:
            print(f"allreduce of {count} floats: ok", flush=True)
    dist.destroy_process_group()


def main(argv):
    if len(argv) not in (1, 2) or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    mib = argv[1] if len(argv) == 2 else "64"
    settings = {
        "NCCL_NET_PLUGIN": os.path.abspath(argv[0]), "NCCL_NET": "Bowline", "NCCL_DEBUG": "INFO",
        "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1", "NCCL_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2", "TWO_RANKS_MIB": mib,
    }
    ranks = []
    for rank in range(2):
        own = {"RANK": str(rank), "BOWLINE_DEVICE": f"127.94.0.{rank + 1}",
               "NCCL_HOSTID": f"bowline-rank-{rank}"}
        env = dict(os.environ, **settings, **own)
        command = [sys.executable, os.path.abspath(__file__)]
        ranks.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT))
    said = []
    for rank in ranks:
        try:
            said.append(rank.communicate(timeout=SECONDS)[0])
        except subprocess.TimeoutExpired:
            rank.kill()
            said.append(rank.communicate()[0] + f"\nnot over after {SECONDS} s")
    for number, text in enumerate(said):
        kept = [line for line in text.splitlines() if "Bowline" in line or "NCCL" not in line]
        print(f"--- rank {number}", *kept[-40:], sep="\n")
    if any("Duplicate GPU detected" in text for text in said):
        print("NOT RUN: this NCCL gives two ranks no GPU in common, and there is one")
        return NO_GPUS
    loaded = all("Using network Bowline" in text or "Assigned NET plugin Bowline" in text
                 for text in said)
    print(f"NCCL {'used' if loaded else 'did NOT use'} the plug-in")
    return 0 if loaded and all(rank.returncode == 0 for rank in ranks) else 1


if __name__ == "__main__":
    if "TWO_RANKS_MIB" in os.environ:
        rank_main(int(os.environ["TWO_RANKS_MIB"]))
    else:
        sys.exit(main(sys.argv[1:]))
