"""The records of all fetches of one decode engine: by number, by peer, and by the offer that each wants.

``begun`` and ``reading`` are the numbers of those that are under way, and of those whose reads may not be terminal.
"""

from __future__ import annotations

from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.messages import OfferKey


class FetchEntries:
    """At most one fetch an offer."""

    def __init__(self) -> None:
        self._by_number: dict[int, FetchEntry] = {}
        self._by_offer: dict[tuple[str, OfferKey], FetchEntry] = {}
        self.begun: set[int] = set()
        self.reading: set[int] = set()

    def __len__(self) -> int:
        return len(self._by_number)

    def __contains__(self, number: int) -> bool:
        return number in self._by_number

    def add(self, fetch: FetchEntry) -> FetchEntry:
        """Notes a fetch, unless another one has its offer already; returns the one that has it."""
        holder = self._by_offer.setdefault((fetch.address, fetch.reference.offer), fetch)
        if holder is fetch:
            self._by_number[fetch.number] = fetch
        return holder

    def drop(self, fetch: FetchEntry) -> None:
        """Forgets a fetch."""
        del self._by_number[fetch.number]
        del self._by_offer[fetch.address, fetch.reference.offer]
        self.begun.discard(fetch.number)
        self.reading.discard(fetch.number)

    def every(self) -> list[FetchEntry]:
        """All of them, in the order they came."""
        return list(self._by_number.values())

    def get(self, number: int) -> FetchEntry | None:
        """The fetch of that number, if there is one."""
        return self._by_number.get(number)

    def at(self, address: str) -> list[FetchEntry]:
        """All fetches from that peer."""
        return [fetch for fetch in self._by_number.values() if fetch.address == address]

    def of(self, address: str, number: int) -> FetchEntry | None:
        """The fetch of that number if it is from that peer."""
        fetch = self._by_number.get(number)
        return fetch if fetch is not None and fetch.address == address else None

    def wants(self, address: str, offer: OfferKey) -> FetchEntry | None:
        """The fetch of that offer, if there is one."""
        return self._by_offer.get((address, offer))
