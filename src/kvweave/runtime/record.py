"""What the decode coordinator remembers of one fetch: when its stages began, and what its ranks read."""

from __future__ import annotations

from kvweave.core.layout import EngineLayout
from kvweave.core.parallel import RankCoordinates
from kvweave.errors import TransportError
from kvweave.protocol.reference import OfferReference
from kvweave.runtime.events import ReadsEnded, ReadStatistics
from kvweave.runtime.handle import Delivered, Fetch
from kvweave.runtime.tracing import Span

STAGES = ("queued", "peer", "claim", "read", "grant")
"""One after the other; rows are computed and reads posted (``post``) at the beginning of ``read``, and what failed is
read again (``retry``) at its end."""


class FetchRecord:
    """One fetch, from its beginning to its report."""

    def __init__(self, fetch: Fetch, reference: OfferReference, layout: EngineLayout, now: float, span: Span) -> None:
        self.fetch = fetch
        self.reference = reference
        self.span = span
        self.held_at = self.began_at = self.claimed_at = self.posted_at = now
        self.num_claims = 0
        self._retried_at: float | None = None
        self.cause: TransportError | None = None
        self._layout = layout
        self._completed_at = now
        self._read: dict[RankCoordinates, ReadStatistics] = {}

    def begin(self, now: float) -> None:
        """The fetch begins, held before or not."""
        self.began_at = self.claimed_at = self.posted_at = self._completed_at = now

    def claim(self, now: float) -> bool:
        """A claim goes out; whether it is the first one."""
        self.num_claims += 1
        if self.num_claims == 1:
            self.claimed_at = now
        return self.num_claims == 1

    def retry(self, now: float) -> None:
        """What a rank could not read is read again elsewhere."""
        self._retried_at = now if self._retried_at is None else self._retried_at

    def add(self, ended: ReadsEnded) -> None:
        """Notes what one rank has read."""
        self._read[self._layout.ranks[ended.rank].coordinates] = ended.statistics
        self._completed_at = max(self._completed_at, ended.completed_at)

    def delivered(self, now: float) -> Delivered:
        """The report of a delivery."""
        read = self._read.values()
        moments = (self.held_at, self.began_at, self.claimed_at, self.posted_at, self._completed_at, now)
        for stage, began_at, ended_at in zip(STAGES, moments, moments[1:], strict=False):
            self.span.stage(stage, began_at, ended_at)
        if self._retried_at is not None:
            self.span.stage("retry", self._retried_at, self._completed_at)
        seconds = {
            "queued": self.began_at - self.held_at,
            "peer": self.claimed_at - self.began_at,
            "claim": self.posted_at - self.claimed_at,
            "post": max((statistics.post_seconds for statistics in read), default=0.0),
            "read": self._completed_at - self.posted_at,
            "grant": now - self._completed_at,
        }
        if self._retried_at is not None:
            seconds["retry"] = self._completed_at - self._retried_at
        incomplete: dict[str, set[int]] = {}
        for statistics in read:
            for group, blocks in statistics.incomplete.items():
                incomplete.setdefault(group, set()).update(blocks)
        return Delivered(
            sum(sum(statistics.bytes_from.values()) for statistics in read),
            sum(statistics.num_rows for statistics in read),
            seconds,
            {rank: dict(statistics.bytes_from) for rank, statistics in self._read.items()},
            {group: tuple(sorted(blocks)) for group, blocks in incomplete.items()},
        )
