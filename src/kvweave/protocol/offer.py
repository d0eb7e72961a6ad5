"""The prefill side's offers: who may read which blocks until when, and when they are free again.

Rules of this book:

- The first claim wins; the same claim again gets the same answer; every other one is refused by name.
- A lease only ever grows, and only while the offer lives. Time is looked at before anything else, so a message that
  arrives after the lease has ended finds it ended, also when no timer has run (a stopped process).
- Acknowledgements are counted by (offer, claiming engine, rank). Repeats, late and foreign ones change nothing.
- ``Release`` comes exactly once per offer: when every rank of the claimant acknowledged, or when the lease ends.
- A claimed offer that is withdrawn stays pinned until then: reads may be under way. It only grants nothing any more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from kvweave.errors import LocalProtocolError
from kvweave.protocol.effects import PrefillEffect, Release, ReleaseReason, Send
from kvweave.protocol.messages import (
    MOST_LEASE_SECONDS,
    Acknowledge,
    Claim,
    Claimed,
    Heartbeat,
    HeartbeatReply,
    OfferKey,
    RefusalReason,
    Refused,
    Renew,
    Renewed,
    Revoked,
)
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.states import OFFER, OfferEvent, OfferState
from kvweave.protocol.timers import Timers

REMEMBERED_OFFERS = 4096
"""How many ended offers keep the reason of their end, for a refusal that says it."""

Effects = tuple[PrefillEffect, ...]

_ENDED = {
    OfferState.CLAIMED: RefusalReason.ALREADY_CLAIMED,
    OfferState.REVOKED: RefusalReason.WITHDRAWN,
    OfferState.RELEASED: RefusalReason.RELEASED,
    OfferState.EXPIRED: RefusalReason.LEASE_ENDED,
    OfferState.WITHDRAWN: RefusalReason.WITHDRAWN,
}
_RELEASED = {
    OfferState.RELEASED: ReleaseReason.ACKNOWLEDGED,
    OfferState.EXPIRED: ReleaseReason.LEASE_ENDED,
    OfferState.WITHDRAWN: ReleaseReason.WITHDRAWN,
}


@dataclass(frozen=True, slots=True)
class Guest:
    """A decode engine that has handshaken: its id and how many ranks will acknowledge."""

    engine_id: str
    num_ranks: int


@dataclass(slots=True)
class _Offer:
    reference: OfferReference
    lease_seconds: float
    lease_end: float
    state: OfferState = OFFER.initial
    claimant: Guest | None = None
    claim: int = 0
    connection: Hashable = None
    missing: set[int] = field(default_factory=set)


class OfferBook:
    """All offers of one prefill engine."""

    def __init__(self, engine_id: str, lease_seconds: float) -> None:
        self.engine_id = engine_id
        self.lease_seconds = checked_lease(lease_seconds)
        self._offers: dict[OfferKey, _Offer] = {}
        self._ended: OrderedDict[OfferKey, RefusalReason] = OrderedDict()
        self._known: Counter[str] = Counter()
        self._timers: Timers[OfferKey] = Timers()
        self._being_read = 0

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def being_read(self) -> int:
        """How many offers are claimed and not yet released."""
        return self._being_read

    def claimant(self, key: OfferKey) -> Guest | None:
        """Who has claimed an offer that is not over."""
        offer = self._offers.get(key)
        return None if offer is None else offer.claimant

    def offer(self, now: float, reference: OfferReference, lease_seconds: float | None = None) -> Effects:
        """Pins the blocks of a reference under a lease from now on; with no valid token, releases them at once.

        Raises ``LocalProtocolError`` when this generation of the request was offered before.
        """
        key = reference.offer
        if key in self._offers or key in self._ended:
            raise LocalProtocolError(
                f"offer {key.request_id}: generation {key.generation} exists; count generations up"
            )
        if reference.num_tokens < 1:
            return (Release(key, ReleaseReason.NOTHING_VALID),)
        lease = self.lease_seconds if lease_seconds is None else checked_lease(lease_seconds)
        self._offers[key] = _Offer(reference, lease, now + lease)
        self._known[key.request_id] += 1
        self._timers.set(key, now + lease)
        return ()

    def withdraw(self, now: float, key: OfferKey) -> Effects:
        """The engine takes an offer back; an unknown or ended one is ignored."""
        effects = self.handle_timer(now)
        offer = self._offers.get(key)
        if offer is None:
            return effects
        was = offer.state
        effects += self._step(key, offer, OfferEvent.WITHDRAW)
        if was is OfferState.CLAIMED:
            effects += (Send(offer.connection, Revoked(offer.claim, "the prefill engine withdrew the offer")),)
        return effects

    def receive(self, now: float, connection: Hashable, guest: Guest, message: object) -> Effects:
        """What one message of a handshaken decode engine causes."""
        effects = self.handle_timer(now)
        match message:
            case Claim():
                return effects + self._claim(now, connection, guest, message)
            case Renew():
                return effects + self._renew(now, connection, guest, message)
            case Acknowledge():
                return effects + self._acknowledge(guest, message)
            case Heartbeat():
                return effects + self._beat(now, connection, message)
            case _:
                return effects

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> Effects:
        """Ends every lease whose time has come."""
        effects: list[PrefillEffect] = []
        for key in self._timers.due(now):
            offer = self._offers[key]
            if offer.lease_end > now:
                self._timers.set(key, offer.lease_end)
            else:
                effects += self._step(key, offer, OfferEvent.LEASE_END)
        return tuple(effects)

    def close(self) -> Effects:
        """Releases everything, because the engine ends; tells claimants."""
        effects: list[PrefillEffect] = []
        for key, offer in self._offers.items():
            if offer.claimant is not None:
                effects.append(Send(offer.connection, Revoked(offer.claim, "the prefill engine is closing")))
            effects.append(Release(key, ReleaseReason.CLOSING))
        self._offers.clear()
        self._being_read = 0
        return tuple(effects)

    def _claim(self, now: float, connection: Hashable, guest: Guest, message: Claim) -> Effects:
        offer = self._offers.get(message.offer)
        if message.engine_id != self.engine_id or offer is None:
            return self._refuse(connection, message)
        if (offer.claimant, offer.claim) == (guest, message.claim) and offer.state is OfferState.CLAIMED:
            return self._granted(now, connection, offer)
        if not OFFER.allows(offer.state, OfferEvent.CLAIM):
            return self._refuse(connection, message)
        self._step(message.offer, offer, OfferEvent.CLAIM)
        offer.claimant, offer.claim, offer.missing = guest, message.claim, set(range(guest.num_ranks))
        self._being_read += 1
        return self._granted(now, connection, offer)

    def _granted(self, now: float, connection: Hashable, offer: _Offer) -> Effects:
        offer.connection = connection
        self._extend(now, offer)
        reference = offer.reference
        claimed = Claimed(
            offer.claim, reference.offer, reference.num_tokens, dict(reference.tables), offer.lease_seconds
        )
        return (Send(connection, claimed),)

    def _renew(self, now: float, connection: Hashable, guest: Guest, message: Renew) -> Effects:
        offer = self._offers.get(message.offer)
        if message.engine_id != self.engine_id or offer is None or not OFFER.allows(offer.state, OfferEvent.RENEW):
            return self._refuse(connection, message)
        if (offer.claimant, offer.claim) != (guest, message.claim):
            return self._refuse(connection, message)
        self._step(message.offer, offer, OfferEvent.RENEW)
        self._extend(now, offer)
        return (Send(connection, Renewed(message.claim, message.sequence, offer.lease_seconds)),)

    def _acknowledge(self, guest: Guest, message: Acknowledge) -> Effects:
        offer = self._offers.get(message.offer)
        if offer is None or offer.claimant != guest or message.rank not in offer.missing:
            return ()
        offer.missing.discard(message.rank)
        event = OfferEvent.ACKNOWLEDGE if offer.missing else OfferEvent.ACKNOWLEDGE_LAST
        return self._step(message.offer, offer, event)

    def _beat(self, now: float, connection: Hashable, message: Heartbeat) -> Effects:
        missing = []
        for key in message.offers:
            offer = self._offers.get(key)
            if offer is None or not OFFER.allows(offer.state, OfferEvent.BEAT):
                missing.append((key, self._reason(key)))
            else:
                self._step(key, offer, OfferEvent.BEAT)
                self._extend(now, offer)
        return (Send(connection, HeartbeatReply(tuple(missing))),)

    def _extend(self, now: float, offer: _Offer) -> None:
        """Lets the lease begin anew; the timer finds the later end when it runs."""
        offer.lease_end = max(offer.lease_end, now + offer.lease_seconds)

    def _step(self, key: OfferKey, offer: _Offer, event: OfferEvent) -> Effects:
        offer.state = OFFER.step(offer.state, event)
        if not OFFER.terminal(offer.state):
            return ()
        del self._offers[key]
        self._timers.cancel(key)
        self._being_read -= offer.claimant is not None
        self._ended[key] = _ENDED[offer.state]
        while len(self._ended) > REMEMBERED_OFFERS:
            self._forget(self._ended.popitem(last=False)[0])
        return (Release(key, _RELEASED[offer.state]),)

    def _refuse(self, connection: Hashable, message: Claim | Renew) -> Effects:
        key = message.offer
        reason = RefusalReason.WRONG_ENGINE if message.engine_id != self.engine_id else self._reason(key)
        text = f"engine {self.engine_id}, request {key.request_id}, generation {key.generation}: {reason.value}"
        return (Send(connection, Refused(message.claim, reason, text)),)

    def _forget(self, key: OfferKey) -> None:
        self._known[key.request_id] -= 1
        if not self._known[key.request_id]:
            del self._known[key.request_id]

    def _reason(self, key: OfferKey) -> RefusalReason:
        offer = self._offers.get(key)
        if offer is not None:
            return _ENDED.get(offer.state, RefusalReason.NOT_CLAIMED)
        if key in self._ended:
            return self._ended[key]
        known = key.request_id in self._known
        return RefusalReason.WRONG_GENERATION if known else RefusalReason.UNKNOWN_REQUEST


def checked_lease(lease_seconds: float) -> float:
    """A lease that a message can carry; raises ``LocalProtocolError`` otherwise."""
    if not 0 < lease_seconds <= MOST_LEASE_SECONDS:
        raise LocalProtocolError(f"lease_seconds: {lease_seconds} is not above 0 and at most {MOST_LEASE_SECONDS:.0f}")
    return lease_seconds
