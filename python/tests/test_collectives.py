"""Communicators of processes on this host."""

from __future__ import annotations

import array
import os
import pickle
import signal
import threading
import time

import numpy as np
import pytest

import bowline
from ranks import Ranks, run

LIMITS = {"timeout": 30, "setup_timeout": 60}


class OnlyDlpack:
    """What has no buffer protocol."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self):
        return self.data.__dlpack__()


def every_operation() -> bool:
    with bowline.Communicator.from_env(**LIMITS) as comm:
        me, n = comm.rank, comm.size
        assert n == 3 and repr(comm) == f"<bowline.Communicator rank {me} of 3>"

        x = np.arange(4, dtype=np.float32) * (me + 1)
        y = np.empty_like(x)
        comm.allreduce(x, out=y)
        assert (y == np.arange(4) * 6).all() and x[1] == me + 1
        for algorithm in ("exchange", "direct", "ring", "halving", "tree"):
            z = np.full(1000, me, np.int64)
            comm.allreduce(z, "max", algorithm=algorithm)
            assert (z == 2).all(), algorithm

        out = np.empty(2, np.float64)
        comm.reduce_scatter(np.arange(6, dtype=np.float64) + me, out)
        assert (out == [6 * me + 3, 6 * me + 6]).all()

        gathered = np.empty((3, 2), np.int32)
        comm.allgather(np.array([me, -me], np.int32), gathered)
        assert (gathered == [[0, 0], [1, -1], [2, -2]]).all()

        swapped = np.empty(3, np.uint8)
        comm.all_to_all(np.array([10 * me, 10 * me + 1, 10 * me + 2], np.uint8), swapped)
        assert (swapped == [me, 10 + me, 20 + me]).all()

        # Rank r sends r + 1 elements to each.
        counts = [1, 2, 3]
        parts = np.empty(6, np.int32)
        comm.all_to_all(np.full(3 * (me + 1), me, np.int32), parts, [me + 1] * 3, counts)
        assert (parts == [0, 1, 1, 2, 2, 2]).all()

        b = bytearray(b"root!" if me == 2 else b".....")
        comm.broadcast(b, 2)
        assert b == b"root!"

        p = np.array([me + 1], np.uint64)
        comm.reduce(p, "product", root=1)
        assert p[0] == (6 if me == 1 else me + 1)

        whole = np.empty(3, np.float32) if me == 0 else None
        comm.gather(np.array([me], np.float32), whole)
        assert whole is None or (whole == [0, 1, 2]).all()
        one = np.empty(1, np.float32)
        comm.scatter(one, np.array([5, 6, 7], np.float32) if me == 0 else None)
        assert one[0] == 5 + me

        ours, theirs = array.array("q", [me] * 5), array.array("q", [0] * 5)
        works = [comm.send(ours, (me + 1) % n, async_op=True), comm.recv(theirs, (me - 1) % n, async_op=True)]
        for work in works:
            work.wait(20)
        assert theirs[0] == (me - 1) % n

        h = np.full(33, 0.5, np.float16)
        comm.allreduce(h, "average")
        assert (h == 0.5).all()
        d = np.ones(7, np.float32)
        comm.allreduce(OnlyDlpack(d))
        assert (d == 3).all()
        comm.barrier()

        part = comm.split(None if me == 0 else 1, key=10 - me)
        assert (part is None) == (me == 0)
        if part is not None:
            assert (part.rank, part.size) == (2 - me, 2)
        twin = comm.duplicate()
        with twin:
            t = np.array([me], np.int32)
            twin.allreduce(t)
            assert t[0] == 3
        with pytest.raises(bowline.InvalidArgument, match="closed"):
            twin.barrier()
    return True


def test_every_operation():
    assert run(3, every_operation) == [True] * 3


def arguments() -> bool:
    comm = bowline.Communicator.from_env(**LIMITS)
    x = np.ones(8, np.float32)
    refused = [
        (lambda: comm.allreduce(x[::2]), "one after the other"),
        (lambda: comm.allreduce(b"constant"), "read-only"),
        (lambda: comm.allreduce(x, "xor"), "unknown operation `xor`"),
        (lambda: comm.allreduce(x, algorithm="magic"), "unknown algorithm"),
        (lambda: comm.allreduce(np.ones(3, np.complex64)), "format"),
        (lambda: comm.allreduce([1, 2, 3]), "list has neither"),
        (lambda: comm.allreduce(OnlyDlpack(np.ones((4, 4), np.float32).T)), "one after the other"),
        (lambda: comm.allgather(x, x), "a block for each rank"),
        (lambda: comm.broadcast(x, 5), "5"),
        (lambda: comm.all_to_all(x, x.copy(), [8]), "both"),
        (lambda: bowline.Communicator.in_store("ftp://x", 0, 1), "ftp"),
        (lambda: bowline.Communicator.from_env(device="nowhere"), "IP address"),
        (lambda: bowline.Communicator.from_env(timeout=-1.0), "seconds"),
        (lambda: bowline.Communicator.from_env(transport="ud"), "rc, xp"),
        (lambda: bowline.Communicator.from_env(deadline="soon"), "adaptive"),
        (lambda: bowline.Communicator.from_env(max_loss=2.0), "a share"),
        (lambda: bowline.Communicator.from_env(speed=1), "no option speed"),
    ]
    for call, text in refused:
        with pytest.raises(bowline.InvalidArgument, match=text):
            call()
    with pytest.raises(ValueError):
        comm.allreduce(x, "xor")
    # None of these has put the ranks out of step.
    comm.allreduce(x)
    assert (x == comm.size).all()
    return True


def test_arguments_are_checked():
    assert run(2, arguments) == [True] * 2


def memory_stays() -> bool:
    comm = bowline.Communicator.from_env(**LIMITS)
    if comm.rank == 1:
        time.sleep(0.3)
    # Nobody holds the arrays or the handles: the operations do.
    for _ in range(20):
        comm.allreduce(np.ones(100_000, np.float32), async_op=True)
    last = np.full(100_000, comm.rank, np.float32)
    comm.allreduce(last)
    assert (last == 1).all()
    return True


def test_memory_stays_while_an_operation_goes_on():
    assert run(2, memory_stays) == [True] * 2


def with_others_running() -> int:
    comm = bowline.Communicator.from_env(**LIMITS)
    count = 0
    if comm.rank == 1:
        time.sleep(0.5)
        comm.barrier()
        return 10**9
    over = threading.Event()

    def counting() -> None:
        nonlocal count
        while not over.is_set():
            count += 1
            time.sleep(0.001)

    thread = threading.Thread(target=counting)
    thread.start()
    comm.barrier()
    over.set()
    thread.join()
    return count


def test_the_gil_is_released():
    assert min(run(2, with_others_running)) > 20


def interrupted() -> tuple[float, bool]:
    comm = bowline.Communicator.from_env(**LIMITS)
    x = np.zeros(10, np.float32)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(2)
        comm.send(x + 7, 0)
        return 0.0, True
    work = comm.recv(x, 1, async_op=True)
    with pytest.raises(TimeoutError, match="goes on"):
        work.wait(0.05)
    assert not work.done()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        work.wait()
    took = time.monotonic() - started
    # It has gone on all the while.
    work.wait(20)
    return took, bool((x == 7).all())


def over_xp() -> bool:
    with bowline.Communicator.from_env(transport="xp", deadline=5.0, max_loss=0.0, **LIMITS) as comm:
        x = np.full(300_000, comm.rank + 1, np.float32)
        for _ in range(3):
            comm.allreduce(x, "max")
        assert (x == 2).all()
    return True


def test_nothing_is_lost_over_xp_that_may_not_be():
    assert run(2, over_xp) == [True] * 2


def reported() -> bool:
    options = {"transport": "xp", "deadline": "adaptive", "max_loss": 0.01, "recovery": True}
    with bowline.Communicator.from_env(**options, **LIMITS) as comm:
        for turn in range(3):
            data = np.full(100_000, comm.rank + 1.0, np.float32)
            report = comm.allreduce(data, async_op=True).report()
            assert report.expected_bytes >= data.nbytes
            assert report.missing_bytes <= 0.01 * report.expected_bytes
            assert sum(end - start for _, start, end in report.missing) == report.missing_bytes
            assert report.elapsed > 0 and (report.deadline is None) == (turn == 0) and not report.is_cut
            assert report.missing or np.allclose(data, 3.0)
    return True


def test_operations_with_bounds_say_how_they_have_ended():
    assert run(2, reported) == [True] * 2


def by_multicast() -> bool:
    with bowline.Communicator.from_env(multicast=True, **LIMITS) as comm:
        for root in range(comm.size):
            data = np.full(300_000, comm.rank + 1.0, np.float32)
            comm.broadcast(data, root)
            assert (data == root + 1.0).all(), root
    return True


def test_broadcasts_go_by_multicast_where_asked_for():
    assert run(3, by_multicast) == [True] * 3


def over_a_long_link() -> bool:
    for transport in ("sr-nack", "ec-mds", "auto"):
        with bowline.Communicator.from_env(transport=transport, window_bytes=1 << 20, **LIMITS) as comm:
            data = np.full(1_000_000, comm.rank + 1.0, np.float32)
            comm.allreduce(data)
            assert (data == 3.0).all(), transport
    return True


def test_sdrs_schemes_are_exact():
    assert run(2, over_a_long_link) == [True] * 2


def test_ctrl_c_ends_a_wait_and_not_the_operation():
    (took, right), _ = run(2, interrupted)
    assert took < 1.5 and right


def setup_interrupted() -> float:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bowline.Communicator.in_store(os.environ["BOWLINE_STORE"], 0, 2, setup_timeout=20)
    return time.monotonic() - started


def test_ctrl_c_ends_a_rendezvous():
    assert run(1, setup_interrupted)[0] < 3


def killed() -> tuple[int, str, float]:
    comm = bowline.Communicator.from_env(timeout=60)
    comm.barrier()
    if comm.rank == 2:
        time.sleep(0.3)  # not before the others know that their last messages have arrived
        os.kill(os.getpid(), signal.SIGKILL)
    x = np.ones(1 << 20, np.float32)
    started = time.monotonic()
    with pytest.raises(bowline.RankFailed) as caught:
        for _ in range(100):
            comm.allreduce(x)
    took = time.monotonic() - started
    del x
    with pytest.raises(bowline.RankFailed, match="rank 2"):
        comm.barrier()
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.rank, str(again)) == (2, str(caught.value))
    return caught.value.rank, caught.value.cause, took


def test_a_killed_rank_is_named():
    results = run(3, killed)
    assert results[2] is None
    for rank, cause, took in results[:2]:
        assert rank == 2 and cause in ("unreachable", "left") and took < 15


def missing_rank() -> str:
    with pytest.raises(bowline.Error) as caught:
        bowline.Communicator.in_store(os.environ["BOWLINE_STORE"], 0, 2, setup_timeout=1)
    return str(caught.value)


def test_a_rank_that_does_not_come_is_named():
    assert "rank 1 did not come" in run(1, missing_rank)[0]


def test_a_plan():
    plan = bowline.plan(bandwidth=400e9, rtt=25e-3, loss=1e-5, size=128 << 20)
    times = {scheme.name: scheme for scheme in plan.schemes}
    assert plan.best == times["lowar"]
    assert times["sr-nack"].mean > plan.best.mean > plan.ideal > 0.02
    assert times["sr-rto"].p999 > times["sr-nack"].p999 >= times["sr-nack"].p50
    lossless = bowline.plan(bandwidth=1e9, rtt=1e-3, loss=0.0, size=1 << 20, quantile=0.99)
    assert lossless.best.name == "gbn"
    with pytest.raises(bowline.InvalidArgument, match="probability"):
        bowline.plan(bandwidth=1e9, rtt=1e-3, loss=1.5, size=1)


def test_ranks_module_reports_failures():
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        Ranks(1, divmod, 1, 0).results()
