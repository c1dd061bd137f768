"""Bowline: collective operations over RDMA in user space, and a planner for long links.

>>> import numpy as np, bowline
>>> comm = bowline.Communicator.from_env()      # under torchrun, mpirun or srun
>>> x = np.ones(1000, np.float32)
>>> comm.allreduce(x)                           # in place, no copy

`import bowline.torch` registers the backend "bowline" with torch.distributed.
"""

from ._bowline import Communicator, Report, Work, __version__
from .errors import Error, InvalidArgument, PathError, PeerError, RankFailed, ResourceError
from .planner import Plan, SchemeTimes, plan

__all__ = [
    "Communicator",
    "Error",
    "InvalidArgument",
    "PathError",
    "PeerError",
    "Plan",
    "RankFailed",
    "Report",
    "ResourceError",
    "SchemeTimes",
    "Work",
    "__version__",
    "plan",
]
