"""One large request of consecutive blocks, end to end, beside a raw NIXL read of the same bytes and beside memcpy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import numpy as np

from kvweave.benchmarks.effort import Effort, in_turns
from kvweave.benchmarks.memory import CacheShape, consecutive
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.source import Source

PIECE_BYTES = 16 << 10
LIMIT = Limit(Bound.AT_LEAST, 0.95)


def contiguous(source: Source, effort: Effort) -> Iterator[Line]:
    """Three contenders in turns, after one read each whose bytes are checked."""
    blocks = CacheShape(PIECE_BYTES, 1).blocks_for(effort.large_bytes)
    shape = CacheShape(PIECE_BYTES, blocks)
    pair, table, nbytes = Pair(source, shape), consecutive(blocks), shape.request_bytes(blocks)
    with pair.engine() as ours, pair.raw() as raw:
        for reader in (ours, raw):
            reader.read(table, table)
            pair.require_delivered(table, table)
        copy = _Copy(nbytes)
        contenders = {"ours": lambda: ours.read(table, table), "raw": lambda: raw.read(table, table), "copy": copy.copy}
        seconds = in_turns(contenders, effort.rounds)
    yield Line(
        "contiguous", f"{nbytes / 1e6:.0f} MB in one piece a layer, fetch to delivered",
        (
            Value.speed("kvweave", nbytes, seconds["ours"]),
            Value.speed("raw NIXL read", nbytes, seconds["raw"]),
            Value.speed("memcpy", nbytes, seconds["copy"]),
        ),
        "speed by the raw read's", median(seconds["raw"]) / median(seconds["ours"]), LIMIT,
    )  # fmt: skip


class _Copy:
    """A copy of as many bytes inside one process."""

    def __init__(self, nbytes: int) -> None:
        self._source = np.ones(nbytes, np.uint8)
        self._target = np.zeros(nbytes, np.uint8)

    def copy(self) -> float:
        started = time.perf_counter()
        np.copyto(self._target, self._source)
        return time.perf_counter() - started
