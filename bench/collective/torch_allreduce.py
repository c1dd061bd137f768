"""Times torch's all_reduce over a backend: BACKEND SIZE:ITERATIONS... as arguments, a line of JSON for each.

With DEVICE=cuda in the environment tensors are on the GPU, which all ranks share.
"""

import json
import os
import sys
import time

import torch
import torch.distributed as dist

if sys.argv[1] == "bowline":
    import bowline.torch  # noqa: F401, registers the backend

DEVICE = os.environ.get("DEVICE", "cpu")


def measure(bytes, iterations, rank, ranks):
    data = torch.full((bytes // 4,), float(rank + 1), device=DEVICE)
    dist.all_reduce(data)
    right = bool((data == ranks * (ranks + 1) / 2).all())
    data.fill_(1e-30)  # Each reduces what the one before has left.
    for _ in range(5):
        dist.all_reduce(data)
    dist.barrier()
    times = []
    for _ in range(iterations):
        started = time.perf_counter()
        dist.all_reduce(data)
        if data.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    times.sort()
    mean = torch.tensor([sum(times) / iterations], dtype=torch.float64)
    p99 = torch.tensor([times[-(-iterations * 99 // 100) - 1]], dtype=torch.float64)
    dist.all_reduce(mean)
    dist.all_reduce(p99, dist.ReduceOp.MAX)
    if rank == 0:
        row = {"bytes": bytes, "time_us": mean.item() / ranks * 1e6, "p99_us": p99.item() * 1e6, "right": right}
        print(json.dumps(row), flush=True)


def main():
    torch.set_num_threads(1)
    dist.init_process_group(sys.argv[1])
    for argument in sys.argv[2:]:
        bytes, iterations = map(int, argument.split(":"))
        measure(bytes, iterations, dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


main()
