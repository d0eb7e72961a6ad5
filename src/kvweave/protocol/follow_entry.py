"""One transfer that the decode side follows: what it wants, which parts of it were read, and what holds of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvweave.core.portion import Portion
from kvweave.protocol.effects import FetchPart, Send
from kvweave.protocol.messages import Follow, Leave, Offered
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.states import FOLLOW, FollowEvent, FollowState


@dataclass(frozen=True, slots=True)
class Pursuit:
    """Which transfer is followed, and where it is prefilled.

    ``num_tokens`` and ``prompt``, where given, are how many tokens it must have in the end and what it must be called.
    """

    address: str
    transfer_id: str
    num_tokens: int | None = None
    prompt: str | None = None

    def doubts(self, offered: Offered) -> str | None:
        """Why an offer is not of what is wanted; None when it is."""
        if self.prompt is not None and offered.prompt != self.prompt:
            return "another prompt was prefilled; send the same request to both engines"
        if offered.final and self.num_tokens not in (None, offered.num_tokens):
            return f"{offered.num_tokens} tokens were offered, wanted are {self.num_tokens}"
        return None


@dataclass(frozen=True, slots=True)
class Target:
    """Where the tokens of a followed transfer go, from ``start_token`` on. ``fence``: see ``PostReads``."""

    tables: Mapping[str, tuple[int, ...]]
    start_token: int = 0
    fence: int | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """Tokens [``start_token``, ``stop_token``) of the arrays that keep all tokens, offered under one generation."""

    generation: int
    start_token: int
    stop_token: int


@dataclass(slots=True)
class FollowEntry:
    """The record of one followed transfer.

    Nothing is read before it has a ``target``. ``parts`` have been read, each from where the one before ended;
    ``reading`` is the one under way. ``newest`` is an offer that was heard and not yet fetched. ``fetches`` are the
    numbers of all fetches of it that have not ended, ``part`` is the one that reads or may still write, ``final`` that
    of the final offer. ``moved``: it was asked for once more, at the engine that took the first one's place.
    """

    number: int
    pursuit: Pursuit
    target: Target | None = None
    state: FollowState = FOLLOW.initial
    seen: int = 0
    moved: bool = False
    parts: list[Part] = field(default_factory=list)
    reading: Part | None = None
    newest: Offered | None = None
    fetches: set[int] = field(default_factory=set)
    part: int | None = None
    final: int | None = None
    resend_seconds: float = 0.0
    patient_until: float = 0.0

    def step(self, event: FollowEvent) -> None:
        """Moves on by the table."""
        self.state = FOLLOW.step(self.state, event)

    def ask(self) -> Send:
        """Asks for what was not seen yet."""
        return Send(self.pursuit.address, Follow(self.number, self.pursuit.transfer_id, self.seen))

    def leave(self) -> Send:
        """Wants nothing more."""
        return Send(self.pursuit.address, Leave(self.number, self.pursuit.transfer_id))

    @property
    def read_tokens(self) -> int:
        """Up to which token the arrays that keep all tokens are here."""
        if self.parts:
            return self.parts[-1].stop_token
        return 0 if self.target is None else self.target.start_token

    def doubts(self, offered: Offered) -> str | None:
        """Why an offer is of no use; None when it is."""
        start_token = 0 if self.target is None else self.target.start_token
        if offered.final and offered.num_tokens < start_token:
            return f"{offered.num_tokens} tokens were offered, wanted are those from {start_token} on"
        return self.pursuit.doubts(offered)

    def hear(self, offered: Offered) -> bool:
        """Takes a newer offer, and forgets the parts that do not hold any more; whether the one under way is such."""
        self.seen = offered.sequence
        self.newest = offered
        void = next((n for n, part in enumerate(self.parts) if part.generation not in offered.confirmed), None)
        del self.parts[len(self.parts) if void is None else void :]
        return self.reading is not None and not self._follows_on(self.reading, offered)

    def keep(self) -> None:
        """The part under way was delivered; it counts if it still holds."""
        part, self.reading = self.reading, None
        if part is not None and (self.newest is None or self._follows_on(part, self.newest)):
            self.parts.append(part)

    def fetch(self, number: int, offered: Offered, engine_id: str, target: Target) -> FetchPart:
        """The fetch of an offer from where the parts before it end."""
        address, portion = self.pursuit.address, Portion(min(self.read_tokens, offered.num_tokens), offered.final)
        self.part = number
        self.fetches.add(number)
        if not offered.final:
            self.reading = Part(offered.offer.generation, portion.kept_start, offered.num_tokens)
        start_token = target.start_token if offered.final else portion.kept_start
        reference = reference_of(address, engine_id, offered)
        order = Order(address, reference, target.tables, start_token, target.fence, portion)
        return FetchPart(self.number, number, order)

    def _follows_on(self, part: Part, offered: Offered) -> bool:
        return part.start_token == self.read_tokens and part.generation in offered.confirmed


def reference_of(address: str, engine_id: str, offered: Offered) -> OfferReference:
    """An offer that was heard of, as if its reference had come with the request."""
    host, _, port = address.rpartition(":")
    key = offered.offer
    return OfferReference(
        engine_id, host.strip("[]"), int(port), key.request_id, key.generation, offered.num_tokens, offered.tables
    )
