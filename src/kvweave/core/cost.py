"""What a request costs: bytes, rows, and an estimate of the time.

Each row costs a fixed time and each byte its share of the bandwidth::

    seconds = rows * seconds_per_row + bytes / bytes_per_second

The defaults were measured with NIXL over UCX in shared memory on a two-core machine without GPU: contiguous reads at 10
GB/s, 3.2 microseconds a row. Absolute times move from machine to machine; the ratio holds better: **one row costs as
much as 32 KB of contiguous bytes**. Below that size a run costs more for being a row than for its bytes. State your own
machine's figures with ``TransferRates``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import numpy as np

from kvweave.core.descriptors import RequestDescriptors
from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.core.plan import TransferPlan
from kvweave.core.read import Read, ReadEnd
from kvweave.core.replicas import Salt
from kvweave.core.sample import room_tokens, sample_tables
from kvweave.errors import ConfigurationError, PlanError

_SEED = 20260311


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


@dataclass(frozen=True, slots=True)
class TransferRates:
    """How fast a machine moves bytes: what one row costs beside its bytes, and bytes per second in one run."""

    seconds_per_row: float = 3.2e-6
    bytes_per_second: float = 10e9

    def __post_init__(self) -> None:
        if not (_is_number(self.seconds_per_row) and self.seconds_per_row >= 0):
            raise ConfigurationError(
                f"seconds_per_row: {self.seconds_per_row!r} is not a number of at least 0; measure one row"
            )
        if not (_is_number(self.bytes_per_second) and self.bytes_per_second > 0):
            raise ConfigurationError(
                f"bytes_per_second: {self.bytes_per_second!r} is not above 0; measure a contiguous read"
            )

    @property
    def row_bytes(self) -> float:
        """How many contiguous bytes cost as much as one row.

        >>> TransferRates().row_bytes
        32000.0
        """
        return self.seconds_per_row * self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes, rows and estimated seconds of what one rank reads."""

    nbytes: int
    rows: int
    seconds: float

    def times(self, count: int) -> Cost:
        """The cost of doing it that many times."""
        return Cost(self.nbytes * count, self.rows * count, self.seconds * count)

    @staticmethod
    def total(costs: Iterable[Cost]) -> Cost:
        """The cost of doing one after another."""
        every = list(costs)
        return Cost(sum(c.nbytes for c in every), sum(c.rows for c in every), sum(c.seconds for c in every))


@dataclass(frozen=True, slots=True)
class RequestCost:
    """One request, by target rank. Ranks read at the same time, so the slowest one decides."""

    ranks: Mapping[RankCoordinates, Cost]

    @property
    def nbytes(self) -> int:
        """Bytes over all ranks."""
        return sum(cost.nbytes for cost in self.ranks.values())

    @property
    def rows(self) -> int:
        """Rows over all ranks."""
        return sum(cost.rows for cost in self.ranks.values())

    @property
    def seconds(self) -> float:
        """Estimated seconds until the last rank has everything."""
        return max((cost.seconds for cost in self.ranks.values()), default=0.0)


def cost_of(descriptors: RequestDescriptors, rates: TransferRates | None = None) -> Cost:
    """What one target rank's rows cost."""
    rates = rates or TransferRates()
    rows, nbytes = descriptors.num_rows, descriptors.total_bytes
    return Cost(nbytes, rows, rows * rates.seconds_per_row + nbytes / rates.bytes_per_second)


def estimate_request(
    plan: TransferPlan,
    num_tokens: int,
    scattered: bool = False,
    rates: TransferRates | None = None,
    salt: Salt = 0,
) -> RequestCost:
    """What a request of ``num_tokens`` tokens costs, in blocks one after another, or ``scattered`` at random.

    Raises ``PlanError`` for a request that does not fit the blocks of either engine.
    """
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise PlanError(f"tokens: {num_tokens!r} is not a length of a request; state a whole number of at least 1")
    for side, layout in (("prefill", plan.prefill), ("decode", plan.decode)):
        _check_room(side, layout, num_tokens)
    random = np.random.default_rng(_SEED) if scattered else None
    source, target = (sample_tables(layout, num_tokens, random) for layout in (plan.prefill, plan.decode))
    rates = rates or TransferRates()
    costs: dict[RankCoordinates, Cost] = {}
    for rank, reads in plan.reads.items():
        parts = []
        for part, times in _distinct(reads):
            described = replace(plan, reads={rank: part}).descriptors(rank, source, target, num_tokens, salt=salt)
            parts.append(cost_of(described, rates).times(times))
        costs[rank] = Cost.total(parts)
    return RequestCost(costs)


def _distinct(reads: Sequence[Read]) -> Iterator[tuple[tuple[Read, ...], int]]:
    """Reads of the same layers, cut to one layer where all cost the same, and how many layers that stands for.

    Rows of several layers join only where these lie in one region on both sides.
    """
    by_layers: dict[tuple[str, ...], list[Read]] = defaultdict(list)
    for read in reads:
        by_layers[read.layers].append(read)
    for layers, alike in by_layers.items():
        if all(_layers_lie_apart(read) for read in alike):
            yield tuple(_first_layer(read) for read in alike), len(layers)
        else:
            yield tuple(alike), 1


def _layers_lie_apart(read: Read) -> bool:
    count = len(read.layers)
    return len(np.unique(read.target.regions)) == count or all(
        len(np.unique(end.regions)) == count for end in read.sources
    )


def _first_layer(read: Read) -> Read:
    sources = tuple(_first_place(end) for end in read.sources)
    return replace(read, layers=read.layers[:1], sources=sources, target=_first_place(read.target))


def _first_place(end: ReadEnd) -> ReadEnd:
    return replace(end, regions=end.regions[:1], addresses=end.addresses[:1])


def _check_room(side: str, layout: EngineLayout, num_tokens: int) -> None:
    room = room_tokens(layout)
    if num_tokens > room:
        raise PlanError(
            f"tokens: a request of {num_tokens}, but the {side} engine's blocks hold {room}; raise its num_blocks or "
            "shorten the request"
        )
