"""The parts of a read that its source gathers, one slot each: where their pieces come from, and where they go.

Where rows are a pattern that is repeated, nothing but the pattern is looked at. A part ends where a run of pieces does,
if all runs are alike, so that the source finds them alike too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvweave.transport.gather_request import MOST_PIECES
from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.pieces import PieceGrid, Pieces, stretches
from kvweave.transport.rows import ReadRows, Repeats, sums
from kvweave.transport.runs import Runs, runs_of


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Rows ``start <= i < stop`` of a read, all of one size: where they come from and go to."""

    start: int
    stop: int
    source: Runs
    target: Pieces


def parts_of(rows: ReadRows, most_bytes: int) -> Iterator[Part]:
    """Parts of arranged rows, the first one small, because all else waits for it. A row at least is in each."""
    if not len(rows):
        return
    begin = 0
    for start, stop in stretches(rows.nbytes) if rows.one_size is None else [(0, len(rows))]:
        some = rows.take(start, stop)
        ends = _OneByOne(some) if some.repeats is None else _Repeated(some.repeats)
        size, run = some.longest, ends.run_pieces
        count = _whole_runs(min(MOST_PIECES, max(1, most_bytes // size)), run)
        small = _whole_runs(max(1, min(count, LEAST_CHUNK_BYTES // size)), run)
        while begin < stop:
            end = min(begin + (count if begin else small), stop)
            yield Part(begin, end, ends.source(begin - start, end - start), ends.target(begin - start, end - start))
            begin = end


class _OneByOne:
    """Both ends of rows of one size."""

    def __init__(self, rows: ReadRows) -> None:
        self._runs = runs_of(rows.source_address)
        self.run_pieces = self._runs.run_pieces
        self.source = self._runs.take
        self.target = Pieces(rows.target_address, rows.longest).take


class _Repeated:
    """The same of rows that are a pattern, over and over."""

    def __init__(self, repeats: Repeats) -> None:
        pattern = repeats.pattern
        self._repeats = repeats
        self._runs = runs_of(pattern.source_address)
        self.run_pieces = self._runs.run_pieces
        self.source = self._runs.repeated(repeats.source).take if self.run_pieces != 1 else self._single
        self.target = PieceGrid(repeats.target, pattern.target_address, pattern.longest).take

    def _single(self, start: int, stop: int) -> Runs:
        return Runs.single(sums(self._repeats.source, self._repeats.pattern.source_address, start, stop))


def _whole_runs(count: int, run: int | None) -> int:
    """So many pieces or somewhat fewer, as runs have them."""
    return count if run is None or run > count else count - count % run
