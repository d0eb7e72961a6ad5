"""The turns of a thread that sleeps most of the time, before those of busy threads, where the system lets us.

On Linux that takes CAP_SYS_NICE (root in many containers has it); elsewhere, and without it, nothing changes.
"""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

NICENESS = -10


class Favour:
    """Of the thread that makes it and calls it."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._usual = _niceness(self._thread)
        self._favoured = False
        self._allowed = self._usual > NICENESS

    def ask(self, favoured: bool) -> None:
        """Whether this thread should have its turns before others from now on."""
        if not self._allowed or favoured == self._favoured:
            return
        try:
            os.setpriority(os.PRIO_PROCESS, self._thread, NICENESS if favoured else self._usual)
        except OSError:
            self._allowed = False
        else:
            self._favoured = favoured


def _niceness(thread: int) -> int:
    """What it is now; where nobody says so, as if it were favoured already."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.getpriority(os.PRIO_PROCESS, thread)
    return NICENESS
