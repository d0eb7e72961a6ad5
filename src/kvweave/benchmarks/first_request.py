"""What the first request costs more than the tenth, with a peer that the configuration names."""

from __future__ import annotations

from collections.abc import Iterator

from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.memory import CacheShape, consecutive
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.source import Source

PIECE_BYTES = 16 << 10
REQUESTS = 10
LIMIT = Limit(Bound.AT_MOST, 10)


def first_request(source: Source, effort: Effort) -> Iterator[Line]:
    """Both engines are opened anew for every sample, each with ten requests."""
    blocks = CacheShape(PIECE_BYTES, 1).blocks_for(effort.loop_bytes)
    pair, table = Pair(source, CacheShape(PIECE_BYTES, blocks)), consecutive(blocks)
    first, tenth = [], []
    for _ in range(2 * effort.openings - 1):
        with pair.engine() as ours:
            seconds = [ours.read(table, table) for _ in range(REQUESTS)]
        pair.require_delivered(table, table)
        first.append(seconds[0])
        tenth.append(seconds[-1])
    excess = Value.milliseconds("excess", [one - other for one, other in zip(first, tenth, strict=True)])
    yield Line(
        "first", f"the first request of an engine, {pair.shape.request_bytes(blocks) / 1e6:.0f} MB",
        (Value.milliseconds("the first", first), Value.milliseconds("the tenth", tenth)),
        "ms more than the tenth", excess.value, LIMIT,
    )  # fmt: skip
