"""Starts functions as ranks, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
import traceback
from collections.abc import Callable

_SPAWN = multiprocessing.get_context("spawn")


def _rank(rank: int, environment: dict, pipe, body: Callable, args: tuple) -> None:
    os.environ.update(environment, RANK=str(rank))
    # A shell starts programs in the background with SIGINT ignored, and they inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        pipe.send((True, body(*args)))
    except BaseException:
        pipe.send((False, traceback.format_exc()))


class Ranks:
    """Processes that run `body(*args)` under the variables of a launcher."""

    def __init__(self, count: int, body: Callable, *args, environment: dict | None = None) -> None:
        self._dir = tempfile.TemporaryDirectory()
        variables = {"WORLD_SIZE": str(count), "BOWLINE_STORE": f"file://{self._dir.name}/store"}
        variables.update(environment or {})
        self.processes, self._pipes = [], []
        for rank in range(count):
            pipe, theirs = _SPAWN.Pipe(duplex=False)
            process = _SPAWN.Process(target=_rank, args=(rank, variables, theirs, body, args))
            process.start()
            theirs.close()
            self.processes.append(process)
            self._pipes.append(pipe)

    def results(self, limit: float = 120) -> list:
        """What each returned; None for one that has died without a word."""
        deadline = time.monotonic() + limit
        out = []
        try:
            for rank, pipe in enumerate(self._pipes):
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"rank {rank} has no result after {limit} s")
                try:
                    ok, value = pipe.recv()
                except EOFError:
                    ok, value = True, None
                if not ok:
                    raise AssertionError(f"rank {rank}:\n{value}")
                out.append(value)
        finally:
            for process in self.processes:
                process.join(max(1.0, deadline - time.monotonic()) if len(out) == len(self._pipes) else 0.1)
                if process.is_alive():
                    process.kill()
            self._dir.cleanup()
        return out


def run(count: int, body: Callable, *args, **options) -> list:
    return Ranks(count, body, *args, **options).results()
