"""Pieces that are copied from a neighbour, by whoever starts them and a few helping threads.

A piece is cut into strokes, one system call each, which release the interpreter. The starting thread takes one after
the other; where there are several, helpers that are free take others meanwhile::

    piece [s0 s1 s2 s3]     starter: s0 s2      helper: s1 s3
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from queue import SimpleQueue

from kvweave.errors import TransportError, TransportErrorKind
from kvweave.transport.neighbour import Neighbour, Stroke
from kvweave.transport.rows import ReadRows, split_into_posts

logger = logging.getLogger("kvweave")

MOST_STROKE_BYTES = 2 << 20
MOST_STROKE_ROWS = 512
MOST_THREADS = 4
"""That copy at once, as many as NIXL's connector in vLLM has by default; fewer where there are fewer cores."""
_LOOK_SECONDS = 0.0001


class CopiedPiece:
    """One piece of a read from a neighbour; it can be started again once it is over."""

    __slots__ = ("_ended", "_errors", "_neighbour", "_strokes", "_waiting")

    def __init__(self, neighbour: Neighbour, rows: ReadRows) -> None:
        self._neighbour = neighbour
        strokes = split_into_posts(rows, MOST_STROKE_BYTES, MOST_STROKE_ROWS)
        self._strokes = tuple(neighbour.stroke(some) for some in strokes)
        self._waiting: deque[Stroke] = deque()
        self._ended = deque(self._strokes)
        self._errors = deque([TransportError(TransportErrorKind.UNAVAILABLE, "a piece was not started")])

    def start(self) -> None:
        """Copies, with what help there is; others may be copying still when it returns."""
        self._ended.clear()
        self._errors.clear()
        self._waiting.extend(self._strokes)
        if len(self._strokes) > 1:
            _helpers().ask(self, len(self._strokes) - 1)
        self.work()

    def work(self) -> None:
        """Copies what nobody has begun; what fails ends the rest. Any thread may call it."""
        while True:
            try:
                stroke = self._waiting.popleft()
            except IndexError:
                return
            try:
                if not self._errors:
                    self._copy(stroke)
            finally:
                self._ended.append(stroke)

    def is_over(self) -> bool:
        """Whether nothing of it is being copied; raises ``TransportError`` when it ended badly, or has not begun."""
        if self._errors:
            self.work()  # which copies nothing more, but ends what waits
        if len(self._ended) < len(self._strokes):
            return False
        if self._errors:
            raise self._errors[0]
        return True

    def end(self) -> None:
        """Gives up what was not begun, and waits for what is being copied: a stroke a thread at most."""
        while len(self._ended) < len(self._strokes):
            try:
                self._ended.append(self._waiting.popleft())
            except IndexError:
                time.sleep(_LOOK_SECONDS)

    def _copy(self, stroke: Stroke) -> None:
        """Whatever goes wrong fails the piece, also where nobody else would hear of it."""
        try:
            self._neighbour.copy(stroke)
        except TransportError as error:
            self._errors.append(error)
        except BaseException as error:
            text = f"peer {self._neighbour.name}: copying failed: {error!r}"
            self._errors.append(TransportError(TransportErrorKind.UNAVAILABLE, text))
            logger.exception("copying from %s", self._neighbour.name)
            if not isinstance(error, Exception):
                raise


class _Helpers:
    """Threads of this process that take strokes; they sleep while there are none. As many as the system gives."""

    def __init__(self, most: int) -> None:
        self._asked: SimpleQueue[CopiedPiece] = SimpleQueue()
        self._count = 0
        with suppress(RuntimeError):
            for number in range(most):
                threading.Thread(target=self._run, name=f"kvweave copying {number}", daemon=True).start()
                self._count += 1

    def ask(self, piece: CopiedPiece, most: int) -> None:
        """Wakes so many helpers at most."""
        for _ in range(min(most, self._count)):
            self._asked.put(piece)

    def _run(self) -> None:
        _take_usual_turns()
        while True:
            self._asked.get().work()


def _take_usual_turns() -> None:
    """A thread begins with the niceness of the one that made it; this one is busy, and no better than others."""
    if sys.platform == "linux":
        with suppress(OSError):
            usual = os.getpriority(os.PRIO_PROCESS, os.getpid())
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), usual)


def most_helpers() -> int:
    """Threads of this process that may share in copying a piece."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0))) - 1


_made: dict[int, _Helpers] = {}
_making = threading.Lock()


def _helpers() -> _Helpers:
    """Those of this process; one that was forked has none of its parent's."""
    process = os.getpid()
    with _making:
        if process not in _made:
            _made[process] = _Helpers(most_helpers())
        return _made[process]
