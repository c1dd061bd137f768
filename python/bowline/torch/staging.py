"""CUDA tensors, through pinned memory, while the network is busy with what was copied before."""

from __future__ import annotations

import queue
import threading

import torch

import bowline

from .tensors import Op, nbytes
from .work import Call

# Elementwise operations are cut into pieces of this many bytes, so that copies and transfers overlap. The other
# transports are for long links: there each piece costs a round trip or two, and a copy next to nothing.
_PIECE_BYTES = 4 << 20
_LONG_PIECE_BYTES = 64 << 20
_ELEMENTWISE = ("allreduce", "broadcast", "reduce")
# Those whose output holds their input where they have none.
_IN_PLACE = (*_ELEMENTWISE, "allgather", "reduce_scatter")


class StagedCall(Call):
    """A call that the stager's thread carries out."""

    def __init__(self, ops: list[Op], result: list, piece_bytes: int) -> None:
        finish = [step for op in ops for step in op.finish]
        super().__init__([], finish, result)
        self.ops = ops
        self.devices = sorted({op.tensor.device for op in ops if op.tensor is not None and op.tensor.is_cuda}, key=str)
        self.jobs = [_Piece(op) for op in _pieces(ops, piece_bytes)]
        #: On the streams that copy, behind the last copy.
        self.copied: list[torch.cuda.Event] = []
        self._over = threading.Event()
        self._error: BaseException | None = None

    def carry_out(self, comm: bowline.Communicator) -> None:
        """In the stager's thread: pieces are sent as they arrive, and leave as they come back."""
        try:
            works = []
            for job in self.jobs:
                works.append(job.start(comm))
            for job, work in zip(self.jobs, works):
                work.wait()
                job.copy_back()
            self.copied = [event for job in self.jobs if (event := job.last_copy()) is not None]
        except BaseException as error:
            self._error = error
        self._over.set()

    def wait(self, limit: float | None = None) -> None:
        if not self._over.wait(limit):
            raise TimeoutError(f"the operation is not over after {limit:g} s, and goes on")
        if self._error is not None:
            raise self._error
        # The streams of whoever waits go on behind the copies, without the host.
        for event in self.copied:
            torch.cuda.current_stream(event.device).wait_event(event)
        super().wait(limit)

    def done(self) -> bool:
        return self._over.is_set()

    def settle(self, future: torch.futures.Future) -> None:
        if not self.devices:
            return super().settle(future)
        # The future remembers where the streams are, and the copies are on these.
        with torch.cuda.stream(_stream(self.devices[0])):
            super().settle(future)

    def new_future(self) -> torch.futures.Future:
        return torch.futures.Future(devices=self.devices) if self.devices else torch.futures.Future()


class Stager:
    """A thread for calls that cannot start at once: those on CUDA tensors, and whatever comes behind them."""

    def __init__(self, comm: bowline.Communicator, transport: str) -> None:
        self._comm = comm
        self._piece_bytes = _PIECE_BYTES if transport == "rc" else _LONG_PIECE_BYTES
        self._queue: queue.SimpleQueue = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._thread: threading.Thread | None = None

    def is_for(self, ops: list[Op]) -> bool:
        """Whether these have to go through here. Operations must start in the order of calls."""
        return self._waiting > 0 or any(op.tensor is not None and op.tensor.is_cuda for op in ops)

    def submit(self, ops: list[Op], result: list) -> StagedCall:
        call = StagedCall(ops, result, self._piece_bytes)
        with self._lock:
            self._waiting += 1
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="bowline-staging", daemon=True)
            self._thread.start()
        self._queue.put(call)
        return call

    def close(self) -> None:
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(timeout=10)
            self._thread = None

    def _run(self) -> None:
        while (call := self._queue.get()) is not None:
            call.carry_out(self._comm)
            with self._lock:
                self._waiting -= 1
            del call


def _pieces(ops: list[Op], piece_bytes: int) -> list[Op]:
    """Operations cut such that copies overlap with transfers. All ranks cut alike."""
    pieces = []
    for op in ops:
        data = op.output
        if op.name not in _ELEMENTWISE or data is None or not data.is_cuda or nbytes(data) <= piece_bytes:
            pieces.append(op)
            continue
        # Bytes or elements: as the operation counts.
        whole = data.view(-1) if op.count == data.numel() else data.view(-1).view(torch.uint8)
        step = piece_bytes // whole.element_size()
        pieces.extend(op.on(None, part, part.numel()) for part in whole.split(step))
    return pieces


class _Piece:
    """An operation on a CUDA tensor, and pinned memory in its place. Other tensors are used as they are."""

    def __init__(self, op: Op) -> None:
        self._op, self._host = op, op
        self._stream = None
        self._arrived = None
        if op.tensor is None or not op.tensor.is_cuda:
            return
        device = op.tensor.device
        self._stream = _stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._host = op.on(_pinned(op.input), _pinned(op.output))
        source, target = op.input, self._host.input
        if op.input is None and op.name in _IN_PLACE:
            source, target = op.output, self._host.output
        if source is not None:
            with torch.cuda.stream(self._stream):
                target.copy_(source, non_blocking=True)
                source.record_stream(self._stream)
        self._arrived = self._stream.record_event()

    def start(self, comm: bowline.Communicator) -> bowline.Work:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.start(comm)

    def copy_back(self) -> None:
        if self._stream is None or self._op.output is None:
            return
        with torch.cuda.stream(self._stream):
            self._op.output.copy_(self._host.output, non_blocking=True)
            self._op.output.record_stream(self._stream)

    def last_copy(self) -> torch.cuda.Event | None:
        return None if self._stream is None else self._stream.record_event()


_streams: dict[torch.device, torch.cuda.Stream] = {}


def _stream(device: torch.device) -> torch.cuda.Stream:
    """The stream for copies from and to a device."""
    if device not in _streams:
        _streams[device] = torch.cuda.Stream(device)
    return _streams[device]


def _pinned(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Pinned memory for a tensor."""
    if tensor is None:
        return None
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
