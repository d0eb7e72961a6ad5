"""How much each caller may have of what costs us most: handshake answers, which carry description and agent data.

An allowance fills with time up to its size, and what is taken makes it smaller; one per caller::

    ####........     64 MB at most; each answer takes its bytes, 8 MB come back a second

An answer larger than what is left waits for nobody: the caller is told to come back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

MOST_CALLERS = 4096


class Allowance:
    """``size`` at most, ``per_second`` comes back; the ``MOST_CALLERS`` that called last are remembered."""

    def __init__(self, size: float, per_second: float) -> None:
        self._size = size
        self._per_second = per_second
        self._taken: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, now: float, caller: Hashable, amount: float) -> bool:
        """Whether the caller may have that much now; a full allowance gives any amount once."""
        taken, at = self._taken.get(caller, (0.0, now))
        taken = max(0.0, taken - (now - at) * self._per_second)
        granted = taken == 0.0 or taken + amount <= self._size
        self._taken[caller] = taken + amount if granted else taken, now
        self._taken.move_to_end(caller)
        while len(self._taken) > MOST_CALLERS:
            self._taken.popitem(last=False)
        return granted
