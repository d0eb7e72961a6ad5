"""Reads under way: bytes that pass from source blocks into target blocks, whatever the processes do meanwhile.

A read copies its blocks one half after the other. It looks at the source as it is in that moment, and goes on while
either process stands still; a source that is gone fails it, a cancelled one may still write until it is terminal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from kvweave.core.replicas import replica_position
from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.scenario import FailingReads, SlowReads, Weather
from kvweave.testing.simulation.schedule import Process
from kvweave.testing.simulation.shapes import Piece

if TYPE_CHECKING:
    from kvweave.testing.simulation.prefill import PrefillProcess


@dataclass(eq=False, slots=True)
class Read:
    """One piece of one rank, of the content that its reference stands for.

    ``lost``: it failed because its source is gone. ``tried`` are replicas that failed.
    """

    fetch: int
    serial: int | None
    rank: int
    piece: int
    source: PrefillProcess
    source_rank: int
    pairs: Sequence[tuple[int, int]]
    terminal: bool = False
    failed: bool = False
    lost: bool = False
    cancelled: bool = False
    tried: set[int] = field(default_factory=set)


Ended = Callable[[Read], None]


class Reads:
    """All reads of one decode process. ``ended`` is called for each when it is terminal."""

    def __init__(
        self, process: Process, pool: BlockPool, faults: ReadFaults, dice: random.Random, ledger: Ledger
    ) -> None:
        self.open: dict[int, list[Read]] = {}
        self._labels: dict[tuple[int, int, int], int] = {}
        self._process = process
        self._pool = pool
        self._faults = faults
        self._dice = dice
        self._ledger = ledger

    def label(self, rank: int, piece: int, block: int) -> int | None:
        """The content of a piece of a rank's block."""
        return self._labels.get((rank, piece, block))

    def of_content(self, serial: int) -> list[Read]:
        """Reads under way that are to bring this content."""
        return [read for reads in self.open.values() for read in reads if read.serial == serial]

    def post(self, read: Read, ended: Ended) -> None:
        """Begins a read; ``ended(read)`` follows."""
        self.open.setdefault(read.fetch, []).append(read)
        seconds = self._faults.seconds(self._dice, read)
        schedule = self._process.schedule
        half = len(read.pairs) // 2
        schedule.after(seconds * self._dice.random(), partial(self._copy, read, read.pairs[:half]))
        schedule.after(seconds, partial(self._finish, read, read.pairs[half:], ended))

    def cancel(self, read: Read, ended: Ended) -> None:
        """Ends a read soon; it may write until then."""
        if not read.terminal and not read.cancelled:
            read.cancelled = True
            self._process.schedule.after(self._dice.uniform(0.0005, 0.2), partial(self._fail, read, ended))

    def _copy(self, read: Read, pairs: Sequence[tuple[int, int]]) -> None:
        if read.terminal or not self._process.alive or not read.source.readable:
            return
        for source_block, target_block in pairs:
            owner = self._pool.owner(target_block)
            self._ledger.require(
                owner == read.fetch,
                f"{self._process.name}: a read of fetch {read.fetch} writes into block {target_block}, which "
                f"{'nobody holds' if owner is None else f'fetch {owner} holds'}",
            )
            self._labels[read.rank, read.piece, target_block] = read.source.pool.labels[source_block]

    def _finish(self, read: Read, pairs: Sequence[tuple[int, int]], ended: Ended) -> None:
        if read.terminal or not self._process.alive:
            return
        if not read.source.readable:
            read.lost = True
            delay = self._dice.choice((0.01, 0.3, 1.5))
            self._process.schedule.after(delay, partial(self._fail, read, ended))
        elif self._faults.fails(read):
            self._fail(read, ended)
        else:
            self._copy(read, pairs)
            self._end(read, ended)

    def _fail(self, read: Read, ended: Ended) -> None:
        read.failed = read.failed or not read.terminal
        self._end(read, ended)

    def _end(self, read: Read, ended: Ended) -> None:
        if read.terminal or not self._process.alive:
            return
        read.terminal = True
        remaining = self.open[read.fetch]
        remaining.remove(read)
        if not remaining:
            del self.open[read.fetch]
        ended(read)


class ReadFaults:
    """How long reads last and which of them fail. ``fixed_seconds`` is for tests whose reads all last equally long."""

    def __init__(self, weather: Weather) -> None:
        self.failing: list[FailingReads] = []
        self.slow: list[SlowReads] = []
        self.fixed_seconds: float | None = None
        self._weather = weather

    def seconds(self, dice: random.Random, read: Read) -> float:
        """How long a read lasts that is posted now."""
        if self.fixed_seconds is not None:
            return self.fixed_seconds
        weather = self._weather
        longest = weather.long_read_seconds if dice.random() < weather.long_reads else weather.read_seconds
        place = read.source.place.number
        factors = [slow.factor for slow in self.slow if slow.prefill == place]
        return dice.uniform(0.001, longest) * max(factors, default=1.0)

    def fails(self, read: Read) -> bool:
        """Whether a read that would be complete now has failed."""
        place = read.source.place.number
        return any(fault.prefill == place and fault.rank in (None, read.source_rank) for fault in self.failing)


def choose_source(piece: Piece, salt: int, tried: set[int]) -> int | None:
    """The source rank that serves a piece for a request of that salt; another one where some were tried."""
    count = len(piece.sources)
    for turn in range(count):
        source = piece.sources[replica_position(piece.ordinal, piece.siblings, count, salt + turn)]
        if source not in tried:
            return source
    return None
