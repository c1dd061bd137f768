"""The backend under torch.distributed, by real processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bowline  # noqa: E402
import bowline.torch  # noqa: E402
from ranks import run  # noqa: E402


def under_torch(count: int, body, *args) -> list:
    """Runs a body at each rank of a job that torchrun might have started."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return run(count, body, *args, environment=place)


def init(backend: str = "bowline") -> tuple[int, int]:
    torch.set_num_threads(1)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    return dist.get_rank(), dist.get_world_size()


def reductions() -> bool:
    me, n = init()
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8):
        t = torch.arange(5).to(dtype) * (me + 1)
        dist.all_reduce(t)
        assert torch.equal(t, torch.arange(5).to(dtype) * 6), dtype
    for op, expected in ((dist.ReduceOp.MAX, 2.0), (dist.ReduceOp.MIN, 0.0), (dist.ReduceOp.AVG, 1.0)):
        t = torch.full((3,), float(me))
        dist.all_reduce(t, op)
        assert (t == expected).all(), op
    flags = torch.tensor([me == 1, True, False])
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    assert flags.tolist() == [True, True, False]
    # Not in a row: every second column.
    wide = torch.ones(4, 6)
    dist.all_reduce(wide[:, ::2])
    assert (wide[:, ::2] == n).all() and (wide[:, 1::2] == 1).all()
    t = torch.tensor([me + 1.0])
    dist.reduce(t, 1, dist.ReduceOp.PRODUCT)
    assert t.item() == (6.0 if me == 1 else me + 1.0)
    out = torch.empty(2)
    dist.reduce_scatter_tensor(out, torch.arange(2.0 * n) + me)
    assert out.tolist() == [6.0 * me + 3, 6.0 * me + 6]
    dist.reduce_scatter(out, [torch.full((2,), float(me))] * n)
    assert (out == 3).all()
    with pytest.raises(bowline.InvalidArgument, match="int16"):
        dist.all_reduce(torch.ones(1, dtype=torch.int16))
    whole = torch.full((2 * n,), float(me))
    dist.reduce_scatter_tensor(whole[2 * me : 2 * me + 2], whole)  # in place
    assert (whole[2 * me : 2 * me + 2] == 3).all()
    with pytest.raises(bowline.InvalidArgument, match="no reduction"):
        dist.all_reduce(torch.ones(1, dtype=torch.int32), dist.ReduceOp.BXOR)
    dist.destroy_process_group()
    return True


def movement() -> bool:
    me, n = init()
    t = torch.arange(4.0) if me == 1 else torch.zeros(4)
    dist.broadcast(t, 1)
    assert t.tolist() == [0, 1, 2, 3]
    c = torch.full((2,), complex(me, 1))
    out = torch.empty(2 * n, dtype=torch.complex64)
    dist.all_gather_into_tensor(out, c)
    assert out[2].item() == 1 + 1j
    whole = torch.full((2 * n,), float(me))
    dist.all_gather_into_tensor(whole, whole[2 * me : 2 * me + 2])  # in place
    assert whole.tolist() == [0, 0, 1, 1, 2, 2]
    parts = [torch.empty(2, 2, dtype=torch.int16) for _ in range(n)]
    dist.all_gather(parts, torch.full((2, 2), me, dtype=torch.int16))
    assert [p[1, 1].item() for p in parts] == [0, 1, 2]
    swapped = torch.empty(n)
    dist.all_to_all_single(swapped, torch.arange(float(n)) + 10 * me)
    assert swapped.tolist() == [me, 10 + me, 20 + me]
    # Rank r sends r + 1 rows of 3 to each.
    rows = torch.full((n * (me + 1), 3), float(me))
    got = torch.empty(6, 3)
    dist.all_to_all_single(got, rows, [1, 2, 3], [me + 1] * n)
    assert got[:, 0].tolist() == [0, 1, 1, 2, 2, 2]
    outs = [torch.empty(other + 1, dtype=torch.int64) for other in range(n)]
    dist.all_to_all(outs, [torch.full((me + 1,), me) for _ in range(n)])
    assert [o.tolist() for o in outs] == [[0], [1, 1], [2, 2, 2]]
    whole = [torch.empty(2) for _ in range(n)] if me == 2 else None
    dist.gather(torch.full((2,), float(me)), whole, dst=2)
    assert whole is None or [w[0].item() for w in whole] == [0, 1, 2]
    one = torch.empty(3)
    dist.scatter(one, [torch.full((3,), float(r)) for r in range(n)] if me == 0 else None, src=0)
    assert (one == me).all()
    objects = [None] * n
    dist.all_gather_object(objects, {"rank": me, "x": "y" * me})
    assert [o["rank"] for o in objects] == [0, 1, 2]
    words = [{"a": 1}] if me == 0 else [None]
    dist.broadcast_object_list(words, 0)
    assert words == [{"a": 1}]
    dist.barrier()
    incoming = torch.empty(5)
    works = [dist.isend(torch.full((5,), float(me)), (me + 1) % n), dist.irecv(incoming, (me - 1) % n)]
    for work in works:
        work.wait()
    assert (incoming == (me - 1) % n).all()
    dist.destroy_process_group()
    return True


def asynchronous() -> bool:
    import torch.distributed._functional_collectives as functional_collectives

    me, n = init()
    tensors = [torch.full((1000,), float(i + me)) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    for work in reversed(works):
        work.wait()
    assert all((t == 2 * i + 1).all() for i, t in enumerate(tensors))
    work = dist.all_reduce(torch.ones(4), async_op=True)
    future = work.get_future()
    assert future.wait()[0].tolist() == [2.0] * 4
    assert future.done()
    together = functional_collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert together.tolist() == [2.0] * 3
    with dist._coalescing_manager(async_ops=True) as manager:
        few = [torch.ones(3), torch.ones(2)]
        for t in few:
            dist.all_reduce(t)
    manager.wait()
    assert few[0].tolist() == [2.0] * 3 and few[1].tolist() == [2.0] * 2
    # Groups beside each other, of some of the ranks.
    alone = dist.new_group([0])
    both = dist.new_group([1, 0])
    over_xp = dist.new_group([0, 1], pg_options=bowline.torch.Options(transport="xp", deadline=5.0))
    t = torch.ones(100_000)
    dist.all_reduce(t, group=over_xp)
    assert (t == 2).all()
    t = torch.ones(2)
    dist.all_reduce(t, group=both)
    if me == 0:
        dist.all_reduce(t, group=alone)
    assert t.tolist() == [2.0, 2.0]
    dist.destroy_process_group()
    return True


def staged() -> list[float]:
    """Everything through the thread for CUDA tensors, which has nothing to copy here."""
    from bowline.torch.staging import Stager

    Stager.is_for = lambda self, ops: True
    me, _ = init()
    tensors = [torch.full((1000,), float(i + me)) for i in range(20)]
    works = [dist.all_reduce(t, async_op=True) for t in tensors]
    dist.barrier()
    for work in works:
        work.wait()
    assert all((t == 2 * i + 1).all() for i, t in enumerate(tensors))
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.04)
    out = losses(net, me, 3)
    dist.destroy_process_group()
    return out


def test_calls_that_start_late_keep_their_order():
    first, second = under_torch(2, staged)
    assert first[-1] < first[0] and second[-1] < second[0]


def test_reductions():
    assert under_torch(3, reductions) == [True] * 3


def test_movement():
    assert under_torch(3, movement) == [True] * 3


def test_asynchronous_calls_and_groups():
    assert under_torch(2, asynchronous) == [True] * 2


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def batch(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(32, 64, generator=generator), torch.randint(0, 10, (32,), generator=generator)


def losses(net: nn.Module, rank: int, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = batch(rank)
    out = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        out.append(loss.item())
    return out


def ddp(backend: str) -> tuple[list[float], float]:
    me, n = init(backend)
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.04)
    out = losses(net, me, 5)
    mine = torch.cat([p.detach().view(-1) for p in net.parameters()])
    all_of_them = [torch.empty_like(mine) for _ in range(n)]
    dist.all_gather(all_of_them, mine)
    assert all(torch.equal(replica, mine) for replica in all_of_them), "replicas differ"
    dist.destroy_process_group()
    return out, mine.double().sum().item()


def test_ddp_trains_as_over_gloo():
    ours, theirs = under_torch(2, ddp, "bowline"), under_torch(2, ddp, "gloo")
    for (mine, my_sum), (other, their_sum) in zip(ours, theirs):
        assert mine == pytest.approx(other, rel=1e-6) and mine[-1] < mine[0]
        assert my_sum == pytest.approx(their_sum, rel=1e-6)


def fsdp(backend: str) -> list[float]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    me, n = init(backend)
    mesh = init_device_mesh("cpu", (n,))
    net = model()
    fully_shard(net[0], mesh=mesh)
    fully_shard(net, mesh=mesh)
    out = losses(net, me, 5)
    dist.destroy_process_group()
    return out


def test_fsdp2_trains_as_over_gloo():
    ours, theirs = under_torch(2, fsdp, "bowline"), under_torch(2, fsdp, "gloo")
    for mine, other in zip(ours, theirs):
        assert mine == pytest.approx(other, rel=1e-6) and mine[-1] < mine[0]


def killed_in_ddp() -> tuple[str, float]:
    me, _ = init()
    net = nn.parallel.DistributedDataParallel(model(), bucket_cap_mb=0.04)
    losses(net, me, 1)
    if me == 1:
        time.sleep(0.3)  # not before the others know that their last messages have arrived
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        losses(net, me, 100)
    took = time.monotonic() - started
    with pytest.raises(bowline.RankFailed, match="rank 1"):
        dist.all_reduce(torch.ones(1))
    return str(caught.value), took


def test_a_rank_killed_under_ddp_is_named():
    results = under_torch(3, killed_in_ddp)
    assert results[1] is None
    for text, took in (results[0], results[2]):
        assert "rank 1" in text and took < 20


def on_gpu() -> list[float]:
    me, n = init("cpu:bowline,cuda:bowline")
    # Longer than a piece, so that copies and transfers overlap.
    big = torch.full((5_000_000,), float(me + 1), device="cuda")
    work = dist.all_reduce(big, async_op=True)
    on_host = torch.ones(3)
    dist.all_reduce(on_host)  # behind it, in order
    work.wait()
    assert (big == 3).all().item() and on_host.tolist() == [2.0] * 3
    out = torch.empty(2 * 1000, device="cuda")
    dist.all_gather_into_tensor(out, torch.full((1000,), float(me), device="cuda"))
    assert out[0].item() == 0 and out[-1].item() == 1
    part = torch.empty(500, device="cuda")
    dist.reduce_scatter_tensor(part, out[:1000] + me)
    assert (part == 1).all().item()
    swapped = torch.empty(2, device="cuda")
    dist.all_to_all_single(swapped, torch.tensor([10.0 * me, 10.0 * me + 1], device="cuda"))
    assert swapped.tolist() == [me, 10 + me]
    root = torch.full((7,), float(me), device="cuda")
    dist.broadcast(root, 1)
    assert (root == 1).all().item()
    net = nn.parallel.DistributedDataParallel(model().cuda())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    x, y = (t.cuda() for t in batch(me))
    values = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    dist.destroy_process_group()
    return values


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_cuda_tensors():
    on_host, on_device = under_torch(2, ddp, "bowline"), under_torch(2, on_gpu)
    for (cpu, _), gpu in zip(on_host, on_device):
        assert gpu == pytest.approx(cpu, rel=1e-3)
