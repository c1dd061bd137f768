"""The process group backend: torch's calls as operations of a communicator."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

import bowline

from .staging import Stager
from .tensors import Op, dense_input, dense_output, flat, nbytes, reduction_of, unflatten
from .work import Call, Watcher, Work

_SETUP_LIMIT = timedelta(minutes=5)


@dataclass(frozen=True)
class Options:
    """What `init_process_group` and `new_group` may be given as `pg_options`."""

    #: "rc", "xp" for operations with bounds, or for long links "sr-nack", "ec-mds" or "auto".
    transport: str = "rc"
    #: Seconds after which an operation over XP stops to wait for what may be lost, or "adaptive".
    deadline: float | str | None = None
    #: Share of what a rank should receive that may be missing over XP.
    max_loss: float = 0.0
    #: Over XP, what is reduced travels encoded, so that a lost packet costs all elements of some regions a little: True for
    #: always, False for never, None for while operations end with missing bytes.
    recovery: bool | None = None
    #: Over RC, broadcasts among three ranks or more go by multicast, which takes a second ring for each rank.
    multicast: bool = False
    #: Bytes on their way to a rank at most [1 MiB, and 4 MiB over "sr-nack", "ec-mds" and "auto"].
    window_bytes: int | None = None


def create(options, pg_options: Options | None = None) -> Backend:
    """What torch calls for a group whose backend is "bowline"."""
    chosen = pg_options if isinstance(pg_options, Options) else Options()
    rank, size, store = options.group_rank, options.group_size, options.store
    ranks = list(options.global_ranks_in_group or [])
    gather = _gather_by(store, rank, size)
    limit = options.timeout
    comm = bowline.Communicator.by_gather(
        gather,
        rank,
        size,
        device=_device(store, ranks[rank] if rank < len(ranks) else rank),
        timeout=limit.total_seconds(),
        setup_timeout=min(limit, _SETUP_LIMIT).total_seconds(),
        **asdict(chosen),
    )
    return Backend(comm, chosen.transport)


def _device(store: dist.Store, rank: int) -> str:
    """The address of this process's NIC, one for all of its groups."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    host = getattr(store, "host", None) or os.environ.get("MASTER_ADDR")
    return bowline._bowline.device_addr(host, rank)


def _gather_by(store: dist.Store, rank: int, size: int):
    """An all-gather of bytes over torch's own store."""
    calls = 0

    def gather(mine: bytes, limit: float) -> bytes:
        nonlocal calls
        calls += 1
        keys = [f"bowline/{calls}/{other}" for other in range(size)]
        store.set(keys[rank], mine)
        try:
            store.wait(keys, timedelta(seconds=limit))
        except RuntimeError as error:
            missing = [str(other) for other, key in enumerate(keys) if not store.check([key])]
            if not missing:
                raise
            raise RuntimeError(f"rank {', '.join(missing)} did not come within {limit:g} s") from error
        return b"".join(store.get(key) for key in keys)

    return gather


class _Group(dist.ProcessGroup):
    """Before torch 2.12 `c10d.Backend` cannot be derived from in Python. A process group of one's own can: it takes the
    place of all of a group's backends, and has to know its own name."""

    _name = ""

    @property
    def group_name(self) -> str:
        return self._name

    def getGroupName(self) -> str:  # noqa: N802, torch's name
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name


def _base() -> type:
    """What a backend in Python derives from."""
    try:
        type("Probe", (c10d.Backend,), {})(0, 1)
    except TypeError:
        return _Group
    return c10d.Backend


class Backend(_base()):
    """A process group over a communicator. Operations run in the order of calls."""

    def __init__(self, comm: bowline.Communicator, transport: str) -> None:
        super().__init__(comm.rank, comm.size)
        self._comm = comm
        self._rank, self._size = comm.rank, comm.size
        self._watcher = Watcher()
        self._stager = Stager(comm, transport)

    def getBackendName(self) -> str:  # noqa: N802, torch's name
        return "bowline"

    def name(self) -> str:
        return "bowline"

    @property
    def supports_splitting(self) -> bool:
        return False

    def shutdown(self) -> None:
        self._stager.close()
        self._comm.close()

    abort = shutdown

    def _run(self, ops: list[Op], result: list) -> c10d.Work:
        if self._stager.is_for(ops):
            call = self._stager.submit(ops, result)
        else:
            finish = [step for op in ops for step in op.finish]
            call = Call([op.start(self._comm) for op in ops], finish, result)
        return Work(call, self._watcher)

    # Reductions

    def _allreduce(self, tensor: torch.Tensor, op) -> Op:
        finish: list = []
        data = dense_output(tensor, finish, keep=True)
        return Op("allreduce", None, data, data.numel(), **reduction_of(op, data), finish=finish)

    def allreduce(self, tensors, opts) -> c10d.Work:
        return self._run([self._allreduce(t, opts.reduceOp) for t in tensors], tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts) -> c10d.Work:
        ops = []
        for tensor in tensors:
            finish: list = []
            data = dense_output(tensor, finish, keep=True)
            kind = reduction_of(opts.reduceOp, data)
            ops.append(Op("reduce", None, data, data.numel(), **kind, root=opts.rootRank, finish=finish))
        return self._run(ops, tensors)

    def _reduce_scatter(self, output: torch.Tensor, input: torch.Tensor, op) -> Op:
        finish: list = []
        data, out = dense_input(input), dense_output(output, finish)
        count, kind = out.numel(), reduction_of(op, data)
        if out.data_ptr() == data.data_ptr() + self._rank * nbytes(out):
            data, out = None, data  # In place: the result is a block of the input.
        return Op("reduce_scatter", data, out, count, **kind, finish=finish)

    def reduce_scatter_single(self, output, input, opts) -> c10d.Work:
        return self._run([self._reduce_scatter(output, input, opts.reduceOp)], [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts) -> c10d.Work:
        ops = [self._reduce_scatter(o, i, opts.reduceOp) for o, i in zip(outputs, inputs)]
        return self._run(ops, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def reduce_scatter(self, outputs, inputs, opts) -> c10d.Work:
        ops = []
        for output, blocks in zip(outputs, inputs):
            whole = torch.cat([dense_input(block).view(-1) for block in blocks])
            ops.append(self._reduce_scatter(output, whole, opts.reduceOp))
        return self._run(ops, outputs)

    # Movement: bytes, whatever the type

    def _allgather(self, output: torch.Tensor, input: torch.Tensor) -> Op:
        finish: list = []
        data, out = dense_input(input), dense_output(output, finish, keep=True)
        size = nbytes(data)
        if data.data_ptr() == out.data_ptr() + self._rank * size:
            data = None  # In place, as FSDP has it.
        return Op("allgather", data, out, size, finish=finish)

    def all_gather_single(self, output, input, opts=None) -> c10d.Work:
        return self._run([self._allgather(output, input)], [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs, inputs, opts=None) -> c10d.Work:
        return self._run([self._allgather(o, i) for o, i in zip(outputs, inputs)], outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather(self, outputs, inputs, opts=None) -> c10d.Work:
        ops = []
        for blocks, tensor in zip(outputs, inputs):
            finish: list = []
            data, out = dense_input(tensor), unflatten(blocks, finish)
            ops.append(Op("allgather", data, out, nbytes(data), finish=finish))
        return self._run(ops, outputs)

    def allgather_coalesced(self, outputs, inputs, opts=None) -> c10d.Work:
        return self.allgather([list(blocks) for blocks in zip(*outputs)], inputs, opts)

    def all_to_all_single(self, output, input, output_splits, input_splits, opts=None) -> c10d.Work:
        finish: list = []
        data, out = dense_input(input), dense_output(output, finish)
        op = Op("all_to_all", data, out, nbytes(data) // self._size, finish=finish)
        if output_splits or input_splits:
            op.counts = (_bytes_of(data, input_splits, self._size), _bytes_of(out, output_splits, self._size))
        return self._run([op], [output])

    alltoall_base = all_to_all_single

    def alltoall(self, outputs, inputs, opts=None) -> c10d.Work:
        finish: list = []
        data, out = flat(inputs), unflatten(outputs, finish)
        counts = ([nbytes(t) for t in inputs], [nbytes(t) for t in outputs])
        return self._run([Op("all_to_all", data, out, 0, counts=counts, finish=finish)], outputs)

    def broadcast(self, tensors, opts) -> c10d.Work:
        ops = []
        for tensor in tensors:
            finish: list = []
            data = dense_output(tensor, finish, keep=True)
            ops.append(Op("broadcast", None, data, nbytes(data), root=opts.rootRank, finish=finish))
        return self._run(ops, tensors)

    def gather(self, outputs, inputs, opts) -> c10d.Work:
        finish: list = []
        data = dense_input(inputs[0])
        out = unflatten(outputs[0], finish) if self._rank == opts.rootRank else None
        op = Op("gather", data, out, nbytes(data), root=opts.rootRank, finish=finish)
        return self._run([op], outputs)

    def scatter(self, outputs, inputs, opts) -> c10d.Work:
        finish: list = []
        out = dense_output(outputs[0], finish)
        data = flat(inputs[0]) if self._rank == opts.rootRank else None
        op = Op("scatter", data, out, nbytes(out), root=opts.rootRank, finish=finish)
        return self._run([op], outputs)

    def barrier(self, opts=None) -> c10d.Work:
        return self._run([Op("barrier", None, None, 0)], [])

    def send(self, tensors, rank: int, tag: int = 0) -> c10d.Work:
        _no_tag(tag)
        ops = [Op("send", data := dense_input(t), None, nbytes(data), root=rank) for t in tensors]
        return self._run(ops, tensors)

    def recv(self, tensors, rank: int, tag: int = 0) -> c10d.Work:
        _no_tag(tag)
        ops = []
        for tensor in tensors:
            finish: list = []
            out = dense_output(tensor, finish)
            ops.append(Op("recv", None, out, nbytes(out), root=rank, finish=finish))
        return self._run(ops, tensors)


def _bytes_of(tensor: torch.Tensor, splits: list[int], size: int) -> list[int]:
    """The bytes of parts along the first dimension."""
    rows = tensor.shape[0] if tensor.dim() else 1
    row = nbytes(tensor) // rows if rows else 0
    return [split * row for split in splits] if splits else [rows // size * row] * size


def _no_tag(tag: int) -> None:
    if tag != 0:
        raise bowline.InvalidArgument(f"tag {tag}: bowline matches messages by their order, not by tags")
