"""A read in chunks that its source gathers: what is still to be asked for, and what is open.

::

    unasked --ask--> asked --its slot is ready--> landing --its ticket is still there--> scattered
                       |                             |                  (mapped: scattered, then looked at)
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
from itertools import islice
from typing import Any

from kvweave.errors import TransportError
from kvweave.transport.base import ReadState
from kvweave.transport.gather_request import MOST_RUNS
from kvweave.transport.landing import chunk_bytes
from kvweave.transport.part import Part, parts_of
from kvweave.transport.pieces import arranged
from kvweave.transport.piecewise import MOST_POST_BYTES, MOST_POST_ROWS, PiecewiseRead
from kvweave.transport.rows import ReadRows, split_into_posts

MOST_ASKED = 4
"""How often one chunk is asked for before it is read directly."""


class StagedRead(PiecewiseRead):
    """A read whose chunks are asked for one after the other. It never ends before its source is ``settled``.

    ``slot_bytes`` is what the source gathers at once. Chunks of a small read are smaller, so that gathering, reading
    and scattering overlap there too.
    """

    __slots__ = ("_rest", "_settled", "open", "unasked", "under_way")

    def __init__(self, peer: str, rows: ReadRows, slot_bytes: int, settled: Callable[[], bool]) -> None:
        super().__init__(peer, rows.take(0, 0))
        self.rows = arranged(rows, slot_bytes)
        most_bytes = chunk_bytes(self.rows.total_bytes, slot_bytes)
        self._rest = parts_of(self.rows, most_bytes)
        self.unasked = deque((part, 0) for part in islice(self._rest, 1))
        self.open = 0
        self.under_way = 0
        self._settled = settled

    @property
    def wanted(self) -> bool:
        """Whether chunks are still of use."""
        return self.state is ReadState.IN_PROGRESS

    def next_part(self) -> tuple[Part, int]:
        """What is to be asked for next, and how often it was; ``unasked`` is empty after the last one.

        Parts are made as they are asked for: the source gathers the first ones meanwhile.
        """
        found = self.unasked.popleft()
        if not self.unasked:
            self.unasked.extend((part, 0) for part in islice(self._rest, 1))
        return found

    def next_parts(self, most: int) -> list[tuple[Part, int]]:
        """At most so many that can be asked for together: rows behind one another, as many in each but the last."""
        found = [self.next_part()]
        first = last = found[0][0]
        while self.unasked and len(found) < most:
            part, _ = self.unasked[0]
            full = len(last) == len(first) >= len(part)
            follows = part.ends is first.ends and part.start == last.stop
            if not full or not follows or first.ends.most_runs(first.start, part.stop) > MOST_RUNS:
                break
            found.append(self.next_part())
            last = part
        return found

    def read_directly(self, part: Part) -> None:
        """Has these rows read without the source's help, if they are still of use."""
        if self.wanted:
            rows = self.rows.take(part.start, part.stop)
            self.waiting.extend(split_into_posts(rows, MOST_POST_BYTES, MOST_POST_ROWS))

    def read_rest_directly(self) -> None:
        """The same for all that was not asked for yet."""
        while self.unasked:
            self.read_directly(self.next_part()[0])

    def cancel(self, error: TransportError) -> None:
        """Asks for no further chunk, and scatters none."""
        if not self.state.terminal:
            self.unasked.clear()
            self._rest = iter(())
            self.open = 0
        super().cancel(error)

    def end_if_over(self) -> None:
        """Ends the read when nothing of it is left."""
        if not self.unasked and not self.open and not self.under_way and self._settled():
            super().end_if_over()


@dataclass(slots=True, eq=False)
class Chunk:
    """One part that was asked for, and how far it is."""

    read: StagedRead
    part: Part
    ticket: int
    shown: int
    times_asked: int
    slot: int = -1
    landing: int = -1
    piece: Any = None
    under_way: bool = False
    landed: bool = False
