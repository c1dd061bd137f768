"""Calls that are going on: what torch asks of a `Work`."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C import _distributed_c10d as c10d

import bowline

_NO_LIMIT = timedelta(0)


def seconds(timeout: timedelta | None) -> float | None:
    """A limit of torch's in seconds. Zero is none."""
    return None if timeout is None or timeout <= _NO_LIMIT else timeout.total_seconds()


class Call:
    """The operations of one call to a process group, and what is to be done when they are over."""

    def __init__(self, works: list[bowline.Work], finish: list[Callable[[], object]], result: list) -> None:
        self.result = result
        self._works = works
        self._finish = finish
        self._lock = threading.Lock()

    def wait(self, limit: float | None = None) -> None:
        """Waits until it is over. Ctrl-C works, and others may run."""
        for work in self._works:
            work.wait(limit)
        with self._lock:
            finish, self._finish = self._finish, []
            for step in finish:
                step()

    def done(self) -> bool:
        return all(work.done() for work in self._works)

    def settle(self, future: torch.futures.Future) -> None:
        """Tells a future what has become of it."""
        try:
            self.wait()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(self.result)

    def new_future(self) -> torch.futures.Future:
        return torch.futures.Future()


class Watcher:
    """A thread that waits for calls whose futures somebody has."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._queue.put, None)

    def future(self, call: Call) -> torch.futures.Future:
        """A future of a call. Its error is one that C++ understands, too."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_watch, args=(self._queue,), name="bowline-futures", daemon=True
            )
            self._thread.start()
        future = call.new_future()
        self._queue.put((call, future))
        # Python's `set_exception` is invisible to C++, where DDP waits. What a callback raises is not.
        return future.then(_value)


def _watch(calls: queue.SimpleQueue) -> None:
    while (entry := calls.get()) is not None:
        call, future = entry
        call.settle(future)
        del entry, call, future


def _value(future: torch.futures.Future):
    return future.value()


class Work(c10d.Work):
    """A call, as torch sees it."""

    def __init__(self, call: Call, watcher: Watcher) -> None:
        super().__init__()
        self._call = call
        self._watcher = watcher
        self._future: torch.futures.Future | None = None
        self._error: BaseException | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        try:
            self._call.wait(seconds(timeout))
        except bowline.Error as error:
            self._error = error
            raise
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self._call.done()

    def is_success(self) -> bool:
        return self._call.done() and self.exception() is None

    def exception(self) -> BaseException | None:
        if self._call.done() and self._error is None:
            try:
                self._call.wait()
            except bowline.Error as error:
                self._error = error
        return self._error

    def result(self) -> list:
        return self._call.result

    def get_future(self) -> torch.futures.Future:
        if self._future is None:
            self._future = self._watcher.future(self._call)
        return self._future
