"""The two sides of the protocol, each as one pure object: a message or a moment in, effects out.

``PrefillSide`` joins reception and offers, ``DecodeSide`` peers and fetches. What one book asks of the other is settled
here and does not come out::

    WantPeer, ForgetPeer      fetches -> peers
    PeerReady, PeerLost, PeerFailed      peers -> fetches, follows (and out, for the log)
    HoldPart, FetchPart, AbortPart       follows -> fetches (a fetch that begins comes out too, for the records)
    Delivered, Failed, Reusable          fetches -> follows, where the fetch is a part of what is followed
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Sequence

from kvweave.core.layout import EngineLayout
from kvweave.errors import Mismatch
from kvweave.protocol.effects import (
    AbortPart,
    AnyFailure,
    DecodeEffect,
    Delivered,
    Drained,
    Failed,
    FailureReason,
    FetchPart,
    ForgetPeer,
    HoldPart,
    PeerFailed,
    PeerLost,
    PeerReady,
    PrefillEffect,
    Release,
    Reusable,
    Send,
    TurnedDown,
    WantPeer,
)
from kvweave.protocol.fetch import FetchBook
from kvweave.protocol.follow import FollowBook
from kvweave.protocol.follow_entry import Pursuit, Target
from kvweave.protocol.handshake import HolderOf, PeerBook, Reception, itself
from kvweave.protocol.messages import (
    Claim,
    Ended,
    Follow,
    HandshakeRefused,
    HandshakeReply,
    HandshakeRequest,
    Heartbeat,
    Incompatible,
    Leave,
    Offered,
    OfferKey,
    RefusalReason,
    Refused,
    Renew,
)
from kvweave.protocol.offer import OfferBook
from kvweave.protocol.order import Order
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.timing import Timing
from kvweave.protocol.transfers import TransferBook

FIRST_PART = 2**62
"""From where on the fetches of a followed transfer's parts are numbered."""


class PrefillSide:
    """A prefill engine's coordinator without I/O. ``agents`` is the agent data of its ranks, in their order.

    ``holder_of`` says who answers for a connection; see ``Reception``.
    """

    def __init__(
        self,
        engine_id: str,
        layout: EngineLayout,
        agents: Sequence[bytes],
        lease_seconds: float,
        holder_of: HolderOf = itself,
    ) -> None:
        self.offers = OfferBook(engine_id, lease_seconds)
        self.transfers = TransferBook(holder_of)
        self.reception = Reception(engine_id, layout, agents, lease_seconds, holder_of)
        self._drained = False

    @property
    def handshake_bytes(self) -> int:
        """About how much the answer to a handshake holds."""
        return self.reception.nbytes

    def offer(
        self, now: float, reference: OfferReference, lease_seconds: float | None = None
    ) -> tuple[PrefillEffect, ...]:
        """See ``OfferBook.offer``."""
        return self._settle(self.offers.offer(now, reference, lease_seconds))

    def withdraw(self, now: float, key: OfferKey) -> tuple[PrefillEffect, ...]:
        """See ``OfferBook.withdraw``."""
        return self._withdraw(now, self.offers.withdraw(now, key))

    def begin_transfer(self, now: float, transfer_id: str, prompt: str = "") -> None:
        """See ``TransferBook.begin``."""
        self.transfers.begin(now, transfer_id, prompt)

    def offer_part(
        self, now: float, transfer_id: str, reference: OfferReference, final: bool, lease_seconds: float | None = None
    ) -> tuple[PrefillEffect, ...]:
        """An offer of a progressive transfer: of what is there by now, or ``final``."""
        effects = self.offers.offer(now, reference, lease_seconds)
        released = any(isinstance(effect, Release) for effect in effects)
        left = self.transfers.follower_left(transfer_id) if final else not self.transfers.wants(transfer_id)
        if released or left:
            told, keys = self.transfers.abandon(transfer_id, RefusalReason.WITHDRAWN) if final else ((), ())
            return self._withdraw(now, effects + told, (*keys, reference.offer))
        return self._settle(effects + self.transfers.offer(transfer_id, reference, final))

    def retract_parts(self, now: float, transfer_id: str) -> tuple[PrefillEffect, ...]:
        """The blocks of a transfer's request are given up; see ``TransferBook.retract``."""
        return self._withdraw(now, (), self.transfers.retract(transfer_id))

    def abandon_transfer(self, now: float, transfer_id: str) -> tuple[PrefillEffect, ...]:
        """A transfer's request has ended without a final offer."""
        told, keys = self.transfers.abandon(transfer_id, RefusalReason.WITHDRAWN)
        return self._withdraw(now, told, keys)

    def receive(self, now: float, connection: Hashable, message: object) -> tuple[PrefillEffect, ...]:
        """What one message on a connection causes; who has not shaken hands is refused."""
        if isinstance(message, HandshakeRequest):
            return self.reception.receive(now, connection, message)
        guest = self.reception.guest(now, connection)
        if guest is None:
            return _stranger(connection, message)
        if isinstance(message, Incompatible):
            self.reception.forget(connection)
            problems = tuple(Mismatch(p.field, p.source, p.target, p.remedy) for p in message.problems)
            return (TurnedDown(guest.engine_id, problems),)
        if isinstance(message, Follow | Leave):
            told, keys = self.transfers.receive(now, connection, guest, message)
            return self._withdraw(now, told, keys)
        return self._withdraw(now, self.offers.receive(now, connection, guest, message))

    def has_claimed(self, now: float, connection: Hashable, key: OfferKey) -> bool:
        """Whether the engine on this connection has claimed that offer, and it is not over."""
        guest = self.reception.guest(now, connection)
        return guest is not None and self.offers.claimant(key) == guest

    def other_version(self, connection: Hashable, text: str) -> tuple[PrefillEffect, ...]:
        """A peer of another protocol version wrote; the answer is in ours, so that it learns the same."""
        return (Send(connection, HandshakeRefused(0, RefusalReason.VERSION, text)),)

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return _earlier(self.offers.get_timer(), self.reception.get_timer(), self.transfers.get_timer())

    def handle_timer(self, now: float) -> tuple[PrefillEffect, ...]:
        """What the time causes."""
        self.reception.handle_timer(now)
        told, keys = self.transfers.handle_timer(now)
        return self._withdraw(now, told + self.offers.handle_timer(now), keys)

    def drain(self) -> tuple[PrefillEffect, ...]:
        """Takes no new offer; ``Drained`` follows when the others have ended."""
        self.offers.drain()
        return self._settle(())

    def begin_closing(self, now: float) -> tuple[PrefillEffect, ...]:
        """Withdraws all offers and tells who reads them."""
        self.reception.close()
        return self._settle(self.transfers.close() + self.offers.begin_closing(now))

    def close(self) -> tuple[PrefillEffect, ...]:
        """Releases what is left, once nothing of this engine can be read any more."""
        self.reception.close()
        return self._settle(self.offers.close())

    def _withdraw(
        self, now: float, effects: tuple[PrefillEffect, ...], keys: tuple[OfferKey, ...] = ()
    ) -> tuple[PrefillEffect, ...]:
        """Withdraws offers, and with a final one that has ended the others of its transfer."""
        pending, unseen = deque(keys), effects
        while True:
            released = [effect.offer for effect in unseen if isinstance(effect, Release)]
            pending.extend(key for ended in released for key in self.transfers.released(ended))
            if not pending:
                break
            unseen = self.offers.withdraw(now, pending.popleft())
            effects += unseen
        return self._settle(effects)

    def _settle(self, effects: tuple[PrefillEffect, ...]) -> tuple[PrefillEffect, ...]:
        if self._drained or not self.offers.drained:
            return effects
        self._drained = True
        return (*effects, Drained())


def _stranger(connection: Hashable, message: object) -> tuple[PrefillEffect, ...]:
    reason, text = RefusalReason.NOT_HANDSHAKEN, "this connection has not shaken hands"
    match message:
        case Claim() | Renew():
            return (Send(connection, Refused(message.claim, reason, text)),)
        case Heartbeat():
            return (Send(connection, HandshakeRefused(0, reason, text)),)
        case Follow() | Leave():
            return (Send(connection, Ended(message.follow, reason, text)),)
        case _:
            return ()


def _earlier(*moments: float | None) -> float | None:
    return min((moment for moment in moments if moment is not None), default=None)


class DecodeSide:
    """A decode engine's coordinator without I/O."""

    def __init__(self, engine_id: str, layout: EngineLayout, timing: Timing) -> None:
        self.engine_id = engine_id
        self.num_ranks = len(layout.ranks)
        self.timing = timing
        self.peers = PeerBook(engine_id, layout, timing)
        self.fetches = FetchBook(engine_id, self.num_ranks, timing)
        self.follows = FollowBook(timing, itertools.count(FIRST_PART))
        self._taking = True
        self._drained = False

    def name_peer(self, now: float, address: str) -> tuple[DecodeEffect, ...]:
        """Handshakes with a peer of the configuration, now and after every loss."""
        return self._settle(now, self.peers.name(now, address))

    def hold(self, now: float, number: int, address: str, reference: OfferReference) -> tuple[DecodeEffect, ...]:
        """See ``FetchBook.hold``."""
        return self._settle(now, self._turn_away(number) or self.fetches.hold(now, number, address, reference))

    def fetch(self, now: float, number: int, order: Order) -> tuple[DecodeEffect, ...]:
        """See ``FetchBook.fetch``; what is held may still begin when nothing new is taken."""
        refused = self._turn_away(number) if self.fetches.state(number) is None else ()
        return self._settle(now, refused or self.fetches.fetch(now, number, order))

    def follow(self, now: float, number: int, pursuit: Pursuit) -> tuple[DecodeEffect, ...]:
        """See ``FollowBook.follow``; numbers are those of fetches, below ``FIRST_PART``."""
        return self._settle(now, self._turn_away(number) or self.follows.follow(now, number, pursuit))

    def begin_followed(self, now: float, number: int, target: Target) -> tuple[DecodeEffect, ...]:
        """See ``FollowBook.begin``."""
        return self._settle(now, self.follows.begin(number, target))

    def abort(self, now: float, number: int) -> tuple[DecodeEffect, ...]:
        """Ends a fetch or a followed transfer; see ``FetchBook.abort`` and ``FollowBook.abort``."""
        return self._settle(now, self.follows.abort(now, number) + self.fetches.abort(now, number))

    def receive(self, now: float, address: str, message: object) -> tuple[DecodeEffect, ...]:
        """What one message from an address causes."""
        if isinstance(message, HandshakeReply | HandshakeRefused):
            return self._settle(now, self.peers.receive(now, address, message))
        effects = self.fetches.receive(now, address, message)
        if isinstance(message, Offered | Ended):
            effects += self.follows.receive(now, address, message)
        return self._settle(now, effects)

    def misfit(self, now: float, address: str, problems: Sequence[Mismatch]) -> tuple[DecodeEffect, ...]:
        """The peer speaks another protocol version."""
        return self._settle(now, self.peers.misfit(now, address, problems))

    def lose(self, now: float, address: str, text: str) -> tuple[DecodeEffect, ...]:
        """The peer is gone, or sent what it must not send."""
        return self._settle(now, self.peers.lose(now, address, text))

    def connected(self, now: float, address: str, attempt: int, rank: int) -> tuple[DecodeEffect, ...]:
        """One of our ranks is connected and warm."""
        return self._settle(now, self.peers.connected(address, attempt, rank))

    def not_connected(
        self, now: float, address: str, attempt: int, text: str, problems: Sequence[Mismatch] = ()
    ) -> tuple[DecodeEffect, ...]:
        """One of our ranks cannot connect or cannot plan."""
        return self._settle(now, self.peers.not_connected(now, address, attempt, text, problems))

    def reads_ended(
        self, now: float, number: int, rank: int, completed_at: float, attended: bool = True
    ) -> tuple[DecodeEffect, ...]:
        """See ``FetchBook.reads_ended``."""
        return self._settle(now, self.fetches.reads_ended(now, number, rank, completed_at, attended))

    def read_failed(
        self, now: float, number: int, rank: int, reason: AnyFailure, text: str, elsewhere: bool = False
    ) -> tuple[DecodeEffect, ...]:
        """See ``FetchBook.read_failed``."""
        return self._settle(now, self.fetches.read_failed(now, number, rank, reason, text, elsewhere))

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return _earlier(self.peers.get_timer(), self.fetches.get_timer(), self.follows.get_timer())

    def handle_timer(self, now: float) -> tuple[DecodeEffect, ...]:
        """What the time causes."""
        followed = self.follows.handle_timer(now)
        return self._settle(now, self.peers.handle_timer(now) + self.fetches.handle_timer(now) + followed)

    def drain(self, now: float) -> tuple[DecodeEffect, ...]:
        """Takes nothing new; ``Drained`` follows when everything has ended that is held, fetched or followed."""
        self._taking = False
        self.fetches.drain()
        return self._settle(now, ())

    def close(self, now: float) -> tuple[DecodeEffect, ...]:
        """Gives all fetches up."""
        self._taking = False
        return self._settle(now, self.follows.close(now) + self.fetches.close(now))

    def _turn_away(self, number: int) -> tuple[DecodeEffect, ...]:
        """Refuses what is new when nothing new is taken."""
        if self._taking:
            return ()
        text = "this engine takes nothing new; send the request to another one"
        return (Failed(number, FailureReason.CLOSED, text), Reusable(number))

    def _settle(self, now: float, effects: tuple[DecodeEffect, ...]) -> tuple[DecodeEffect, ...]:
        """Carries effects between the two books until none is left; what remains is for the outside."""
        outside: list[DecodeEffect] = []
        pending = deque(effects)
        while pending:
            effect = pending.popleft()
            match effect:
                case WantPeer():
                    pending.extend(self.peers.want(now, effect.address))
                    continue
                case ForgetPeer():
                    pending.extend(self.peers.lose(now, effect.address, effect.text))
                    continue
                case HoldPart() | FetchPart() | AbortPart():
                    pending.extend(self._move_part(now, effect))
                    if not isinstance(effect, FetchPart):
                        continue
                case Delivered() | Failed() | Reusable() if self.follows.owner(effect.fetch) is not None:
                    pending.extend(self.follows.part_ended(now, effect))
                    continue
                case PeerReady() | PeerLost() | PeerFailed():
                    pending.extend(self._note_peer(now, effect))
            outside.append(effect)
        if self.fetches.drained and self.follows.over and not self._drained:
            self._drained = True
            outside.append(Drained())
        return tuple(outside)

    def _move_part(self, now: float, effect: HoldPart | FetchPart | AbortPart) -> tuple[DecodeEffect, ...]:
        """What a followed transfer asks of the fetches."""
        match effect:
            case HoldPart():
                return self.fetches.hold(now, effect.fetch, effect.address, effect.reference)
            case FetchPart():
                return self.fetches.fetch(now, effect.fetch, effect.order)
        return self.fetches.abort(now, effect.fetch)

    def _note_peer(self, now: float, effect: PeerReady | PeerLost | PeerFailed) -> tuple[DecodeEffect, ...]:
        """What becomes of everything that a peer has or shall have."""
        address = effect.address
        match effect:
            case PeerReady():
                begun = self.fetches.peer_ready(now, address, effect.lease_seconds)
                return begun + self.follows.peer_ready(now, address, effect.engine_id)
            case PeerLost():
                ended = self.fetches.peer_lost(now, address, effect.text)
                return ended + self.follows.peer_lost(now, address, effect.text)
        ended = self.fetches.peer_failed(now, address, effect.text, effect.problems)
        return ended + self.follows.peer_failed(now, address, effect.text, effect.problems)
