"""Planted faults: what the simulation must find. Each leaves one check out, as a small override of the real book.

::

    generation   an offer is found by its request id alone
    lease        a grant counts however late the reads were complete
    rank-count   acknowledgements are counted, not ticked off by rank
    all-reads    the first rank that has ended stands for all
    grant        reads that have ended are delivered before their claim is granted
    first-claim  a later claim takes an offer from the first one
    claim-number a fetch that was given up acknowledges for the one after it
    retry        a rank acknowledges before it has tried again
    closing      a closing engine releases what is being read before its memory is closed
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from kvweave.protocol.effects import DecodeEffect, PrefillEffect
from kvweave.protocol.fetch import FetchBook
from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.messages import Acknowledge, Claim, Claimed, OfferKey
from kvweave.protocol.offer import Guest, OfferBook
from kvweave.protocol.sides import DecodeSide, PrefillSide
from kvweave.protocol.states import FetchEvent, FetchState, OfferState
from kvweave.testing.simulation.ranks import Ranks


@dataclass(frozen=True, slots=True)
class Plant:
    """What is done to the sides of every process when it starts."""

    name: str
    prefill: Callable[[PrefillSide], None]
    decode: Callable[[DecodeSide], None]
    ranks: Callable[[Ranks], None]


def _nothing(side: object) -> None:
    """Leaves a side as it is."""


NO_PLANT = Plant("nothing", _nothing, _nothing, _nothing)


class _AnyGeneration(OfferBook):
    def receive(self, now: float, connection: Hashable, guest: Guest, message: Any) -> tuple[PrefillEffect, ...]:
        asked = getattr(message, "offer", None)
        if asked is None:
            return super().receive(now, connection, guest, message)
        living = next((key for key in self._offers if key.request_id == asked.request_id), asked)
        effects = super().receive(now, connection, guest, msgspec.structs.replace(message, offer=living))
        return tuple(_as_asked(effect, asked) for effect in effects)


def _as_asked(effect: Any, asked: OfferKey) -> PrefillEffect:
    message = getattr(effect, "message", None)
    if isinstance(message, Claimed):
        return type(effect)(effect.to, msgspec.structs.replace(message, offer=asked))  # type: ignore[no-any-return]
    return effect  # type: ignore[no-any-return]


class _AnyRank(OfferBook):
    def receive(self, now: float, connection: Hashable, guest: Guest, message: Any) -> tuple[PrefillEffect, ...]:
        offer = self._offers.get(message.offer) if isinstance(message, Acknowledge) else None
        if offer is not None and offer.missing:
            missing = sorted(offer.missing)[: len(message.ranks)]
            message = msgspec.structs.replace(message, ranks=tuple(missing))
        return super().receive(now, connection, guest, message)


class _AnyMoment(FetchBook):
    def _settle(self, now: float, fetch: FetchEntry) -> tuple[DecodeEffect, ...]:
        if fetch.renewals is not None and fetch.renewals.granted_until is not None:
            fetch.completed_at = min(fetch.completed_at, fetch.renewals.granted_until - 1e-6)
        return super()._settle(now, fetch)


class _FirstRead(FetchBook):
    def reads_ended(self, now: float, number: int, rank: int, completed_at: float) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        if fetch is not None and rank in fetch.reading:
            fetch.reading = {rank}
        return super().reads_ended(now, number, rank, completed_at)


class _NoGrant(FetchBook):
    def reads_ended(self, now: float, number: int, rank: int, completed_at: float) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        if fetch is not None and fetch.renewals is not None and fetch.state is FetchState.CLAIMING and not fetch.doubt:
            fetch.step(FetchEvent.CLAIMED)
            fetch.renewals.granted_until = completed_at + 1.0
        return super().reads_ended(now, number, rank, completed_at)


class _LastClaim(OfferBook):
    def receive(self, now: float, connection: Hashable, guest: Guest, message: Any) -> tuple[PrefillEffect, ...]:
        offer = self._offers.get(message.offer) if isinstance(message, Claim) else None
        if offer is not None and offer.state is OfferState.CLAIMED:
            offer.claimant, offer.claim = guest, message.claim
        return super().receive(now, connection, guest, message)


class _AnyClaim(OfferBook):
    def receive(self, now: float, connection: Hashable, guest: Guest, message: Any) -> tuple[PrefillEffect, ...]:
        offer = self._offers.get(message.offer) if isinstance(message, Acknowledge) else None
        if offer is not None and offer.claimant == guest:
            message = msgspec.structs.replace(message, claim=offer.claim)
        return super().receive(now, connection, guest, message)


class _EarlyAcknowledgement(FetchBook):
    def reads_ended(self, now: float, number: int, rank: int, completed_at: float) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        early = self._acknowledge(now, fetch, [rank]) if fetch is not None and rank in fetch.again else ()
        return early + super().reads_ended(now, number, rank, completed_at)


class _EarlyRelease(OfferBook):
    def begin_closing(self, now: float) -> tuple[PrefillEffect, ...]:
        return super().begin_closing(now) + self.close()


def _offers(kind: type[OfferBook]) -> Callable[[PrefillSide], None]:
    def plant(side: PrefillSide) -> None:
        side.offers = kind(side.offers.engine_id, side.offers.lease_seconds)

    return plant


def _fetches(kind: type[FetchBook]) -> Callable[[DecodeSide], None]:
    def plant(side: DecodeSide) -> None:
        side.fetches = kind(side.engine_id, side.num_ranks, side.timing)

    return plant


PLANTS: Mapping[str, Plant] = MappingProxyType(
    {
        plant.name: plant
        for plant in (
            Plant("generation", _offers(_AnyGeneration), _nothing, _nothing),
            Plant("lease", _nothing, _fetches(_AnyMoment), _nothing),
            Plant("rank-count", _offers(_AnyRank), _nothing, _nothing),
            Plant("all-reads", _nothing, _fetches(_FirstRead), _nothing),
            Plant("grant", _nothing, _fetches(_NoGrant), _nothing),
            Plant("first-claim", _offers(_LastClaim), _nothing, _nothing),
            Plant("claim-number", _offers(_AnyClaim), _nothing, _nothing),
            Plant("retry", _nothing, _fetches(_EarlyAcknowledgement), _nothing),
            Plant("closing", _offers(_EarlyRelease), _nothing, _nothing),
        )
    }
)
"""The planted faults by name."""
