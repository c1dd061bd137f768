from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Protocol, final, overload

from typing_extensions import Buffer, Self

__all__ = ["Communicator", "Report", "Work", "__version__", "device_addr", "plan"]
__version__: str

class _SupportsDLPack(Protocol):
    def __dlpack__(self) -> Any: ...

# Contiguous elements: floats of 16 (also bfloat16), 32 and 64 bits, integers of 8, 32 and 64.
_Array = Buffer | _SupportsDLPack
_Reduction = Literal["sum", "product", "min", "max", "average"]
_Transport = Literal["rc", "xp", "sr-nack", "ec-mds", "auto"]
_Deadline = float | Literal["adaptive", "paper"]
_Algorithm = Literal["auto", "exchange", "direct", "ring", "halving", "tree", "two-level", "bruck"]

@final
class Work:
    """A collective operation that is going on. It keeps the objects whose memory it uses until it is over."""

    def wait(self, timeout: float | None = None) -> None:
        """Waits until it is over, but no longer than `timeout` seconds, after which it raises TimeoutError and the
        operation goes on. Raises RankFailed if a rank has failed."""

    def done(self) -> bool:
        """Whether it is over, for better or worse."""

    def report(self) -> Report:
        """Waits until it is over, and says how it has ended."""

@final
class Report:
    """How an operation has ended at this rank. Bytes are those of messages from other ranks, and 0 for an operation without bounds."""

    @property
    def expected_bytes(self) -> int: ...
    @property
    def missing_bytes(self) -> int: ...
    @property
    def repaired_bytes(self) -> int:
        """Those that were lost and fetched again."""

    @property
    def elapsed(self) -> float:
        """Seconds that it took."""

    @property
    def deadline(self) -> float | None:
        """Seconds after which it would have stopped to wait, if at all."""

    @property
    def missing(self) -> list[tuple[int, int, int]]:
        """Ranges of the output's bytes that lack what a rank should have contributed: rank, start, end."""

    @property
    def is_cut(self) -> bool:
        """Whether there are more of them."""

    @property
    def is_encoded(self) -> bool:
        """Whether the data was sent encoded (see `recovery`). Then `missing` are ranges of the encoded data."""

@final
class Communicator:
    """A group of programs that do collective operations together.

    All ranks must call the same operations in the same order, with the same counts and types. Operations wait
    until they are over; with `async_op=True` they return a Work, go on by themselves, and run one after the
    other. When a rank dies, leaves or falls out of step, all pending and later operations of all ranks raise
    RankFailed, which names it.
    """

    @classmethod
    def from_env(
        cls,
        *,
        device: str | None = None,
        timeout: float | None = None,
        setup_timeout: float | None = None,
        chunk_bytes: int | None = None,
        transport: _Transport | None = None,
        window_bytes: int | None = None,
        deadline: _Deadline | None = None,
        max_loss: float | None = None,
        recovery: bool | None = None,
        multicast: bool = False,
    ) -> Self:
        """Meets the other ranks where the environment says: the variables of torchrun, Open MPI, MPICH or Slurm give
        rank and size; BOWLINE_STORE, or MASTER_ADDR and MASTER_PORT, the place.

        `device` is the address of this rank's NIC [BOWLINE_DEVICE, or the one that reaches rank 0 or MASTER_ADDR, or
        else one of loopback: all ranks are on one host], `timeout` the seconds that an operation may take [300],
        `setup_timeout` those for making the communicator [60], `chunk_bytes` the longest message [128 KiB].

        `transport` is "rc", or "xp" for operations that keep a `deadline` in seconds [none] and may lack the share
        `max_loss` of what a rank should receive [0]. What would exceed that is fetched after the deadline. A deadline
        "adaptive" follows how long such operations have taken, "paper" by OptiNIC's rule. For long links there are
        SDR's schemes, "sr-nack", "ec-mds" and "auto", with at most `window_bytes` on their way to a rank [4 MiB].

        Data that is reduced over XP can travel encoded: a lost packet then costs all elements of some regions a little,
        instead of some elements everything. That is for long f32, bf16 and f16 arrays, summed or averaged. It happens
        while operations end with missing bytes, on all ranks alike; with `recovery=True` always, with False never.

        With `multicast` broadcasts over RC among three ranks or more go by multicast, which takes a second ring of
        memory for each rank."""

    @classmethod
    def in_store(
        cls,
        url: str,
        rank: int,
        size: int,
        *,
        job: str = "bowline",
        device: str | None = None,
        timeout: float | None = None,
        setup_timeout: float | None = None,
        chunk_bytes: int | None = None,
        transport: _Transport | None = None,
        window_bytes: int | None = None,
        deadline: _Deadline | None = None,
        max_loss: float | None = None,
        recovery: bool | None = None,
        multicast: bool = False,
    ) -> Self:
        """Meets the other ranks of a job in a store, e.g. "file:///shared/dir" or "redis://host"."""

    @classmethod
    def at_address(
        cls,
        address: str,
        rank: int,
        size: int,
        *,
        device: str | None = None,
        timeout: float | None = None,
        setup_timeout: float | None = None,
        chunk_bytes: int | None = None,
        transport: _Transport | None = None,
        window_bytes: int | None = None,
        deadline: _Deadline | None = None,
        max_loss: float | None = None,
        recovery: bool | None = None,
        multicast: bool = False,
    ) -> Self:
        """Meets the other ranks at rank 0, which listens at "host:port"."""

    @classmethod
    def by_gather(
        cls,
        gather: Callable[[bytes, float], bytes],
        rank: int,
        size: int,
        *,
        device: str | None = None,
        timeout: float | None = None,
        setup_timeout: float | None = None,
        chunk_bytes: int | None = None,
        transport: _Transport | None = None,
        window_bytes: int | None = None,
        deadline: _Deadline | None = None,
        max_loss: float | None = None,
        recovery: bool | None = None,
        multicast: bool = False,
    ) -> Self:
        """Meets the other ranks by an all-gather: `gather(mine, timeout)` returns the bytes of all ranks, in the order
        of ranks. It is called twice, from another thread."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """A communicator of the ranks that give the same color, ordered by their keys. All ranks must call it."""

    def duplicate(self) -> Communicator:
        """A communicator of the same ranks, whose operations go on beside those of this one."""

    def close(self) -> None:
        """Leaves the group."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @overload
    def allreduce(
        self,
        data: _Array,
        op: _Reduction = "sum",
        *,
        out: _Array | None = None,
        algorithm: _Algorithm = "auto",
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def allreduce(
        self,
        data: _Array,
        op: _Reduction = "sum",
        *,
        out: _Array | None = None,
        algorithm: _Algorithm = "auto",
        async_op: Literal[True],
    ) -> Work:
        """Reduces the arrays of all ranks, for all ranks: in place, or into `out`."""

    @overload
    def reduce_scatter(
        self,
        data: _Array,
        out: _Array,
        op: _Reduction = "sum",
        *,
        algorithm: _Algorithm = "auto",
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        data: _Array,
        out: _Array,
        op: _Reduction = "sum",
        *,
        algorithm: _Algorithm = "auto",
        async_op: Literal[True],
    ) -> Work:
        """Reduces the arrays of all ranks; rank r gets the r-th block."""

    @overload
    def allgather(
        self, data: _Array, out: _Array, *, algorithm: _Algorithm = "auto", async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def allgather(
        self, data: _Array, out: _Array, *, algorithm: _Algorithm = "auto", async_op: Literal[True]
    ) -> Work:
        """Gives all ranks the arrays of all ranks."""

    @overload
    def all_to_all(
        self,
        data: _Array,
        out: _Array,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        async_op: Literal[False] = False,
    ) -> None: ...
    @overload
    def all_to_all(
        self,
        data: _Array,
        out: _Array,
        send_counts: Sequence[int] | None = None,
        recv_counts: Sequence[int] | None = None,
        *,
        async_op: Literal[True],
    ) -> Work:
        """Gives rank r the r-th block of all ranks. Blocks are equal, or have the counts given."""

    @overload
    def broadcast(self, data: _Array, root: int = 0, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def broadcast(self, data: _Array, root: int = 0, *, async_op: Literal[True]) -> Work:
        """Gives all ranks the root's array."""

    @overload
    def reduce(
        self, data: _Array, op: _Reduction = "sum", root: int = 0, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def reduce(self, data: _Array, op: _Reduction = "sum", root: int = 0, *, async_op: Literal[True]) -> Work:
        """Reduces the arrays of all ranks at the root, in place. Those of the others stay."""

    @overload
    def gather(
        self, data: _Array, out: _Array | None = None, root: int = 0, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def gather(self, data: _Array, out: _Array | None = None, root: int = 0, *, async_op: Literal[True]) -> Work:
        """Gives the root the arrays of all ranks. Only the root needs `out`."""

    @overload
    def scatter(
        self, out: _Array, data: _Array | None = None, root: int = 0, *, async_op: Literal[False] = False
    ) -> None: ...
    @overload
    def scatter(self, out: _Array, data: _Array | None = None, root: int = 0, *, async_op: Literal[True]) -> Work:
        """Gives rank r the r-th block of the root's array. Only the root needs `data`."""

    @overload
    def barrier(self, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def barrier(self, *, async_op: Literal[True]) -> Work:
        """Is over when all ranks have come here."""

    @overload
    def send(self, data: _Array, to: int, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def send(self, data: _Array, to: int, *, async_op: Literal[True]) -> Work:
        """Sends an array to a rank, which must receive one of the same length and type."""

    @overload
    def recv(self, out: _Array, source: int, *, async_op: Literal[False] = False) -> None: ...
    @overload
    def recv(self, out: _Array, source: int, *, async_op: Literal[True]) -> Work:
        """Receives an array from a rank."""

    def _start(
        self,
        operation: str,
        dtype: str,
        count: int,
        op: str = "sum",
        root: int = 0,
        input: tuple[int, int, object] | None = None,
        output: tuple[int, int, object] | None = None,
        counts: tuple[Sequence[int], Sequence[int]] | None = None,
        exact: bool = False,
    ) -> Work:
        """Starts an operation on memory by its address: (address, bytes, owner). With `exact` nothing may be missing."""

def plan(
    bandwidth_bps: float,
    rtt_s: float,
    loss: float,
    size_bytes: int,
    chunk_bytes: int,
    quantile: float | None,
) -> tuple[list[tuple[str, float, float, float, float, float]], int, float]: ...
def device_addr(peer: str | None, rank: int) -> str: ...
