"""The renewals of one fetch: which are unanswered, and how far the granted ones reach.

All moments are on the reader's own clock. A renewal that was sent at s and granted for n seconds reaches to s + n: the
prefill side received it later than s, and keeps the blocks n seconds from then.
"""

from __future__ import annotations

from kvweave.errors import RemoteProtocolError

LEAST_INTERVAL_SECONDS = 0.05
"""A peer may grant leases as short as it likes, but they are not renewed more often than this."""


class Renewals:
    """Begins with the renewal that is sent together with the reads, at ``now``."""

    def __init__(self, now: float, interval: float) -> None:
        self.began_at = now
        self.sequence = 0
        self.granted_until: float | None = None
        self._interval = max(interval, LEAST_INTERVAL_SECONDS)
        self._last_sent = now
        self._unanswered: dict[int, float] = {}
        self.send(now)

    def send(self, now: float) -> int:
        """Notes a renewal sent at ``now``; its sequence number."""
        self.sequence += 1
        self._last_sent = self._unanswered[self.sequence] = now
        return self.sequence

    def grant(self, sequence: int, lease_seconds: float) -> None:
        """Notes a grant; a repeated or overtaken one changes nothing.

        Raises ``RemoteProtocolError`` for a renewal that was never asked for.
        """
        if not 1 <= sequence <= self.sequence:
            raise RemoteProtocolError(f"renewed: sequence {sequence}, of which {self.sequence} were asked for")
        if sequence in self._unanswered:
            until = self._unanswered[sequence] + lease_seconds
            self.granted_until = until if self.granted_until is None else max(until, self.granted_until)
            self._unanswered = {number: sent for number, sent in self._unanswered.items() if number > sequence}

    def cover(self, moment: float) -> bool:
        """Whether a granted renewal reaches past this moment."""
        return self.granted_until is not None and moment < self.granted_until

    @property
    def due(self) -> float:
        """When the next one should be sent."""
        return self._last_sent + self._interval

    def hopeless(self, answer_seconds: float) -> float:
        """From when on waiting makes no sense: the grants have run out, and the oldest question stays unanswered."""
        moments = [sent + answer_seconds for sent in self._unanswered.values()][:1]
        if self.granted_until is not None:
            moments.append(self.granted_until)
        return max(moments)
