"""The prefill side's offers: who may read which blocks until when, and when they are free again.

Rules of this book:

- The first claim wins; the same claim again gets the same answer; every other one is refused by name.
- A lease only ever grows, only while the offer lives, and not beyond ``MOST_OFFER_SECONDS``. Time is looked at before
  anything else, so a message that arrives after the lease has ended finds it ended, also when no timer has run (a
  stopped process).
- Acknowledgements are counted by (offer, claim, claiming engine, rank). Repeats, late and foreign ones change nothing;
  all are confirmed, so that nobody repeats them for ever.
- ``Release`` comes exactly once per offer: when every rank of the claimant acknowledged, or when the lease ends.
- A claimed offer that is withdrawn stays pinned until then: reads may be under way. It only grants nothing any more.
- Whoever claimed an offer, or kept it alive, is told at once when it ends otherwise than by acknowledgements. Those who
  keep it are not driven out by others who do: the first ``MOST_KEEPERS`` connections are told.
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
    Acknowledged,
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
MOST_OFFER_SECONDS = 3600.0
"""How long renewals and heartbeats keep an offer; a longer lease has its time. A client has given up long before, so
blocks that are held longer are held by a reader that errs or means harm: none may hold them for ever."""
MOST_KEEPERS = 4
"""An offer is handed to one engine; a second connection is that engine's after a loss, or a stranger's."""

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
    life_end: float
    state: OfferState = OFFER.initial
    claimant: Guest | None = None
    claim: int = 0
    attended: bool = False
    connection: Hashable = None
    keepers: list[Hashable] = field(default_factory=list)
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
        self._attended = 0
        self._retired = False

    def __len__(self) -> int:
        return len(self._offers)

    @property
    def attended(self) -> int:
        """How many offers are claimed, not yet released, and read in a way that needs our ranks."""
        return self._attended

    @property
    def drained(self) -> bool:
        """Whether nothing is taken any more and nothing is left."""
        return self._retired and not self._offers

    def claimant(self, key: OfferKey) -> Guest | None:
        """Who has claimed an offer that is not over."""
        offer = self._offers.get(key)
        return None if offer is None else offer.claimant

    def offer(self, now: float, reference: OfferReference, lease_seconds: float | None = None) -> Effects:
        """Pins the blocks of a reference under a lease from now on; with no valid token, releases them at once, and
        after ``drain`` or ``begin_closing`` too.

        Raises ``LocalProtocolError`` when this generation of the request was offered before.
        """
        key = reference.offer
        if key in self._offers or key in self._ended:
            raise LocalProtocolError(
                f"offer {key.request_id}: generation {key.generation} exists; count generations up"
            )
        if reference.num_tokens < 1:
            return (Release(key, ReleaseReason.NOTHING_VALID),)
        self._known[key.request_id] += 1
        if self._retired:
            self._remember(key, RefusalReason.CLOSING)
            return (Release(key, ReleaseReason.CLOSING),)
        lease = self.lease_seconds if lease_seconds is None else checked_lease(lease_seconds)
        self._offers[key] = _Offer(reference, lease, now + lease, now + max(lease, MOST_OFFER_SECONDS))
        self._timers.set(key, now + lease)
        return ()

    def withdraw(self, now: float, key: OfferKey) -> Effects:
        """The engine takes an offer back; an unknown or ended one is ignored."""
        effects = self.handle_timer(now)
        offer = self._offers.get(key)
        if offer is None:
            return effects
        return effects + self._withdraw(key, offer, RefusalReason.WITHDRAWN)

    def receive(self, now: float, connection: Hashable, guest: Guest, message: object) -> Effects:
        """What one message of a handshaken decode engine causes."""
        effects = self.handle_timer(now)
        match message:
            case Claim():
                return effects + self._claim(now, connection, guest, message)
            case Renew():
                return effects + self._renew(now, connection, guest, message)
            case Acknowledge():
                return effects + self._acknowledge(connection, guest, message)
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
                effects += self._expire(key, offer)
        return tuple(effects)

    def drain(self) -> None:
        """Takes no new offer from now on; those that are there live on."""
        self._retired = True

    def begin_closing(self, now: float) -> Effects:
        """Withdraws everything, because the engine ends. What is being read stays pinned until ``close``."""
        self._retired = True
        effects = self.handle_timer(now)
        for key, offer in list(self._offers.items()):
            withdrawn = self._withdraw(key, offer, RefusalReason.CLOSING)
            closing = Release(key, ReleaseReason.CLOSING)
            effects += tuple(closing if isinstance(effect, Release) else effect for effect in withdrawn)
        return effects

    def close(self) -> Effects:
        """Releases what is left: the engine has ended, and its memory cannot be read any more."""
        effects = tuple(Release(key, ReleaseReason.CLOSING) for key in self._offers)
        for key in self._offers:
            self._remember(key, RefusalReason.CLOSING)
            self._timers.cancel(key)
        self._offers.clear()
        self._attended = 0
        return effects

    def _expire(self, key: OfferKey, offer: _Offer) -> Effects:
        """A lease has ended. Where that is because it could not grow any more, its reader is told so."""
        if offer.state is OfferState.REVOKED:
            return self._step(key, offer, OfferEvent.LEASE_END)
        kept = offer.lease_end >= offer.life_end and (offer.claimant is not None or bool(offer.keepers))
        reason = RefusalReason.TOO_OLD if kept else RefusalReason.LEASE_ENDED
        told = _farewell(key, offer, reason) if kept or offer.state is OfferState.CLAIMED else ()
        released = self._step(key, offer, OfferEvent.LEASE_END)
        self._ended[key] = reason
        return told + released

    def _withdraw(self, key: OfferKey, offer: _Offer, reason: RefusalReason) -> Effects:
        told = () if offer.state is OfferState.REVOKED else _farewell(key, offer, reason)
        return told + self._step(key, offer, OfferEvent.WITHDRAW)

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
        offer.attended = message.attend
        self._attended += message.attend
        return self._granted(now, connection, offer)

    def _granted(self, now: float, connection: Hashable, offer: _Offer) -> Effects:
        offer.connection = connection
        lease = self._extend(now, offer)
        reference = offer.reference
        claimed = Claimed(offer.claim, reference.offer, reference.num_tokens, dict(reference.tables), lease)
        return (Send(connection, claimed),)

    def _renew(self, now: float, connection: Hashable, guest: Guest, message: Renew) -> Effects:
        offer = self._offers.get(message.offer)
        if message.engine_id != self.engine_id or offer is None or not OFFER.allows(offer.state, OfferEvent.RENEW):
            return self._refuse(connection, message)
        if (offer.claimant, offer.claim) != (guest, message.claim):
            return self._refuse(connection, message)
        self._step(message.offer, offer, OfferEvent.RENEW)
        lease = self._extend(now, offer)
        return (Send(connection, Renewed(message.claim, message.sequence, lease)),)

    def _acknowledge(self, connection: Hashable, guest: Guest, message: Acknowledge) -> Effects:
        confirmed = Send(connection, Acknowledged(message.claim, message.ranks))
        offer = self._offers.get(message.offer)
        if offer is None:
            return (confirmed,)
        if OFFER.allows(offer.state, OfferEvent.DECLINE) and set(message.ranks) == set(range(guest.num_ranks)):
            return (confirmed, *self._step(message.offer, offer, OfferEvent.DECLINE))
        if (offer.claimant, offer.claim) != (guest, message.claim) or offer.missing.isdisjoint(message.ranks):
            return (confirmed,)
        offer.missing.difference_update(message.ranks)
        event = OfferEvent.ACKNOWLEDGE if offer.missing else OfferEvent.ACKNOWLEDGE_LAST
        return (confirmed, *self._step(message.offer, offer, event))

    def _beat(self, now: float, connection: Hashable, message: Heartbeat) -> Effects:
        missing, leases = [], []
        for key in message.offers:
            offer = self._offers.get(key)
            if offer is None or not OFFER.allows(offer.state, OfferEvent.BEAT):
                missing.append((key, self._reason(key)))
            else:
                self._step(key, offer, OfferEvent.BEAT)
                self._extend(now, offer)
                if connection not in offer.keepers[:MOST_KEEPERS]:
                    offer.keepers = [*offer.keepers, connection][:MOST_KEEPERS]
                leases.append(offer.lease_seconds)
        return (Send(connection, HeartbeatReply(tuple(missing), min(leases, default=None))),)

    def _extend(self, now: float, offer: _Offer) -> float:
        """Lets the lease begin anew, and says how long it is; the timer finds the later end when it runs."""
        offer.lease_end = max(offer.lease_end, min(now + offer.lease_seconds, offer.life_end))
        return min(offer.lease_seconds, offer.life_end - now)

    def _step(self, key: OfferKey, offer: _Offer, event: OfferEvent) -> Effects:
        offer.state = OFFER.step(offer.state, event)
        if not OFFER.terminal(offer.state):
            return ()
        del self._offers[key]
        self._timers.cancel(key)
        self._attended -= offer.attended
        self._remember(key, _ENDED[offer.state])
        return (Release(key, _RELEASED[offer.state]),)

    def _remember(self, key: OfferKey, reason: RefusalReason) -> None:
        self._ended[key] = reason
        while len(self._ended) > REMEMBERED_OFFERS:
            self._forget(self._ended.popitem(last=False)[0])

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


def _farewell(key: OfferKey, offer: _Offer, reason: RefusalReason) -> Effects:
    """Tells the claimant, or who kept the offer alive, that it ends."""
    if offer.claimant is not None:
        return (Send(offer.connection, Revoked(offer.claim, f"the prefill engine ends the offer: {reason.value}")),)
    return tuple(Send(keeper, HeartbeatReply(((key, reason),))) for keeper in offer.keepers)


def checked_lease(lease_seconds: float) -> float:
    """A lease that a message can carry; raises ``LocalProtocolError`` otherwise."""
    if not 0 < lease_seconds <= MOST_LEASE_SECONDS:
        raise LocalProtocolError(f"lease_seconds: {lease_seconds} is not above 0 and at most {MOST_LEASE_SECONDS:.0f}")
    return lease_seconds
