"""The parts of a read that its source gathers, one slot each: where their pieces come from, and where they go.

Where rows are a pattern that is repeated, nothing but the pattern is looked at. A part ends where a run of pieces does,
if all runs are alike, so that the source finds them alike too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvweave.transport.gather_request import MOST_PIECES
from kvweave.transport.landing import LEAST_CHUNK_BYTES
from kvweave.transport.pieces import Pieces, stretches
from kvweave.transport.rows import ReadRows
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
        source, target = _ends(some, some.longest)
        count = _whole_runs(min(MOST_PIECES, max(1, most_bytes // some.longest)), source)
        small = _whole_runs(max(1, min(count, LEAST_CHUNK_BYTES // some.longest)), source)
        while begin < stop:
            end = min(begin + (count if begin else small), stop)
            yield Part(begin, end, source.take(begin - start, end - start), target.take(begin - start, end - start))
            begin = end


def _ends(rows: ReadRows, size: int) -> tuple[Runs, Pieces]:
    repeats = rows.repeats
    if repeats is None:
        return runs_of(rows.source_address), Pieces(rows.target_address, size)
    source = runs_of(repeats.pattern.source_address).repeated(repeats.source)
    return source, Pieces.repeated(repeats.target, repeats.pattern.target_address, size)


def _whole_runs(count: int, runs: Runs) -> int:
    """So many pieces or somewhat fewer, as runs have them."""
    alike = runs.run_pieces
    return count if alike is None or alike > count else count - count % alike
