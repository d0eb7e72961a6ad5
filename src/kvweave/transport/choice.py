"""Which way the reads from one source take: the cheaper one by measured costs, corrected by how late staged reads were.

A staged read needs a turn of the source's process as well as of the reader's, which beside other work comes later than
any measurement at start can know. So staging counts as dear as the last staged reads were, and is tried again after a
while: with every read that goes directly for that reason, a twentieth of what was added is forgotten.
"""

from __future__ import annotations

from kvweave.transport.rates import Rates
from kvweave.transport.rows import ReadRows

MOST_LATENESS = 8.0
LEAST_NOTED_BYTES = 1 << 20
"""Smaller reads say more about starting than about the way."""
_NEW_SHARE = 0.5
_KEPT_BY_DIRECT = 0.95


class Choice:
    """The costs of one source, and how many times as long as expected its staged reads took."""

    def __init__(self, rates: Rates) -> None:
        self._rates = rates
        self._lateness = 1.0

    def prefers_staged(self, rows: ReadRows) -> bool:
        """Whether staging these rows is likely to take less time."""
        direct = self._rates.direct_seconds(rows)
        staged = self._rates.staged_seconds(rows)
        if staged >= direct:
            return False
        if self._lateness * staged < direct:
            return True
        self._lateness = 1.0 + _KEPT_BY_DIRECT * (self._lateness - 1.0)
        return False

    def note(self, rows: ReadRows, seconds: float) -> None:
        """A staged read of these rows took so long, from its begin to its end."""
        if rows.total_bytes >= LEAST_NOTED_BYTES:
            found = min(max(seconds / self._rates.staged_seconds(rows), 1.0), MOST_LATENESS)
            self._lateness += _NEW_SHARE * (found - self._lateness)
