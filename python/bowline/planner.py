"""Which reliability scheme for a link, before anybody builds it (docs/plan.md)."""

from __future__ import annotations

from dataclasses import dataclass

from . import _bowline


@dataclass(frozen=True)
class SchemeTimes:
    """How long a message takes under a scheme, in seconds."""

    name: str
    mean: float
    p50: float
    p99: float
    p999: float
    #: Bandwidth on top of the message's own, as a share of it.
    overhead: float


@dataclass(frozen=True)
class Plan:
    """What each reliable scheme takes for a message on a link."""

    schemes: tuple[SchemeTimes, ...]
    #: The one to take.
    best: SchemeTimes
    #: Seconds without any loss.
    ideal: float


def plan(
    *,
    bandwidth: float,
    rtt: float,
    loss: float,
    size: int,
    chunk: int = 64 << 10,
    quantile: float | None = None,
) -> Plan:
    """Plans a message of `size` bytes on a link of `bandwidth` bit/s and a round trip of `rtt` seconds that loses
    packets with probability `loss`. The best scheme has the shortest mean time, or the shortest time within
    which the share `quantile` of messages is complete.

    >>> plan(bandwidth=400e9, rtt=25e-3, loss=1e-5, size=128 << 20).best.name
    'lowar'
    """
    rows, best, ideal = _bowline.plan(bandwidth, rtt, loss, size, chunk, quantile)
    schemes = tuple(SchemeTimes(*row) for row in rows)
    return Plan(schemes, schemes[best], ideal)
