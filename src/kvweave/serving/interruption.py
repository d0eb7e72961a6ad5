"""Signals that ask to stop, noted and not raised: whoever waits finds them in a queue, at a moment of its own."""

from __future__ import annotations

import signal
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption:
    """While entered, ``SIGINT``, ``SIGTERM`` and ``SIGHUP`` are noted. Enter it in the main thread."""

    def __init__(self) -> None:
        self._noted: SimpleQueue[int] = SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def wait(self, seconds: float) -> int | None:
        """The signal that came since the last call, or comes within ``seconds``; None when none does."""
        try:
            return self._noted.get(timeout=seconds)
        except Empty:
            return None

    def _note(self, number: int, _: object) -> None:
        self._noted.put(number)
