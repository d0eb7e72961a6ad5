"""A moment's rest of the scheduler, in steps that compute nothing.

While requests wait for a transfer, vLLM steps without a pause, at the cost of whoever carries that out: its own threads
and the workers' are woken for nothing. So a step that computes nothing waits until our polling threads have something
to report, but not so long that a new request would notice.
"""

from __future__ import annotations

import threading

PAUSE_SECONDS = 0.008
BRIEF_SECONDS = 0.002
"""What our threads need to begin a load, before vLLM's workers are busy with an empty step."""


class Pause:
    """``batches_in_flight`` is how many steps vLLM has begun at most before it looks at the result of the first.

    Only when none of those computes anything does nobody wait for the scheduler.
    """

    def __init__(self, batches_in_flight: int) -> None:
        self._batches_in_flight = batches_in_flight
        self._empty_steps = 0
        self._news = threading.Event()

    def end(self) -> None:
        """There is something to report; from any thread."""
        self._news.set()

    def count(self, num_scheduled_tokens: int) -> None:
        """A step begins that computes so many tokens."""
        self._empty_steps = 0 if num_scheduled_tokens else self._empty_steps + 1

    def take(self, most_seconds: float = PAUSE_SECONDS) -> bool:
        """Waits, if no step that has begun may compute; whether it had to be ended. Nothing told is lost."""
        if self._empty_steps < self._batches_in_flight:
            return False
        told = self._news.wait(most_seconds)
        self._news.clear()
        return told
