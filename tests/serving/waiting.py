"""Waits for a state that another process brings about; fails, naming it, when it does not come."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_SECONDS = 60.0


def wait_until(holds: Callable[[], bool], what: str) -> None:
    """Returns once ``holds()``."""
    deadline = time.monotonic() + MOST_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"never came about: {what}"
        time.sleep(0.02)
