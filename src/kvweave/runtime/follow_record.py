"""What the decode coordinator remembers of a followed transfer: as of one fetch, but of several after one another.

Its stages are those of the final offer's fetch, and all that comes before is ``queued``: what a request waits for once
its prompt is prefilled is what the others say.
"""

from __future__ import annotations

from dataclasses import replace

from kvweave.core.layout import EngineLayout
from kvweave.protocol.reference import OfferReference
from kvweave.runtime.events import ReadsEnded
from kvweave.runtime.handle import Delivered, Fetch
from kvweave.runtime.record import FetchRecord
from kvweave.runtime.tracing import Span


class FollowRecord(FetchRecord):
    """One followed transfer, from its beginning to its report. ``reference`` is that of the latest fetch."""

    def __init__(self, fetch: Fetch, address: str, layout: EngineLayout, now: float, span: Span) -> None:
        host, _, port = address.rpartition(":")
        nothing_yet = OfferReference("", host.strip("[]"), int(port), fetch.request_id, 0, 0, {})
        super().__init__(fetch, nothing_yet, layout, now, span)
        self._early_bytes = 0

    def turn(self, now: float, reference: OfferReference, final: bool) -> None:
        """The fetch of another offer begins."""
        self.reference = reference
        self.num_claims = 0
        if final:
            self._early_bytes = sum(sum(read.bytes_from.values()) for read in self._read.values())
            self.begin(now)

    def add(self, ended: ReadsEnded) -> None:
        """Notes what one rank has read for one of the offers."""
        rank = self._layout.ranks[ended.rank].coordinates
        earlier = self._read.get(rank)
        super().add(ended)
        if earlier is not None:
            self._read[rank] = earlier.joined(ended.statistics)

    def delivered(self, now: float) -> Delivered:
        """The report of a delivery."""
        return replace(super().delivered(now), early_bytes=self._early_bytes)
