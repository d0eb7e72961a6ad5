"""The parts of a read that its source gathers, one slot each: where their pieces come from, and where they go.

Where rows are a pattern that is repeated, nothing but the pattern is looked at. A part ends where a run of pieces does,
if runs are alike, so that the source finds them alike too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvweave.transport.gather_request import MOST_PIECES
from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.pieces import PieceGrid, Pieces, stretches
from kvweave.transport.rows import ReadRows
from kvweave.transport.runs import Runs, runs_of

_LEAST_TOGETHER, _MOST_TOGETHER = 4_096, 65_536


class Ends:
    """Where rows of one size come from and go to; rows ``start <= i < stop`` of the read are ``rows``."""

    def __init__(self, rows: ReadRows, start: int) -> None:
        self.size = rows.longest
        self._rows = rows
        self._start = start
        self._target: Pieces | PieceGrid
        repeats = rows.repeats
        if repeats is None:
            runs = runs_of(rows.source_address)
            self._target = Pieces(rows.target_address, self.size)
        else:
            runs = runs_of(repeats.pattern.source_address)
            self._target = PieceGrid(repeats.target, repeats.pattern.target_address, self.size)
        self.unit = runs.unit
        self._runs: Runs | None = None
        if len(runs.count):
            self._runs = runs if repeats is None else runs.repeated(repeats.source)

    def source(self, start: int, stop: int) -> Runs:
        """Where these rows of the read come from."""
        start, stop = start - self._start, stop - self._start
        if self._runs is None:
            return Runs.single(self._rows.take(start, stop).source_address)
        return self._runs.take(start, stop)

    def target(self, start: int, stop: int) -> Pieces:
        """Where they go."""
        return self._target.take(start - self._start, stop - self._start)

    def most_runs(self, start: int, stop: int) -> int:
        """How many runs they are, or one or two more."""
        if self._runs is None:
            return stop - start
        return self._runs.most_between(start - self._start, stop - self._start)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows ``start <= i < stop`` of a read, all of one size: where they come from and go to."""

    start: int
    stop: int
    ends: Ends

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def nbytes(self) -> int:
        """Bytes of all its rows."""
        return len(self) * self.ends.size

    @property
    def source(self) -> Runs:
        """Made anew whenever it is asked for."""
        return self.ends.source(self.start, self.stop)

    @property
    def target(self) -> Pieces:
        """Made anew whenever it is asked for."""
        return self.ends.target(self.start, self.stop)


def parts_of(rows: ReadRows, most_bytes: int) -> Iterator[Part]:
    """Parts of arranged rows, the first one small, because all else waits for it. A row at least is in each."""
    begin = 0
    for start, stop in _blocks(rows, most_bytes):
        ends = Ends(rows.take(start, stop), start)
        count = _whole_runs(_most_pieces(ends.size, most_bytes), ends.unit)
        small = _whole_runs(max(1, min(count, LEAST_CHUNK_BYTES // ends.size)), ends.unit)
        while begin < stop:
            end = min(begin + (count if begin else small), stop)
            yield Part(begin, end, ends)
            begin = end


def _blocks(rows: ReadRows, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Rows of one size that are looked at together: those of a pattern all, others as many as make full parts, few of
    them at first, because the source waits for them.
    """
    if rows.repeats is not None and rows.one_size is not None:
        yield 0, len(rows)
        return
    together = _LEAST_TOGETHER
    for start, stop in stretches(rows.nbytes) if len(rows) else ():
        count = _most_pieces(int(rows.nbytes[start]), most_bytes)
        begin = start
        while begin < stop:
            end = min(stop, begin + count * max(1, together // count))
            yield begin, end
            begin, together = end, min(2 * together, _MOST_TOGETHER)


def _most_pieces(size: int, most_bytes: int) -> int:
    return min(MOST_PIECES, max(1, most_bytes // size))


def _whole_runs(count: int, unit: int) -> int:
    """So many pieces or somewhat fewer, as runs have them."""
    return count if unit > count else count - count % unit
