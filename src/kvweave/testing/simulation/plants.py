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
    preempted    offers whose blocks were given up are confirmed by the offers after them
    provisional  a chunk that was read counts, whatever the final offer confirms
    one-part     a part is fetched while the one before may still write into its blocks
    final-grant  the last part is delivered before its claim is granted
    window       the last part's windows begin where its chunk does
    state        the last part moves only what keeps all tokens
    abandon      the chunks of a transfer that is abandoned are not withdrawn
    drain        an engine that takes nothing new refuses the parts of what it follows
    stripe       the last stripe is left out
    stripe-again of several stripes that failed one is read again
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import msgspec

from kvweave.core.parallel import RankCoordinates
from kvweave.core.portion import Portion
from kvweave.core.read import Read
from kvweave.core.replicas import Salt, others
from kvweave.core.spread import Spread
from kvweave.core.stripes import Stripe
from kvweave.protocol.effects import (
    DecodeEffect,
    Failed,
    FailureReason,
    FetchPart,
    PrefillEffect,
    Reusable,
    Send,
)
from kvweave.protocol.fetch import FetchBook
from kvweave.protocol.fetch_entry import FetchEntry
from kvweave.protocol.follow import FollowBook
from kvweave.protocol.follow_entry import FollowEntry
from kvweave.protocol.messages import Acknowledge, Claim, Claimed, Offered, OfferKey, RefusalReason
from kvweave.protocol.offer import Guest, OfferBook
from kvweave.protocol.order import Order
from kvweave.protocol.sides import FIRST_PART, DecodeSide, PrefillSide
from kvweave.protocol.states import FetchEvent, FetchState, OfferState
from kvweave.protocol.transfers import TransferBook
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
    def reads_ended(
        self, now: float, number: int, rank: int, completed_at: float, attended: bool = True
    ) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        if fetch is not None and rank in fetch.reading:
            fetch.reading = {rank}
        return super().reads_ended(now, number, rank, completed_at, attended)


class _NoGrant(FetchBook):
    def reads_ended(
        self, now: float, number: int, rank: int, completed_at: float, attended: bool = True
    ) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        if fetch is not None and fetch.renewals is not None and fetch.state is FetchState.CLAIMING and not fetch.doubt:
            fetch.step(FetchEvent.CLAIMED)
            fetch.renewals.granted_until = completed_at + 1.0
        return super().reads_ended(now, number, rank, completed_at, attended)


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
    def reads_ended(
        self, now: float, number: int, rank: int, completed_at: float, attended: bool = True
    ) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        early = self._acknowledge(now, fetch, [rank]) if fetch is not None and rank in fetch.again else ()
        return early + super().reads_ended(now, number, rank, completed_at, attended)


class _EarlyRelease(OfferBook):
    def begin_closing(self, now: float) -> tuple[PrefillEffect, ...]:
        return super().begin_closing(now) + self.close()


class _Unretracted(TransferBook):
    def retract(self, transfer_id: str) -> tuple[OfferKey, ...]:
        chunks = super().retract(transfer_id)
        transfer = self._transfers.get(transfer_id)
        if transfer is not None:
            transfer.confirmed = tuple(key.generation for key in chunks)
        return chunks


class _Unwithdrawn(TransferBook):
    def abandon(self, transfer_id: str, reason: RefusalReason) -> tuple[tuple[Send, ...], tuple[OfferKey, ...]]:
        return super().abandon(transfer_id, reason)[0], ()


class _AnyPart(FollowBook):
    def _hear(self, now: float, entry: FollowEntry, offered: Offered) -> tuple[DecodeEffect, ...]:
        read = [*entry.parts, entry.reading] if entry.reading else entry.parts
        confirmed = (*offered.confirmed, *(part.generation for part in read))
        return super()._hear(now, entry, msgspec.structs.replace(offered, confirmed=confirmed))


class _PartOnPart(FollowBook):
    def _advance(self, entry: FollowEntry) -> tuple[DecodeEffect, ...]:
        if entry.part is not None and entry.newest is not None:
            entry.part = entry.reading = None
        return super()._advance(entry)


class _ShortWindow(FollowBook):
    def _advance(self, entry: FollowEntry) -> tuple[DecodeEffect, ...]:
        effects = super()._advance(entry)
        return tuple(_other_order(one, start_token=_kept_start(one)) for one in effects)


class _NoState(FollowBook):
    def _advance(self, entry: FollowEntry) -> tuple[DecodeEffect, ...]:
        effects = super()._advance(entry)
        return tuple(_other_order(one, portion=Portion(_kept_start(one), others=False)) for one in effects)


def _kept_start(effect: DecodeEffect) -> int:
    portion = effect.order.portion if isinstance(effect, FetchPart) else None
    return 0 if portion is None else portion.kept_start


def _other_order(effect: DecodeEffect, **changes: Any) -> DecodeEffect:
    return replace(effect, order=replace(effect.order, **changes)) if isinstance(effect, FetchPart) else effect


class _NoFinalGrant(_NoGrant):
    def reads_ended(
        self, now: float, number: int, rank: int, completed_at: float, attended: bool = True
    ) -> tuple[DecodeEffect, ...]:
        fetch = self._fetches.get(number)
        portion = fetch.order.portion if fetch is not None and fetch.order is not None else None
        if portion is not None and portion.others:
            return super().reads_ended(now, number, rank, completed_at, attended)
        return FetchBook.reads_ended(self, now, number, rank, completed_at, attended)


class _NoPartAfterDrain(FetchBook):
    def fetch(self, now: float, number: int, order: Order) -> tuple[DecodeEffect, ...]:
        if not self._retired or number in self._fetches:
            return super().fetch(now, number, order)
        return (Failed(number, FailureReason.CLOSED, "nothing new is taken"), Reusable(number))


class _LeftOut(Spread):
    def stripes(
        self, salt: Salt, start_token: int, num_tokens: int, in_flight: Mapping[RankCoordinates, int]
    ) -> tuple[Stripe, ...]:
        stripes = super().stripes(salt, start_token, num_tokens, in_flight)
        return stripes[:-1] if len(stripes) > 1 else stripes


def _one_of_others(
    reads: Iterable[Read], served: Iterable[Stripe], failed: set[RankCoordinates]
) -> Mapping[Stripe, tuple[Read, ...]] | None:
    found = others(reads, served, failed)
    return found and dict(list(found.items())[:1])


def _offers(kind: type[OfferBook]) -> Callable[[PrefillSide], None]:
    def plant(side: PrefillSide) -> None:
        side.offers = kind(side.offers.engine_id, side.offers.lease_seconds)

    return plant


def _fetches(kind: type[FetchBook]) -> Callable[[DecodeSide], None]:
    def plant(side: DecodeSide) -> None:
        side.fetches = kind(side.engine_id, side.num_ranks, side.timing)

    return plant


def _transfers(kind: type[TransferBook]) -> Callable[[PrefillSide], None]:
    def plant(side: PrefillSide) -> None:
        side.transfers = kind()

    return plant


def _follows(kind: type[FollowBook]) -> Callable[[DecodeSide], None]:
    def plant(side: DecodeSide) -> None:
        side.follows = kind(side.timing, itertools.count(FIRST_PART))

    return plant


def _spread(ranks: Ranks) -> None:
    ranks.spread = _LeftOut


def _others(ranks: Ranks) -> None:
    ranks.others = _one_of_others


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
            Plant("preempted", _transfers(_Unretracted), _nothing, _nothing),
            Plant("provisional", _nothing, _follows(_AnyPart), _nothing),
            Plant("one-part", _nothing, _follows(_PartOnPart), _nothing),
            Plant("final-grant", _nothing, _fetches(_NoFinalGrant), _nothing),
            Plant("window", _nothing, _follows(_ShortWindow), _nothing),
            Plant("state", _nothing, _follows(_NoState), _nothing),
            Plant("abandon", _transfers(_Unwithdrawn), _nothing, _nothing),
            Plant("drain", _nothing, _fetches(_NoPartAfterDrain), _nothing),
            Plant("stripe", _nothing, _nothing, _spread),
            Plant("stripe-again", _nothing, _nothing, _others),
        )
    }
)
"""The planted faults by name."""
