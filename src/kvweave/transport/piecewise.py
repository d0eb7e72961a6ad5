"""A read that is posted piece by piece, and the read that proves a connection.

A piece is what the library below takes in one call. A read is over when no piece waits and none is under way; one that
is doomed posts no further piece, and ends with those that are under way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.agent_data import PROBE_BYTES
from kvweave.transport.base import ReadHandle, ReadRows
from kvweave.transport.rates import Trials
from kvweave.transport.rows import single, split_into_posts

MOST_POST_BYTES = 8 << 20
MOST_POST_ROWS = 2_000


class PiecewiseRead(ReadHandle):
    """A read: the pieces still to be posted, and NIXL's handles of those that are.

    Whoever posts it says when it was begun, and beside which others.
    """

    __slots__ = ("alone", "begun_at", "posted", "rows", "waiting")

    def __init__(self, peer: str, rows: ReadRows) -> None:
        super().__init__(peer)
        self.rows = rows
        self.begun_at = 0.0
        self.alone = False
        self.waiting = deque(split_into_posts(rows, MOST_POST_BYTES, MOST_POST_ROWS))
        self.posted: list[Any] = []

    def begin(self, now: float, others: Collection[PiecewiseRead]) -> None:
        """It is posted from now on; neither it nor the others are alone if there are any."""
        self.begun_at, self.alone = now, not others
        for other in others:
            other.alone = False

    def cancel(self, error: TransportError) -> None:
        """Posts no further piece; ends at once when none is under way."""
        super().cancel(error)
        self.waiting.clear()
        self.end_if_over()

    def end_if_over(self) -> None:
        """Ends the read when nothing of it is left."""
        if not self.state.terminal and not self.waiting and not self.posted:
            self.complete()


class ProbeRead(PiecewiseRead):
    """The read that warms a connection and proves that it reaches the right memory, and then measures it, if it has
    trials to post.
    """

    __slots__ = ("_trial", "expected", "landing", "posted_at", "proven", "trials")

    def __init__(self, peer: str, address: int, landing: npt.NDArray[np.uint8], expected: bytes) -> None:
        super().__init__(peer, ReadRows(single(address), single(landing.ctypes.data), single(PROBE_BYTES)))
        self.landing = landing
        self.expected = expected
        self.proven = False
        self.trials: Trials | None = None
        self.posted_at = 0.0
        self._trial: int | None = None

    def next_trial(self, now: float) -> None:
        """Notes how long the last trial took, and has the next one posted."""
        if self.trials is None:
            return
        if self._trial is not None:
            self.trials.note(self._trial, now - self.posted_at)
            self._trial = None
        if self.trials.waiting:
            self._trial, rows = self.trials.waiting.popleft()
            self.waiting.append(rows)

    def wrong_bytes(self) -> TransportError | None:
        """The error when other bytes than the peer's probe came through."""
        found = self.landing.tobytes()
        if found == self.expected:
            return None
        return TransportError(
            TransportErrorKind.REJECTED,
            f"peer {self.peer}: its probe reads {found.hex()}, its agent data says {self.expected.hex()}; "
            "the data is of another process, connect with fresh data",
        )
