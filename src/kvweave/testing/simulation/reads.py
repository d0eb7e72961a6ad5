"""Reads under way: bytes that pass from source blocks into target blocks, whatever the processes do meanwhile.

A read copies its blocks one half after the other. It looks at the source as it is in that moment, and goes on while
either process stands still; a source that is gone fails it, a cancelled one may still write until it is terminal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from kvweave.testing.simulation.ledger import Ledger
from kvweave.testing.simulation.memory import BlockPool
from kvweave.testing.simulation.scenario import TOKENS_PER_BLOCK, FailingReads, SlowReads, Weather
from kvweave.testing.simulation.schedule import Process

if TYPE_CHECKING:
    from kvweave.testing.simulation.prefill import PrefillProcess


Copy = tuple[int, int, int]
"""Of which piece, from which slot of the source, into which of the target."""


@dataclass(eq=False, slots=True)
class Read:
    """What one rank reads from one source rank for a fetch, into blocks of ``owner``.

    ``lost``: it failed because its source is gone.
    """

    fetch: int
    owner: int
    rank: int
    source: PrefillProcess
    source_rank: int
    copies: Sequence[Copy]
    terminal: bool = False
    failed: bool = False
    lost: bool = False
    cancelled: bool = False


Ended = Callable[[Read], None]


class Reads:
    """All reads of one decode process, ``open`` by the owner of their target blocks.

    ``ended`` is called for each when it is terminal. ``closed`` are target slots that none may write into.
    """

    def __init__(
        self, process: Process, pool: BlockPool, faults: ReadFaults, dice: random.Random, ledger: Ledger
    ) -> None:
        self.open: dict[int, list[Read]] = {}
        self.closed: set[int] = set()
        self._labels: dict[tuple[int, int, int], int] = {}
        self._process = process
        self._pool = pool
        self._faults = faults
        self._dice = dice
        self._ledger = ledger

    def label(self, rank: int, piece: int, slot: int) -> int | None:
        """The content of a piece of a slot of one rank."""
        return self._labels.get((rank, piece, slot))

    def every(self) -> list[Read]:
        """All reads under way."""
        return [read for reads in self.open.values() for read in reads]

    def of_fetch(self, fetch: int) -> list[Read]:
        """The reads under way of one fetch."""
        return [read for read in self.every() if read.fetch == fetch]

    def close_slots(self, slots: Iterable[int]) -> None:
        """These hold something of their owner's already."""
        self.closed.update(slots)

    def open_slots(self, slots: Iterable[int]) -> None:
        """These are nobody's any more."""
        self.closed.difference_update(slots)

    def post(self, read: Read, ended: Ended) -> None:
        """Begins a read; ``ended(read)`` follows."""
        self.open.setdefault(read.owner, []).append(read)
        seconds = self._faults.seconds(self._dice, read)
        schedule = self._process.schedule
        half = len(read.copies) // 2
        schedule.after(seconds * self._dice.random(), partial(self._copy, read, read.copies[:half]))
        schedule.after(seconds, partial(self._finish, read, read.copies[half:], ended))

    def cancel(self, read: Read, ended: Ended) -> None:
        """Ends a read soon; it may write until then."""
        if not read.terminal and not read.cancelled:
            read.cancelled = True
            self._process.schedule.after(self._dice.uniform(0.0005, 0.2), partial(self._fail, read, ended))

    def _copy(self, read: Read, copies: Sequence[Copy]) -> None:
        if read.terminal or not self._process.alive or not read.source.readable:
            return
        labels, source = self._labels, read.source.pool.labels
        for piece, source_slot, target_slot in copies:
            owner = self._pool.owner(target_slot // TOKENS_PER_BLOCK)
            if owner != read.owner or target_slot in self.closed:
                self._ledger.fail(f"{self._process.name}: {self._trespass(read, target_slot, owner)}")
            labels[read.rank, piece, target_slot] = source[source_slot]

    def _trespass(self, read: Read, slot: int, owner: int | None) -> str:
        text = f"a read of fetch {read.fetch} writes into block {slot // TOKENS_PER_BLOCK}, "
        if owner == read.owner:
            return text + "over tokens that the target has already"
        return text + ("which nobody holds" if owner is None else f"which fetch {owner} holds")

    def _finish(self, read: Read, copies: Sequence[Copy], ended: Ended) -> None:
        if read.terminal or not self._process.alive:
            return
        if not read.source.readable:
            read.lost = True
            delay = self._dice.choice((0.01, 0.3, 1.5))
            self._process.schedule.after(delay, partial(self._fail, read, ended))
        elif self._faults.fails(read):
            self._fail(read, ended)
        else:
            self._copy(read, copies)
            self._end(read, ended)

    def _fail(self, read: Read, ended: Ended) -> None:
        read.failed = read.failed or not read.terminal
        self._end(read, ended)

    def _end(self, read: Read, ended: Ended) -> None:
        if read.terminal or not self._process.alive:
            return
        read.terminal = True
        remaining = self.open[read.owner]
        remaining.remove(read)
        if not remaining:
            del self.open[read.owner]
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
