"""Bowline as a backend of torch.distributed.

>>> import torch.distributed as dist
>>> import bowline.torch
>>> dist.init_process_group("bowline")          # under torchrun

CPU tensors are used in place. CUDA tensors go through pinned memory.
"""

import torch
import torch.distributed as dist

from .backend import Backend, Options, create

__all__ = ["Backend", "Options"]

if not hasattr(dist.Backend, "BOWLINE"):
    # Where there is no GPU, torch must not look for one, as it would for a barrier.
    _devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    dist.Backend.register_backend("bowline", create, extended_api=True, devices=_devices)
