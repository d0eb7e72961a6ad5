"""A read in chunks that its source gathers: what is still to be asked for, and what is open.

::

    unasked --asked for in a batch--> asked --its slot is ready--> landing --its ticket is still there--> scattered
                                        |                           |               (mapped: scattered, then looked at)
                                        |                           |
                                        +-- refused, or too late    +-- the ticket is gone: asked again, a few times
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
from kvweave.transport.landing import chunk_bytes
from kvweave.transport.part import Batch, Part, batches_of
from kvweave.transport.pieces import arranged
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead
from kvweave.transport.rows import ReadRows, split_into_posts

MOST_ASKED = 4
"""How often one chunk is asked for before it is read directly."""


class StagedRead(PiecewiseRead):
    """A read whose batches are asked for one after the other. It never ends before its source is ``settled``.

    ``slot_bytes`` is what the source gathers at once. Chunks of a small read are smaller, so that gathering, reading
    and scattering overlap there too.
    """

    __slots__ = ("_again", "_batches", "_settled", "_stop", "open", "under_way")

    def __init__(self, peer: str, rows: ReadRows, slot_bytes: int, settled: Callable[[], bool]) -> None:
        super().__init__(peer, rows.take(0, 0))
        self.rows = arranged(rows, slot_bytes)
        most_bytes = chunk_bytes(self.rows.total_bytes, slot_bytes)
        self._batches = batches_of(self.rows, most_bytes)
        self._stop = 0
        self._again: deque[Batch] = deque()
        self.open = 0
        self.under_way = 0
        self._settled = settled

    @property
    def wanted(self) -> bool:
        """Whether chunks are still of use."""
        return self.state is ReadState.IN_PROGRESS

    @property
    def unasked(self) -> bool:
        """Whether there is anything to be asked for."""
        return bool(self._again) or self._stop < len(self.rows)

    @property
    def asking(self) -> bool:
        """Whether anything of it is to be asked for, or to come."""
        return self.wanted and (self.unasked or self.open > 0)

    def next_batch(self) -> Batch:
        """What is to be asked for next. It is made now: the source gathers the one before meanwhile."""
        if self._again:
            return self._again.popleft()
        batch = next(self._batches)
        self._stop = batch.stop
        return batch

    def ask_again(self, batch: Batch) -> None:
        """Rows that were asked for, and did not come."""
        self._again.append(batch)

    def read_directly(self, start: int, stop: int) -> None:
        """Has the rows ``start <= i < stop`` read without the source's help, if they are still of use."""
        if self.wanted:
            self.waiting.extend(split_into_posts(self.rows.take(start, stop), MOST_POST_BYTES, MOST_POST_ROWS))

    def read_rest_directly(self) -> None:
        """The same for all that was not asked for yet."""
        while self.unasked:
            batch = self.next_batch()
            self.read_directly(batch.start, batch.stop)

    def cancel(self, error: TransportError) -> None:
        """Asks for no further chunk, and scatters none."""
        if not self.state.terminal:
            self._again.clear()
            self._stop = len(self.rows)
            self.open = 0
        super().cancel(error)

    def end_if_over(self) -> None:
        """Ends the read when nothing of it is left."""
        if not self.unasked and not self.open and not self.under_way and self._settled():
            super().end_if_over()


@dataclass(slots=True, eq=False)
class Asked:
    """A batch that was asked for under ``ticket`` and those that follow. Its first ``opened`` parts are chunks, or
    were, and ``open`` of these are open; bytes of the others are not to be expected yet.
    """

    read: StagedRead
    batch: Batch
    ticket: int
    opened: int = 0
    open: int = 0

    @property
    def unopened(self) -> int:
        """How many parts are not chunks yet."""
        return self.batch.slots.count - self.opened

    @property
    def left(self) -> bool:
        """Whether anything of it is open, or will be."""
        return self.open > 0 or self.unopened > 0


@dataclass(slots=True, eq=False)
class Chunk:
    """One part that was asked for, and how far it is."""

    asked: Asked
    number: int
    part: Part
    shown: int
    slot: int = -1
    landing: int = -1
    piece: Any = None
    under_way: bool = False
    landed: bool = False

    @property
    def read(self) -> StagedRead:
        """Whose it is."""
        return self.asked.read

    @property
    def ticket(self) -> int:
        """What it was asked for under."""
        return self.asked.ticket + self.number
