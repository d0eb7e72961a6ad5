"""A read in chunks that its source gathers: what is still to be asked for, and what is open.

::

    unasked --ask--> asked --its slot is ready--> landing --its ticket is still there--> scattered
                       |                             |
                       +-- refused, or too late      +-- the ticket is gone: asked again, a few times
                       v
                     waiting, as pieces that are read directly

The read is done when its last chunk was scattered. A doomed one scatters no more, and ends when no piece is under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvweave.errors import TransportError
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import MOST_PIECES, RunArray, continued, runs_of
from kvweave.transport.pieces import arranged
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead
from kvweave.transport.rows import ReadRows, split_into_posts

MOST_ASKED = 4
"""How often one chunk is asked for before it is read directly."""


class StagedRead(PiecewiseRead):
    """A read whose chunks are asked for one after the other. It never ends before its source is ``settled``."""

    __slots__ = ("_settled", "open", "unasked", "under_way")

    def __init__(self, peer: str, rows: ReadRows, chunk_bytes: int, settled: Callable[[], bool]) -> None:
        super().__init__(peer, rows.take(0, 0))
        rows = arranged(rows, chunk_bytes)
        continues = continued(rows.source_address, rows.nbytes)
        self.unasked: deque[tuple[ReadRows, RunArray, int]] = deque()
        for chunk in split_into_posts(rows, chunk_bytes, MOST_PIECES):
            mine, continues = continues[: len(chunk)], continues[len(chunk) :]
            self.unasked.append((chunk, runs_of(chunk.source_address, chunk.nbytes, mine), 1))
        self.open = 0
        self.under_way = 0
        self._settled = settled

    @property
    def wanted(self) -> bool:
        """Whether chunks are still of use."""
        return self.state is ReadState.IN_PROGRESS

    def read_directly(self, rows: ReadRows) -> None:
        """Has these rows read without the source's help, if they are still of use."""
        if self.wanted:
            self.waiting.extend(split_into_posts(rows, MOST_POST_BYTES, MOST_POST_ROWS))

    def read_rest_directly(self) -> None:
        """The same for all that was not asked for yet."""
        for rows, _, _ in self.unasked:
            self.read_directly(rows)
        self.unasked.clear()

    def cancel(self, error: TransportError) -> None:
        """Asks for no further chunk, and scatters none."""
        if not self.state.terminal:
            self.unasked.clear()
            self.open = 0
        super().cancel(error)

    def end_if_over(self) -> None:
        """Ends the read when nothing of it is left."""
        if self._settled() and not self.unasked and not self.open and not self.under_way:
            super().end_if_over()


@dataclass(slots=True, eq=False)
class Chunk:
    """One chunk that was asked for: its rows in the order in which they are gathered, and how far it is."""

    read: StagedRead
    rows: ReadRows
    runs: RunArray
    ticket: int
    times_asked: int
    nbytes: int
    slot: int = -1
    landing: int = -1
    piece: Any = None
    under_way: bool = False
    landed: bool = False
