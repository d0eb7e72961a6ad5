"""How an engine is cut over ranks, and where one rank stands in it.

An engine has ``pp * pcp * tp`` ranks. ``dcp`` reuses them, and ``dp`` multiplies engines, not ranks: each data
parallel rank is an engine of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kvweave.core.interval import Interval
from kvweave.core.whole import require_whole
from kvweave.errors import ConfigurationError

MOST_RANKS = 4096
"""The most ranks that one engine may have."""


@dataclass(frozen=True, slots=True, order=True)
class RankCoordinates:
    """Where a rank stands in its engine: pipeline stage, prefill context rank, tensor rank."""

    pp: int = 0
    pcp: int = 0
    tp: int = 0

    def __str__(self) -> str:
        return f"pp{self.pp}.pcp{self.pcp}.tp{self.tp}" if self.pp or self.pcp else f"tp{self.tp}"


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """The sizes that cut an engine, with vLLM's names.

    ``interleave`` is vLLM's ``cp_kv_cache_interleave_size``, in tokens. ``stage_layers`` states how many layers each
    pipeline stage owns; without it vLLM's rule applies. ``stated`` gives, for an axis that does not divide by tp, the
    units that each tensor rank holds: ``{"head": (Interval(0, 2), Interval(2, 3))}`` cuts three heads over two ranks,
    and applies to the arrays whose axis has exactly that many units.
    """

    tp: int = 1
    pp: int = 1
    dcp: int = 1
    pcp: int = 1
    dp: int = 1
    interleave: int = 1
    stage_layers: tuple[int, ...] | None = None
    stated: Mapping[str, tuple[Interval, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dcp", "pcp", "dp", "interleave"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(
                    f"{name}: {value!r} is not a whole number of at least 1; state {name}=1 or more"
                )
        if self.ranks_per_engine > MOST_RANKS:
            raise ConfigurationError(
                f"ranks: pp={self.pp}, pcp={self.pcp}, tp={self.tp} make {self.ranks_per_engine} ranks; an engine has "
                f"at most {MOST_RANKS}"
            )
        self._check_dcp()
        self._check_stages()
        if not isinstance(self.stated, Mapping):
            raise ConfigurationError(f"stated: {self.stated!r}; state intervals by the name of their axis")
        for axis, intervals in self.stated.items():
            if not isinstance(intervals, Sequence) or not all(isinstance(held, Interval) for held in intervals):
                raise ConfigurationError(f"stated {axis}: {intervals!r}; state one interval per tensor rank")
            if len(intervals) != self.tp:
                raise ConfigurationError(
                    f"stated {axis}: {len(intervals)} intervals for tp={self.tp}; state one interval per tensor rank"
                )
            _check_intervals(axis, intervals)

    def _check_dcp(self) -> None:
        if self.pcp == 1:
            if self.tp % self.dcp:
                raise ConfigurationError(f"dcp: {self.dcp} does not divide tp={self.tp}; choose a divisor of tp")
        elif self.dcp not in (1, self.pcp, self.tp * self.pcp):
            raise ConfigurationError(
                f"dcp: {self.dcp} with pcp={self.pcp}, tp={self.tp}; it must be 1, pcp ({self.pcp}) "
                f"or tp*pcp ({self.tp * self.pcp})"
            )

    def _check_stages(self) -> None:
        if self.stage_layers is None:
            return
        if not isinstance(self.stage_layers, Sequence):
            raise ConfigurationError(f"stage_layers: {self.stage_layers!r}; state one number per stage")
        if len(self.stage_layers) != self.pp:
            raise ConfigurationError(
                f"stage_layers: {len(self.stage_layers)} stages for pp={self.pp}; state one number per stage"
            )
        for layers in self.stage_layers:
            require_whole("stage_layers", layers=layers)

    @property
    def ranks_per_engine(self) -> int:
        """How many ranks one engine has."""
        return self.pp * self.pcp * self.tp

    def ranks(self) -> Iterator[RankCoordinates]:
        """All ranks of one engine, tensor rank fastest, as vLLM numbers them."""
        for pp in range(self.pp):
            for pcp in range(self.pcp):
                for tp in range(self.tp):
                    yield RankCoordinates(pp, pcp, tp)

    def dcp_rank(self, rank: RankCoordinates) -> int:
        """Which share of the interleaved tokens a rank holds (vLLM's ``get_dcp_group`` order)."""
        return (rank.tp * self.pcp + rank.pcp) % self.dcp

    def stages(self, num_layers: int) -> tuple[Interval, ...]:
        """The decoder layers of each pipeline stage.

        Without ``stage_layers``: equal shares; surplus layers go one each to stages from the second last one backward
        (vLLM's ``get_pp_indices``).

        >>> [str(stage) for stage in ParallelConfig(pp=4).stages(10)]
        ['[0, 2)', '[2, 5)', '[5, 8)', '[8, 10)']
        """
        counts = list(self.stage_layers) if self.stage_layers is not None else _default_stages(num_layers, self.pp)
        if sum(counts) != num_layers:
            raise ConfigurationError(
                f"stage_layers: {tuple(counts)} sum to {sum(counts)}, the model has {num_layers} layers; "
                "make them equal"
            )
        starts = [sum(counts[:stage]) for stage in range(self.pp)]
        return tuple(Interval(start, start + count) for start, count in zip(starts, counts, strict=True))


def _check_intervals(axis: str, intervals: tuple[Interval, ...]) -> None:
    """Every tensor rank holds something, and every unit is on some rank."""
    reached = 0
    for interval in sorted(intervals):
        if len(interval) == 0:
            raise ConfigurationError(f"stated {axis}: {interval} is empty; give every tensor rank at least one unit")
        if interval.start > reached:
            raise ConfigurationError(
                f"stated {axis}: no rank holds {Interval(reached, interval.start)}; leave no gap between 0 and the end"
            )
        reached = max(reached, interval.stop)


def _default_stages(num_layers: int, pp: int) -> list[int]:
    if num_layers < pp:
        raise ConfigurationError(f"pp: {pp} stages for {num_layers} layers; choose pp <= {num_layers}")
    share, surplus = divmod(num_layers, pp)
    counts = [share] * pp
    for back in range(2, surplus + 2):
        counts[-back] += 1
    return counts
