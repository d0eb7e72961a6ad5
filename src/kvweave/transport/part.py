"""What a read asks its source to gather: batches of rows of one size, each of them as parts, one slot each.

::

    rows     4096 4096 4096 ... 100 100
    batches  [4096 4096 4096 ...] [100 100]     a message each
    parts    [4096] [4096 4096] ...             a slot each

A part is made when its bytes are about to come. Where rows are a pattern that is repeated, nothing but the pattern is
looked at, and one batch is all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvweave.transport.gather_request import MOST_PATTERN_PIECES, MOST_PIECES, MOST_REPEATS, MOST_RUNS, GatherRequest
from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.pieces import PieceGrid, Pieces, stretches
from kvweave.transport.rows import ReadRows
from kvweave.transport.runs import runs_of
from kvweave.transport.slots import Slots

_LEAST_TOGETHER, _MOST_TOGETHER = 4_096, MOST_PATTERN_PIECES
_ONCE = np.zeros(1, np.uint64)


class Ends:
    """Where rows of one size come from and go to: ``runs`` from each of ``repeats``, and ``target``."""

    def __init__(self, rows: ReadRows) -> None:
        self.size = rows.longest
        self.target: Pieces | PieceGrid
        if rows.repeats is None:
            self.repeats, self.runs = _ONCE, runs_of(rows.source_address)
            self.target = Pieces(rows.target_address, self.size)
        else:
            pattern = rows.repeats.pattern
            self.repeats, self.runs = rows.repeats.source, runs_of(pattern.source_address)
            self.target = PieceGrid(rows.repeats.target, pattern.target_address, self.size)

    @property
    def together(self) -> bool:
        """Whether one message can name them all."""
        runs = self.runs
        within = len(self.repeats) <= MOST_REPEATS and len(runs.address) <= MOST_RUNS
        return within and runs.pieces <= MOST_PATTERN_PIECES


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows ``start <= i < stop`` of a read, all of one size, and where they go."""

    start: int
    stop: int
    target: Pieces

    @property
    def nbytes(self) -> int:
        """Bytes of all its rows."""
        return self.target.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one size that one message asks for: those of ``ends`` from number ``skipped`` on, as ``slots`` takes
    them, of which the first is row ``start`` of the read. They were asked for ``times_asked`` times before.
    """

    start: int
    slots: Slots
    ends: Ends
    skipped: int = 0
    times_asked: int = 0

    @property
    def stop(self) -> int:
        """The row behind the last one."""
        return self.start + self.slots.pieces

    def part(self, number: int) -> Part:
        """The rows of one slot."""
        start, stop = self.slots.bounds(number)
        target = self.ends.target.take(self.skipped + start, self.skipped + stop)
        return Part(self.start + start, self.start + stop, target)

    def alone(self, number: int) -> Batch:
        """The same rows of one slot, to be asked for once more."""
        start, stop = self.slots.bounds(number)
        slots = Slots(stop - start, stop - start, stop - start)
        return Batch(self.start + start, slots, self.ends, self.skipped + start, self.times_asked + 1)

    def request(self, ticket: int, given_back: tuple[int, ...]) -> GatherRequest:
        """What asks for it under ``ticket`` and those that follow."""
        ends = self.ends
        return GatherRequest(ticket, ends.size, ends.repeats, ends.runs, self.skipped, self.slots, given_back)


def batches_of(rows: ReadRows, most_bytes: int) -> Iterator[Batch]:
    """Batches of arranged rows. The first slot is small, because all else waits for it. A row at least is in each."""
    for start, stop, ends in _ends_of(rows):
        each = min(MOST_PIECES, max(1, most_bytes // ends.size))
        first = each if start else max(1, min(each, LEAST_CHUNK_BYTES // ends.size))
        yield Batch(start, Slots(stop - start, first, each), ends)


def _ends_of(rows: ReadRows) -> Iterator[tuple[int, int, Ends]]:
    """Rows of one size that are looked at together: those of a pattern all, others few at first, because the source
    waits for them.
    """
    if rows.repeats is not None and rows.one_size is not None and (ends := Ends(rows)).together:
        yield 0, len(rows), ends
        return
    together = _LEAST_TOGETHER
    for begin, end in stretches(rows.nbytes) if len(rows) else ():
        start = begin
        while start < end:
            stop = min(end, start + together)
            ends = Ends(rows.take(start, stop))
            if not ends.together:
                stop = min(end, start + MOST_RUNS)
                ends = Ends(rows.take(start, stop))
            yield start, stop, ends
            start, together = stop, min(2 * together, _MOST_TOGETHER)
