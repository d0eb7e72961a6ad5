"""What a request costs in our own code: everything between its order and its end but NIXL's post call.

One decode rank is driven by hand, without an engine's threads, so that nothing but its work is counted: the lookup of
the plan, the rows, their check and cut, NIXL's calls that prepare and release, and the look at what has ended. The
incumbent's side is the same of its way: ids in its prepared lists, the calls that make, check and release the transfer.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

from kvweave.benchmarks.effort import Effort
from kvweave.benchmarks.memory import GROUP, CacheShape, consecutive, scattered
from kvweave.benchmarks.pair import Pair
from kvweave.benchmarks.raw_nixl import IncumbentReader
from kvweave.benchmarks.report import Bound, Limit, Line, Value
from kvweave.benchmarks.source import Source
from kvweave.benchmarks.stopwatch import POST, TimedAgent, replace_agent
from kvweave.benchmarks.ways import Way, transport_factory
from kvweave.protocol.effects import ConnectPeer, PostReads
from kvweave.runtime.clock import boot_time
from kvweave.runtime.events import Connected, NotConnected, ReadFailed, ReadsEnded
from kvweave.runtime.workers import DecodeWorker

SHARE_LIMIT = Limit(Bound.AT_MOST, 5)
INCUMBENT_LIMIT = Limit(Bound.BELOW, 1)
_BLOCK_SIZE = 16
_PIECE_STEP = 32 * _BLOCK_SIZE
_ADDRESS = "127.0.0.1:1"
_numbers = itertools.count(1)

Functions = Callable[[IncumbentReader], Callable[[Sequence[int], Sequence[int]], float]]
"""The incumbent's own functions over a reader's agent and lists: seconds outside the post call that a request takes."""


def overhead(source: Source, effort: Effort, functions: Functions | None = None) -> Iterator[Line]:
    """Consecutive and scattered blocks; ``functions`` are vLLM's own, where it is installed."""
    blocks = effort.overhead_blocks
    piece = max(1, round(effort.request_bytes / blocks / CacheShape(_PIECE_STEP, 1).layers / _PIECE_STEP)) * _PIECE_STEP
    pair = Pair(source, CacheShape(piece, 2 * blocks, block_size=_BLOCK_SIZE))
    tables = {
        "contiguous": (consecutive(blocks), consecutive(blocks)),
        "fragmented": (scattered(2 * blocks, blocks, seed=1), scattered(2 * blocks, blocks, seed=2)),
    }
    nbytes = pair.shape.request_bytes(blocks)
    with _rank(pair) as rank:
        for name, chosen in tables.items():
            rank.request(*chosen)
            pair.require_delivered(*chosen)
            ours = [rank.request(*chosen) for _ in range(effort.rounds)]
            calls = rank.other_calls(chosen, effort.rounds)
            theirs = _incumbent(pair, chosen, effort, functions)
            title = f"cost of a request, {blocks:,} {name} blocks, {nbytes / 1e6:.0f} MB"
            yield from _lines(f"overhead.{name}", title, ours, calls, theirs, functions is not None)


class _Costs:
    """Of one request: seconds outside the post call, those in NIXL's other calls as far as they are counted, and from
    order to end.
    """

    def __init__(self, elapsed: float, agent: TimedAgent) -> None:
        self.outside_post = elapsed - agent.post_seconds
        self.other_calls = agent.other_seconds
        self.elapsed = elapsed


class _Rank:
    """One connected decode rank and its stopwatch."""

    def __init__(self, worker: DecodeWorker, agent: TimedAgent, shape: CacheShape) -> None:
        self._worker, self._agent, self._shape = worker, agent, shape

    def other_calls(self, tables: tuple[Sequence[int], Sequence[int]], rounds: int) -> Sequence[float]:
        """Seconds in NIXL's other calls, each counted: in requests of their own, since counting costs time too."""
        self._agent.count(None)
        found = [self.request(*tables).other_calls for _ in range(rounds)]
        self._agent.count(POST)
        return found

    def request(self, source_blocks: Sequence[int], target_blocks: Sequence[int]) -> _Costs:
        """Reads one request to its end."""
        number = next(_numbers)
        tokens = self._shape.tokens(len(source_blocks))
        source, target = ({GROUP: tuple(blocks)} for blocks in (source_blocks, target_blocks))
        order = PostReads(number, _ADDRESS, source, target, start_token=0, num_tokens=tokens, salt=number)
        self._agent.reset()
        started = time.perf_counter()
        self._worker.submit(order)
        _until(self._worker, ReadsEnded)
        return _Costs(time.perf_counter() - started, self._agent)


@contextmanager
def _rank(pair: Pair) -> Iterator[_Rank]:
    layout, agent_data = pair.source.open_rank()
    transport = transport_factory(Way.DIRECT)(f"bench rank {next(_numbers)}")
    agent = replace_agent(transport, lambda agent: TimedAgent(agent, only=POST))
    worker = DecodeWorker(0, pair.memory.layout, transport, boot_time)
    try:
        worker.submit(ConnectPeer(_ADDRESS, 1, layout, (agent_data,)))
        _until(worker, Connected)
        yield _Rank(worker, agent, pair.shape)
    finally:
        worker.close()


def _until(worker: DecodeWorker, wanted: type) -> None:
    while True:
        for event in worker.poll():
            if isinstance(event, NotConnected | ReadFailed):
                raise RuntimeError(f"the measured rank: {event.text}")
            if isinstance(event, wanted):
                return


def _incumbent(
    pair: Pair, tables: tuple[Sequence[int], Sequence[int]], effort: Effort, functions: Functions | None
) -> list[float]:
    with pair.incumbent() as reader:
        request = reader.cost if functions is None else functions(reader)
        request(*tables)
        found = [request(*tables) for _ in range(effort.rounds)]
        del request  # with it its agent, whose threads would burn a core beside what is measured next
    return found


def _lines(
    key: str, title: str, ours: Sequence[_Costs], calls: Sequence[float], theirs: Sequence[float], own: bool
) -> Iterator[Line]:
    mine = Value.milliseconds("kvweave", [one.outside_post for one in ours])
    nixl = Value.milliseconds("in that NIXL's other calls", calls)
    whole = Value.milliseconds("whole transfer", [one.elapsed for one in ours])
    other = Value.milliseconds("vLLM's functions" if own else "NixlConnector's NIXL calls", theirs)
    note = "" if own else "vLLM's own functions are not measured here (make bench does)"
    yield Line(
        f"{key}.incumbent", title, (mine, nixl, other), "time by the incumbent's", mine.value / other.value,
        INCUMBENT_LIMIT if own else None, note,
    )  # fmt: skip
    share = 100 * median([one.outside_post / one.elapsed for one in ours])
    yield Line(f"{key}.share", "  as a part of the transfer", (whole,), "% of the transfer's time", share, SHARE_LIMIT)
