"""The lives of a peer, an offer and a fetch, as tables; an absent entry is the error.

A table says for (state, event) which state follows. ``step`` looks it up and blames the right side when there is no
entry: the peer for events that its messages cause, ourselves for the others. The diagrams of the documentation are
drawn from these tables by ``diagram``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from kvweave.errors import LocalProtocolError, RemoteProtocolError

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


@dataclass(frozen=True, slots=True, eq=False)
class Table(Generic[State, Event]):
    """One lifecycle. ``remote`` are the events that a peer's message causes; states without entries are terminal."""

    name: str
    initial: State
    transitions: Mapping[tuple[State, Event], State]
    remote: frozenset[Event]

    def allows(self, state: State, event: Event) -> bool:
        """Whether the event may happen in that state."""
        return (state, event) in self.transitions

    def step(self, state: State, event: Event) -> State:
        """The state that follows; raises ``RemoteProtocolError`` or ``LocalProtocolError`` when none does."""
        following = self.transitions.get((state, event))
        if following is not None:
            return following
        possible = ", ".join(known.value for held, known in self.transitions if held is state) or "nothing"
        message = f"{self.name}: {event.value} cannot happen while {state.value}; {possible} can"
        raise RemoteProtocolError(message) if event in self.remote else LocalProtocolError(message)

    def terminal(self, state: State) -> bool:
        """Whether nothing can happen any more."""
        return all(held is not state for held, _ in self.transitions)

    def diagram(self) -> str:
        """The table as a Mermaid state diagram; events that change nothing are left out."""
        arrows: dict[tuple[State, State], list[str]] = {}
        for (state, event), following in self.transitions.items():
            if state is not following:
                arrows.setdefault((state, following), []).append(event.value)
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial.value}"]
        for (state, following), events in arrows.items():
            lines.append(f"    {state.value} --> {following.value}: {', '.join(events)}")
        ends = dict.fromkeys(following for following in self.transitions.values() if self.terminal(following))
        return "\n".join([*lines, *(f"    {state.value} --> [*]" for state in ends)])


class PeerState(StrEnum):
    """A prefill engine, seen from the decode side. Of a lost one there is no record; when wanted, it begins anew."""

    UNKNOWN = "unknown"
    HANDSHAKING = "handshaking"
    CONNECTING = "connecting"
    READY = "ready"
    INCOMPATIBLE = "incompatible"
    LOST = "lost"


class PeerEvent(StrEnum):
    """What happens to a peer: it is wanted, asked once more, has replied, is warm, misfits, is lost or forgotten."""

    WANT = "want"
    REPLY = "reply"
    WARM = "warm"
    MISFIT = "misfit"
    REPEAT = "repeat"
    LOSE = "lose"
    FORGET = "forget"


PEER = Table(
    "peer",
    PeerState.UNKNOWN,
    MappingProxyType(
        {
            (PeerState.UNKNOWN, PeerEvent.WANT): PeerState.HANDSHAKING,
            (PeerState.HANDSHAKING, PeerEvent.REPLY): PeerState.CONNECTING,
            (PeerState.HANDSHAKING, PeerEvent.MISFIT): PeerState.INCOMPATIBLE,
            (PeerState.HANDSHAKING, PeerEvent.LOSE): PeerState.LOST,
            (PeerState.HANDSHAKING, PeerEvent.WANT): PeerState.HANDSHAKING,
            (PeerState.HANDSHAKING, PeerEvent.REPEAT): PeerState.HANDSHAKING,
            (PeerState.CONNECTING, PeerEvent.WARM): PeerState.READY,
            (PeerState.CONNECTING, PeerEvent.MISFIT): PeerState.INCOMPATIBLE,
            (PeerState.CONNECTING, PeerEvent.LOSE): PeerState.LOST,
            (PeerState.CONNECTING, PeerEvent.WANT): PeerState.CONNECTING,
            (PeerState.CONNECTING, PeerEvent.REPLY): PeerState.CONNECTING,
            (PeerState.READY, PeerEvent.LOSE): PeerState.LOST,
            (PeerState.READY, PeerEvent.WANT): PeerState.READY,
            (PeerState.READY, PeerEvent.REPLY): PeerState.READY,
            (PeerState.INCOMPATIBLE, PeerEvent.WANT): PeerState.INCOMPATIBLE,
            (PeerState.INCOMPATIBLE, PeerEvent.REPLY): PeerState.INCOMPATIBLE,
            (PeerState.INCOMPATIBLE, PeerEvent.LOSE): PeerState.INCOMPATIBLE,
            (PeerState.INCOMPATIBLE, PeerEvent.FORGET): PeerState.LOST,
        }
    ),
    frozenset({PeerEvent.REPLY}),
)


class OfferState(StrEnum):
    """An offer, on the prefill side. Blocks are pinned while offered, claimed or revoked."""

    OFFERED = "offered"
    CLAIMED = "claimed"
    REVOKED = "revoked"
    RELEASED = "released"
    EXPIRED = "expired"
    WITHDRAWN = "withdrawn"


class OfferEvent(StrEnum):
    """What happens to an offer.

    ``acknowledge_last`` is the acknowledgement after which no rank is missing; ``decline`` that of all ranks of an
    engine that gives an offer back which nobody has claimed.
    """

    BEAT = "beat"
    CLAIM = "claim"
    DECLINE = "decline"
    RENEW = "renew"
    ACKNOWLEDGE = "acknowledge"
    ACKNOWLEDGE_LAST = "acknowledge_last"
    LEASE_END = "lease_end"
    WITHDRAW = "withdraw"


OFFER = Table(
    "offer",
    OfferState.OFFERED,
    MappingProxyType(
        {
            (OfferState.OFFERED, OfferEvent.BEAT): OfferState.OFFERED,
            (OfferState.OFFERED, OfferEvent.CLAIM): OfferState.CLAIMED,
            (OfferState.OFFERED, OfferEvent.DECLINE): OfferState.RELEASED,
            (OfferState.OFFERED, OfferEvent.LEASE_END): OfferState.EXPIRED,
            (OfferState.OFFERED, OfferEvent.WITHDRAW): OfferState.WITHDRAWN,
            (OfferState.CLAIMED, OfferEvent.RENEW): OfferState.CLAIMED,
            (OfferState.CLAIMED, OfferEvent.ACKNOWLEDGE): OfferState.CLAIMED,
            (OfferState.CLAIMED, OfferEvent.ACKNOWLEDGE_LAST): OfferState.RELEASED,
            (OfferState.CLAIMED, OfferEvent.LEASE_END): OfferState.EXPIRED,
            (OfferState.CLAIMED, OfferEvent.WITHDRAW): OfferState.REVOKED,
            (OfferState.REVOKED, OfferEvent.ACKNOWLEDGE): OfferState.REVOKED,
            (OfferState.REVOKED, OfferEvent.ACKNOWLEDGE_LAST): OfferState.WITHDRAWN,
            (OfferState.REVOKED, OfferEvent.LEASE_END): OfferState.WITHDRAWN,
            (OfferState.REVOKED, OfferEvent.WITHDRAW): OfferState.REVOKED,
        }
    ),
    frozenset(
        {
            OfferEvent.BEAT,
            OfferEvent.CLAIM,
            OfferEvent.DECLINE,
            OfferEvent.RENEW,
            OfferEvent.ACKNOWLEDGE,
            OfferEvent.ACKNOWLEDGE_LAST,
        }
    ),
)


class FetchState(StrEnum):
    """A fetch, on the decode side. Target blocks are written into while reading or draining."""

    QUEUED = "queued"
    AWAITING_PEER = "awaiting_peer"
    CLAIMING = "claiming"
    READING = "reading"
    AWAITING_GRANT = "awaiting_grant"
    DRAINING = "draining"
    DELIVERED = "delivered"
    FAILED = "failed"


class FetchEvent(StrEnum):
    """What happens to a fetch.

    ``give_up`` is every reason to fail: refused, unanswered, late, aborted, peer lost, a read failed. ``reads_end``:
    all reads of all ranks are terminal. ``retry``: what a rank could not read is read again from another replica.
    ``covered``: a granted renewal reaches past the moment of the last read. ``repeat``: the claim is sent once more.
    """

    START = "start"
    PEER_READY = "peer_ready"
    PEER_CHANGED = "peer_changed"
    REPEAT = "repeat"
    CLAIMED = "claimed"
    RENEWED = "renewed"
    RETRY = "retry"
    READS_END = "reads_end"
    COVERED = "covered"
    GIVE_UP = "give_up"


FETCH = Table(
    "fetch",
    FetchState.QUEUED,
    MappingProxyType(
        {
            (FetchState.QUEUED, FetchEvent.START): FetchState.AWAITING_PEER,
            (FetchState.QUEUED, FetchEvent.GIVE_UP): FetchState.FAILED,
            (FetchState.AWAITING_PEER, FetchEvent.PEER_READY): FetchState.CLAIMING,
            (FetchState.AWAITING_PEER, FetchEvent.GIVE_UP): FetchState.DRAINING,
            (FetchState.CLAIMING, FetchEvent.PEER_CHANGED): FetchState.AWAITING_PEER,
            (FetchState.CLAIMING, FetchEvent.REPEAT): FetchState.CLAIMING,
            (FetchState.CLAIMING, FetchEvent.RETRY): FetchState.CLAIMING,
            (FetchState.CLAIMING, FetchEvent.CLAIMED): FetchState.READING,
            (FetchState.CLAIMING, FetchEvent.GIVE_UP): FetchState.DRAINING,
            (FetchState.READING, FetchEvent.RENEWED): FetchState.READING,
            (FetchState.READING, FetchEvent.RETRY): FetchState.READING,
            (FetchState.READING, FetchEvent.READS_END): FetchState.AWAITING_GRANT,
            (FetchState.READING, FetchEvent.GIVE_UP): FetchState.DRAINING,
            (FetchState.AWAITING_GRANT, FetchEvent.RENEWED): FetchState.AWAITING_GRANT,
            (FetchState.AWAITING_GRANT, FetchEvent.COVERED): FetchState.DELIVERED,
            (FetchState.AWAITING_GRANT, FetchEvent.GIVE_UP): FetchState.FAILED,
            (FetchState.DRAINING, FetchEvent.RENEWED): FetchState.DRAINING,
            (FetchState.DRAINING, FetchEvent.GIVE_UP): FetchState.DRAINING,
            (FetchState.DRAINING, FetchEvent.READS_END): FetchState.FAILED,
        }
    ),
    frozenset({FetchEvent.CLAIMED, FetchEvent.RENEWED}),
)


class FollowState(StrEnum):
    """A followed transfer, on the decode side. Its parts and its final offer are fetches, each with its own state."""

    AWAITING_PEER = "awaiting_peer"
    FOLLOWING = "following"
    COMPLETING = "completing"
    FETCHING = "fetching"
    DRAINING = "draining"
    DELIVERED = "delivered"
    FAILED = "failed"


class FollowEvent(StrEnum):
    """What happens to a followed transfer.

    ``offered``: there is more of it; ``finished``: the final offer is there, which is fetched when the parts that are
    being read have ended (``parts_end``). ``fetched``: the final offer was delivered. ``give_up`` is every reason to
    fail, ``reads_end``: nothing writes into the target blocks any more.
    """

    PEER_READY = "peer_ready"
    PEER_CHANGED = "peer_changed"
    OFFERED = "offered"
    FINISHED = "finished"
    PARTS_END = "parts_end"
    FETCHED = "fetched"
    GIVE_UP = "give_up"
    READS_END = "reads_end"


FOLLOW = Table(
    "follow",
    FollowState.AWAITING_PEER,
    MappingProxyType(
        {
            (FollowState.AWAITING_PEER, FollowEvent.PEER_READY): FollowState.FOLLOWING,
            (FollowState.AWAITING_PEER, FollowEvent.GIVE_UP): FollowState.DRAINING,
            (FollowState.FOLLOWING, FollowEvent.PEER_CHANGED): FollowState.AWAITING_PEER,
            (FollowState.FOLLOWING, FollowEvent.OFFERED): FollowState.FOLLOWING,
            (FollowState.FOLLOWING, FollowEvent.FINISHED): FollowState.COMPLETING,
            (FollowState.FOLLOWING, FollowEvent.GIVE_UP): FollowState.DRAINING,
            (FollowState.COMPLETING, FollowEvent.PARTS_END): FollowState.FETCHING,
            (FollowState.COMPLETING, FollowEvent.GIVE_UP): FollowState.DRAINING,
            (FollowState.FETCHING, FollowEvent.FETCHED): FollowState.DELIVERED,
            (FollowState.FETCHING, FollowEvent.GIVE_UP): FollowState.DRAINING,
            (FollowState.DRAINING, FollowEvent.READS_END): FollowState.FAILED,
        }
    ),
    frozenset({FollowEvent.OFFERED, FollowEvent.FINISHED}),
)
