"""Which way the reads from one source take: the cheaper one by measured costs, corrected by what reads took.

A staged read needs a turn of the source's process as well as of the reader's, which beside other work comes later than
any measurement at start can know; and no measurement of a few pieces knows how many a request has. So each way counts
as dear as its last few reads were, in their median. One that was never tried is, where it should take little more than
the other does. One that was late is tried again after a while: with every read that takes the other way for that reason
alone, a fiftieth of what it is above its best is forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median

from kvweave.transport.rates import Rates
from kvweave.transport.rows import ReadRows

LEAST_LATENESS, MOST_LATENESS = 0.5, 8.0
LEAST_NOTED_BYTES = 1 << 20
"""Smaller reads say more about starting than about the way."""
UNTRIED = 0.7
"""Of what a way that was never tried should take, so much counts."""
_READS = 5
_KEPT_BY_OTHERS = 0.98


class Way:
    """One way: what reading by it should cost, how many times as long its last reads took (``lateness``), and the least
    that this ever was (``best``). What it should cost was measured too, and counts as one read.
    """

    def __init__(self, seconds: Callable[[ReadRows], float]) -> None:
        self.seconds = seconds
        self.lateness = 1.0
        self.best = 1.0
        self.tried = False
        self._found = deque((1.0,), _READS)

    def note(self, rows: ReadRows, seconds: float) -> None:
        """A read of these rows took so long, from its begin to its end."""
        if rows.total_bytes >= LEAST_NOTED_BYTES:
            found = min(max(seconds / self.seconds(rows), LEAST_LATENESS), MOST_LATENESS)
            self._found.append(found)
            self.lateness = median(self._found)
            self.best = min(self.best, self.lateness)
            self.tried = True

    def forget(self) -> None:
        """Another way was taken because this one was late."""
        self.lateness = self.best + _KEPT_BY_OTHERS * (self.lateness - self.best)


class Choice:
    """Both ways of reading from one source."""

    def __init__(self, rates: Rates) -> None:
        self.staged = Way(rates.staged_seconds)
        self.direct = Way(rates.direct_seconds)

    def prefers_staged(self, rows: ReadRows) -> bool:
        """Whether staging these rows is likely to take less time, or to be worth a try.

        Until it was tried, it is expected as late as direct reading is: then the machine is slower than it seemed.
        """
        staged, direct = self.staged.lateness, self.direct.lateness
        if self.direct.tried and not self.staged.tried:
            staged = UNTRIED * direct
        elif self.staged.tried and not self.direct.tried:
            direct = UNTRIED
        return staged * self.staged.seconds(rows) < direct * self.direct.seconds(rows)

    def took(self, rows: ReadRows, way: Way) -> None:
        """A read of these rows went that way, which is a try whether what it took was noted or not; the other one is
        forgiven if at its best it is the cheaper one.
        """
        way.tried = way.tried or rows.total_bytes >= LEAST_NOTED_BYTES
        other = self.direct if way is self.staged else self.staged
        if other.best * other.seconds(rows) < way.lateness * way.seconds(rows):
            other.forget()
