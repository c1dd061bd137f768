"""Tensors as memory that Bowline understands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

import bowline

_TYPES = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.int32: "i32",
    torch.uint32: "u32",
    torch.int64: "i64",
    torch.uint64: "u64",
    torch.bool: "u8",
}
_REDUCTIONS = (
    (dist.ReduceOp.SUM, "sum"),
    (dist.ReduceOp.AVG, "average"),
    (dist.ReduceOp.MIN, "min"),
    (dist.ReduceOp.MAX, "max"),
    (dist.ReduceOp.PRODUCT, "product"),
)
# What a reduction of ones and zeros is to give: or for sums, and for products.
_OF_BOOLS = {"sum": "max", "product": "min", "min": "min", "max": "max"}


@dataclass
class Op:
    """An operation on dense tensors of one device. Without an input it is in place, if it can be; both are None
    where this rank has none."""

    name: str
    input: torch.Tensor | None
    output: torch.Tensor | None
    #: Elements, as the operation counts them.
    count: int
    dtype: str = "u8"
    reduction: str = "sum"
    root: int = 0
    counts: tuple[list[int], list[int]] | None = None
    #: To be called when it is over.
    finish: list[Callable[[], object]] = field(default_factory=list)

    @property
    def tensor(self) -> torch.Tensor | None:
        return self.output if self.output is not None else self.input

    @property
    def may_lose(self) -> bool:
        """Whether something of it may be missing: a sum of floats is one of many steps, everything else is needed."""
        return self.reduction in ("sum", "average") and self.dtype in ("f32", "f64", "f16", "bf16")

    def on(self, input: torch.Tensor | None, output: torch.Tensor | None, count: int | None = None) -> Op:
        """The same on other memory."""
        return replace(self, input=input, output=output, count=self.count if count is None else count, finish=[])

    def start(self, comm: bowline.Communicator) -> bowline.Work:
        return comm._start(
            self.name,
            self.dtype,
            self.count,
            self.reduction,
            self.root,
            _memory(self.input),
            _memory(self.output),
            self.counts,
            not self.may_lose,
        )


def _memory(tensor: torch.Tensor | None):
    if tensor is None:
        return None
    return tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor


def nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def reduction_of(op, tensor: torch.Tensor) -> dict:
    """Type and reduction of a reducing operation."""
    dtype = _TYPES.get(tensor.dtype)
    if dtype is None:
        raise bowline.InvalidArgument(f"bowline cannot reduce {tensor.dtype}: take one of {', '.join(map(str, _TYPES))}")
    name = next((name for known, name in _REDUCTIONS if op == known), None)
    if tensor.dtype == torch.bool:
        name = _OF_BOOLS.get(name)
    if name is None:
        raise bowline.InvalidArgument(f"bowline has no reduction {op} of {tensor.dtype}")
    return {"dtype": dtype, "reduction": name}


def dense_input(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements in a row."""
    return tensor.detach().contiguous()


def dense_output(tensor: torch.Tensor, finish: list, keep: bool = False) -> torch.Tensor:
    """Memory in a row for the elements of a tensor, which get there in the end. It holds them already if `keep`."""
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor
    dense = tensor.contiguous() if keep else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    finish.append(lambda: tensor.copy_(dense))
    return dense


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The bytes of tensors one after the other."""
    return torch.cat([dense_input(t).view(-1).view(torch.uint8) for t in tensors])


def unflatten(tensors: list[torch.Tensor], finish: list) -> torch.Tensor:
    """Memory for the bytes of tensors one after the other, which get there in the end."""
    sizes = [nbytes(t) for t in tensors]
    whole = torch.empty(sum(sizes), dtype=torch.uint8, device=tensors[0].device)

    def scatter() -> None:
        for tensor, part in zip(tensors, whole.split(sizes)):
            # A part may begin anywhere, and elements must be aligned for a view of them.
            part = part if part.storage_offset() % tensor.element_size() == 0 else part.clone()
            tensor.detach().copy_(part.view(tensor.dtype).view(tensor.shape))

    finish.append(scatter)
    return whole
