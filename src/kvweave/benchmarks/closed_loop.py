"""Requests of one size one after another, always so many under way, beside one large transfer.

Two at once: while the bytes of one move, the other's messages do. One of them has all threads that copy, so more at
once would only wait for each other.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from statistics import median

import numpy as np

from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.memory import GROUP, CacheShape, consecutive
from kvweave.benchmarks.pair import Fetcher, Pair
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.source import Source
from kvweave.runtime import Fetch

PIECE_BYTES = 16 << 10
AT_ONCE = 2
SPEED_LIMIT = Limit(Bound.AT_LEAST, 0.8)
TAIL_LIMIT = Limit(Bound.AT_MOST, 2.0)
_PATIENCE_SECONDS = 60.0


def closed_loop(source: Source, effort: Effort) -> Iterator[Line]:
    """Loops and large transfers in turns; the latencies of all loops count together."""
    shape_of = CacheShape(PIECE_BYTES, 1)
    small, large = shape_of.blocks_for(effort.loop_bytes), shape_of.blocks_for(effort.large_bytes)
    pair = Pair(source, CacheShape(PIECE_BYTES, max(large, AT_ONCE * small)))
    table, nbytes = consecutive(large), pair.shape.request_bytes(small)
    loops: list[float] = []
    single: list[float] = []
    tails: list[float] = []
    latencies: list[float] = []
    with pair.engine() as ours:
        ours.read(table, table)
        pair.require_delivered(table, table)
        for _ in range(effort.openings):
            single += [ours.read(table, table) for _ in range(2)]
            seconds, took = _loop(ours, small, effort.loop_requests)
            loops.append(seconds)
            latencies += took
            tails.append(float(np.percentile(took, 99)) / median(took))
    loop_speed = Value.speed("kvweave", nbytes * effort.loop_requests, loops)
    single_speed = Value.speed("one large transfer", pair.shape.request_bytes(large), single)
    title = f"{effort.loop_requests} requests of {nbytes / 1e6:.0f} MB, {AT_ONCE} at once"
    yield Line(
        "loop.speed", title, (loop_speed, single_speed), "speed by the large transfer's",
        loop_speed.value / single_speed.value, SPEED_LIMIT,
    )  # fmt: skip
    yield Line(
        "loop.tail", "  their latency", (Value.milliseconds("median of all", latencies),), "p99 by the median",
        median(tails), TAIL_LIMIT,
    )  # fmt: skip


def _loop(ours: Fetcher, blocks: int, requests: int) -> tuple[float, Sequence[float]]:
    """Seconds of the whole loop and of each request, its reference in hand before the loop begins."""
    places = [consecutive(blocks, place * blocks) for place in range(AT_ONCE)]
    references = [ours.offer(places[number % AT_ONCE]) for number in range(requests)]
    ended: queue.SimpleQueue[tuple[int, float, float, Fetch]] = queue.SimpleQueue()

    def begin(place: int) -> None:
        began = time.perf_counter()
        fetch = ours.engine.fetch(references.pop(), {GROUP: places[place]})
        fetch.add_done_callback(lambda done: ended.put((place, began, time.perf_counter(), done)))

    started = time.perf_counter()
    for place in range(AT_ONCE):
        begin(place)
    took = []
    for _ in range(requests):
        place, began, now, fetch = ended.get(timeout=_PATIENCE_SECONDS)
        fetch.result(0)
        took.append(now - began)
        if references:
            begin(place)
    return time.perf_counter() - started, took
