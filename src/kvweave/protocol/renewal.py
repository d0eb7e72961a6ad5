"""The renewals of one fetch: which are unanswered, and how far the granted ones reach.

All moments are on the reader's own clock. A renewal that was sent at s and granted for n seconds reaches to s + n: the
prefill side received it later than s, and keeps the blocks n seconds from then. Two clocks do not run equally fast, so
a little of every lease is not counted on.
"""

from __future__ import annotations

from kvweave.errors import RemoteProtocolError
from kvweave.protocol.timing import Timing

MOST_DRIFT = 1 / 500
"""How much faster the prefill side's clock may run. Time synchronisation turns a clock by up to 1/2000 (adjtime(2)),
and the quartz itself is off by less than 1/5000; twice, for two machines."""

LEAST_INTERVAL_SECONDS = 0.05
"""A peer may grant leases as short as it likes, but they are not renewed more often than this."""


def interval_seconds(lease_seconds: float, timing: Timing) -> float:
    """How long after one renewal or heartbeat the next one comes."""
    return max(lease_seconds * timing.renew_fraction, LEAST_INTERVAL_SECONDS)


class Renewals:
    """Begins with the claim, which is sent together with the reads at ``now``; ``after`` was the last one before."""

    def __init__(self, now: float, lease_seconds: float, timing: Timing, after: int = 0) -> None:
        self.sequence = after
        self.granted_until: float | None = None
        self._timing = timing
        self._bound = now + timing.read_seconds
        self._interval = interval_seconds(lease_seconds, timing)
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

        An offer may have a shorter lease than its engine names at the handshake: then renewals come more often.

        Raises ``RemoteProtocolError`` for a renewal that was never asked for.
        """
        if not 1 <= sequence <= self.sequence:
            raise RemoteProtocolError(f"renewed: sequence {sequence}, of which {self.sequence} were asked for")
        if sequence in self._unanswered:
            self._interval = min(self._interval, interval_seconds(lease_seconds, self._timing))
            until = self._unanswered[sequence] + lease_seconds * (1 - MOST_DRIFT)
            self.granted_until = until if self.granted_until is None else max(until, self.granted_until)
            self._unanswered = {number: sent for number, sent in self._unanswered.items() if number > sequence}

    def cover(self, moment: float) -> bool:
        """Whether a granted renewal reaches past this moment."""
        return self.granted_until is not None and moment < self.granted_until

    @property
    def next_moment(self) -> float:
        """When the next one should be sent, or nothing be waited for any more."""
        return min(self._last_sent + self._interval, self.last_moment)

    @property
    def last_moment(self) -> float:
        """From when on waiting makes no sense: the grants have run out and the oldest question stays unanswered, or the
        reads take too long."""
        moments = [sent + self._timing.answer_seconds for sent in self._unanswered.values()][:1]
        if self.granted_until is not None:
            moments.append(self.granted_until)
        return min(self._bound, max(moments))
