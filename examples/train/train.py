"""One rank of a small transformer that learns text: see examples/train/run --help.

usage: train.py BACKEND [--fsdp] [--steps N] [--out FILE] [OPTION=VALUE...]

BACKEND is gloo or bowline, OPTIONs are those of bowline.torch.Options. Ranks are placed by torchrun's variables. Rank 0 writes
a JSON object to FILE: the loss and the time of each step, the loss on text that was held back, and whether all ranks have the
same parameters in the end.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

REPO = Path(__file__).resolve().parents[2]
CONTEXT, BATCH = 64, 4
WIDTH, HEADS, LAYERS = 256, 4, 4
HELD_BACK = 16


class Block(nn.Module):
    """Attention to what came before, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(self.norms[0](x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    """A transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def read_text() -> torch.Tensor:
    """The documents of the repository, one after the other."""
    files = [REPO / "ARCHITECTURE.md", REPO / "README.md", *sorted((REPO / "docs").glob("*.md"))]
    return torch.tensor(list(b"\n".join(file.read_bytes() for file in files)), dtype=torch.long)


def batches(text: torch.Tensor, generator: torch.Generator, size: int):
    """Pieces of the text, and the byte behind each place."""
    starts = torch.randint(len(text) - CONTEXT - 1, (size,), generator=generator)
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def loss_of(model: nn.Module, text: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(text).reshape(-1, 256), expected.reshape(-1))


def digest(model: nn.Module) -> str:
    """A hash of all parameters, as whole tensors."""
    hashed = hashlib.blake2b()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        hashed.update(whole.detach().cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()


def agree(store: dist.Store, name: str, value: str, ranks: int, rank: int) -> bool:
    """Whether all ranks have the same value. By the store, which loses nothing."""
    store.set(f"{name}/{rank}", value)
    return len({store.get(f"{name}/{other}") for other in range(ranks)}) == 1


def leave(store: dist.Store, ranks: int, rank: int) -> None:
    """Rank 0 serves the store, so it leaves last: otherwise the others' last requests would fail."""
    store.set(f"over/{rank}", "yes")
    if rank == 0:
        store.wait([f"over/{other}" for other in range(ranks)])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=["gloo", "bowline"])
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cuda", action="store_true", help="tensors on a GPU")
    parser.add_argument("--out", type=Path)
    parser.add_argument("options", nargs="*", metavar="OPTION=VALUE")
    return parser.parse_intermixed_args()


def pg_options(given: list[str]):
    """Options of the backend: numbers where they are some."""
    import bowline.torch

    def value(text: str):
        for number in (int, float):
            try:
                return number(text)
            except ValueError:
                pass
        return text

    options = dict(option.split("=", 1) for option in given)
    return bowline.torch.Options(**{name: value(text) for name, text in options.items()})


def wrap(model: nn.Module, fsdp: bool) -> nn.Module:
    if not fsdp:
        # One bucket, as long as it can be: the link is what takes time.
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=64)
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def main() -> None:
    args = parse()
    torch.set_num_threads(1)
    options = pg_options(args.options) if args.backend == "bowline" else None
    dist.init_process_group(args.backend, pg_options=options)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    store = dist.distributed_c10d._get_default_store()
    device = torch.device("cuda", 0) if args.cuda else torch.device("cpu")
    torch.manual_seed(1)  # The same model at all ranks.
    model = wrap(Model().to(device), args.fsdp)
    text = read_text()
    held_back, text = text[: len(text) // 10], text[len(text) // 10 :]
    generator = torch.Generator().manual_seed(100 + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    steps = []
    started = time.perf_counter()
    for step in range(args.steps):
        pieces, expected = (part.to(device) for part in batches(text, generator, BATCH))
        loss = loss_of(model, pieces, expected)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.append({"step": step + 1, "seconds": time.perf_counter() - started, "loss": loss.item()})
    with torch.no_grad():
        pieces, expected = batches(held_back, torch.Generator().manual_seed(1), HELD_BACK)
        final = loss_of(model, pieces.to(device), expected.to(device)).item()
    equal = agree(store, "parameters", digest(model), ranks, rank)
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in model.parameters())
        result = {"backend": args.backend, "ranks": ranks, "parameters": parameters, "steps": steps,
                  "seconds": steps[-1]["seconds"], "final_loss": final, "replicas_equal": equal}
        if args.out:
            args.out.write_text(json.dumps(result))
        print(json.dumps({name: value for name, value in result.items() if name != "steps"}), flush=True)
    dist.destroy_process_group()
    leave(store, ranks, rank)


main()
