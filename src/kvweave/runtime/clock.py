"""The one clock: seconds that rise through suspension, and are the same in all processes of a machine.

CLOCK_BOOTTIME counts while the machine sleeps, which CLOCK_MONOTONIC does not: a lease must not outlive a lid closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]


def boot_time() -> float:
    """Seconds since the machine started, suspension included."""
    return time.clock_gettime(_CLOCK)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
