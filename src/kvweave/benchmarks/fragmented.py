"""Blocks in random order on both sides, in pieces of 4, 16 and 64 KB, beside the incumbent's way.

The incumbent's agents run a progress thread that burns a core each, so they are opened and closed for each round, and
ours is measured while none is there. Each way of the transport is measured apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from kvweave.benchmarks.effort import Effort, in_turns
from kvweave.benchmarks.memory import CacheShape, scattered
from kvweave.benchmarks.pair import Fetcher, Pair
from kvweave.benchmarks.raw_nixl import Kind
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.source import Source
from kvweave.benchmarks.ways import USUAL, Way

PIECES = (4 << 10, 16 << 10, 64 << 10)
LIMITS = {4 << 10: Limit(Bound.AT_LEAST, 5)}
STAGED_LIMITS = {4 << 10: Limit(Bound.AT_LEAST, 2.5), 16 << 10: Limit(Bound.AT_LEAST, 1.2)}
CHOICE_LIMIT = Limit(Bound.AT_MOST, 1.15)
READS_A_ROUND = 4
_POOL = 2
"""Blocks of an engine for each of the request's: what is read is half of what is there."""

Seconds = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class _Case:
    piece_bytes: int
    nbytes: int
    blocks: int

    @property
    def title(self) -> str:
        return f"pieces of {self.piece_bytes >> 10} KB in random order, {self.nbytes / 1e6:.0f} MB"

    @property
    def key(self) -> str:
        return f"fragmented.{self.piece_bytes >> 10}k"


def fragmented(source: Source, effort: Effort) -> Iterator[Line]:
    """For each size of pieces: against the incumbent, and the ways against each other."""
    for piece_bytes in PIECES:
        blocks = CacheShape(piece_bytes, 1).blocks_for(effort.fragmented_bytes)
        shape = CacheShape(piece_bytes, _POOL * blocks)
        case = _Case(piece_bytes, shape.request_bytes(blocks), blocks)
        yield from _lines(case, _measure(Pair(source, shape), case, effort))


def _measure(pair: Pair, case: _Case, effort: Effort) -> Seconds:
    """Seconds of each way and of the incumbent."""
    pool = pair.shape.num_blocks
    tables = scattered(pool, case.blocks, seed=1), scattered(pool, case.blocks, seed=2)
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        fetchers: dict[Way, Fetcher] = {way: stack.enter_context(pair.engine(way)) for way in Way}
        for fetcher in fetchers.values():
            fetcher.read(*tables)
            pair.require_delivered(*tables)
        contenders = {way.value: lambda reader=fetcher: reader.read(*tables) for way, fetcher in fetchers.items()}
        for opening in range(effort.openings):
            for name, seconds in in_turns(contenders, READS_A_ROUND, opening).items():
                found.setdefault(name, []).extend(seconds)
            for kind in (Kind.INCUMBENT, Kind.SINGLE):
                with pair.incumbent(kind) as incumbent:
                    found.setdefault(kind, []).extend(incumbent.read(*tables) for _ in range(READS_A_ROUND))
                pair.require_delivered(*tables)
    return found


def _lines(case: _Case, seconds: Seconds) -> Iterator[Line]:
    values = [Value.speed("kvweave", case.nbytes, seconds[USUAL])]
    values += [Value.speed(f"{way} way", case.nbytes, seconds[way]) for way in Way if way is not USUAL]
    values.append(Value.speed("NixlConnector's way", case.nbytes, seconds[Kind.INCUMBENT]))
    values.append(Value.speed("that without UCX threads", case.nbytes, seconds[Kind.SINGLE]))
    limit = LIMITS.get(case.piece_bytes)
    ratio, alone = (median(seconds[kind]) / median(seconds[USUAL]) for kind in (Kind.INCUMBENT, Kind.SINGLE))
    yield Line(case.key, case.title, tuple(values), "speed by the incumbent's", ratio, limit)
    yield Line(
        f"{case.key}.alone", "  NixlConnector's way without UCX threads", (), "speed by that way's", alone, limit
    )
    yield from _choice(case, {way: median(seconds[way]) for way in Way})


def _choice(case: _Case, took: Mapping[Way, float]) -> Iterator[Line]:
    """What gathering brings, and whether the cost model chooses well."""
    yield Line(
        f"{case.key}.staged", f"  gathered, {case.piece_bytes >> 10} KB", (), "speed by that of the direct way",
        took[Way.DIRECT] / took[Way.STAGED], STAGED_LIMITS.get(case.piece_bytes),
    )  # fmt: skip
    best = min(seconds for way, seconds in took.items() if way is not USUAL)
    yield Line(
        f"{case.key}.choice", f"  the way that is chosen, {case.piece_bytes >> 10} KB", (),
        "time by that of the best way", took[USUAL] / best, CHOICE_LIMIT,
    )  # fmt: skip
