"""The prefill side's progressive transfers: prompts that are offered while they are prefilled.

::

    engine     begin      offer(256 tokens)  offer(512)           offer(700, final)
    follower        Follow -> Offered 1          Offered 2 ...         Offered 3, final, confirmed (1, 2)

Every offer is an ordinary one, of all tokens that are there by then, under a generation of its own; nothing here lets
anybody read. What this book adds is who hears of them, and which of them still hold: when a request is preempted, its
blocks are given up, and what was read of them is void (``retract``).

Rules:

- A transfer belongs to the engine that follows it first, by an id that only those know who made the request.
- A follower hears the newest offer only. It covers all earlier ones.
- Who follows what nobody begins is told so after ``UNSEEN_SECONDS``; one holder may wait for ``MOST_FOLLOWED`` such.
- When the follower leaves, or the final offer has ended, offers that nobody has claimed are withdrawn; so are those
  that come after a follower has left. Without a follower the final offer is like any other.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from kvweave.protocol.effects import Send
from kvweave.protocol.handshake import HolderOf, itself
from kvweave.protocol.messages import MOST_CHUNKS, Ended, Follow, Leave, Offered, OfferKey, RefusalReason
from kvweave.protocol.offer import MOST_OFFER_SECONDS, Guest
from kvweave.protocol.reference import OfferReference
from kvweave.protocol.timers import Timers

UNSEEN_SECONDS = 120.0
"""How long a transfer that nobody has begun is waited for: its prompt may stand in a queue."""
MOST_FOLLOWED = 4096
REMEMBERED_TRANSFERS = 4096

Sends = tuple[Send, ...]


@dataclass(frozen=True, slots=True)
class _Follower:
    guest: Guest
    follow: int
    connection: Hashable

    def is_of(self, guest: Guest, message: Follow | Leave) -> bool:
        return (self.guest, self.follow) == (guest, message.follow)


@dataclass(slots=True)
class _Transfer:
    begun: bool
    prompt: str = ""
    follower: _Follower | None = None
    waiting_for: Hashable = None
    left: bool = False
    sequence: int = 0
    newest: OfferReference | None = None
    final: OfferKey | None = None
    chunks: list[OfferKey] = field(default_factory=list)
    confirmed: tuple[int, ...] = ()


class TransferBook:
    """All progressive transfers of one prefill engine, by their id. ``holder_of``: see ``Reception``."""

    def __init__(self, holder_of: HolderOf = itself) -> None:
        self._holder_of = holder_of
        self._transfers: dict[str, _Transfer] = {}
        self._finals: dict[OfferKey, str] = {}
        self._ended: OrderedDict[str, RefusalReason] = OrderedDict()
        self._waiting: Counter[Hashable] = Counter()
        self._timers: Timers[str] = Timers()

    def __len__(self) -> int:
        return len(self._transfers)

    def begin(self, now: float, transfer_id: str, prompt: str = "") -> None:
        """The engine begins to prefill what has this id; the caller begins no id twice while it lives.

        ``prompt`` is what followers are told that the prompt is called.
        """
        transfer = self._transfers.setdefault(transfer_id, _Transfer(begun=True))
        self._wait_no_longer(transfer)
        transfer.prompt = prompt
        self._ended.pop(transfer_id, None)
        self._timers.set(transfer_id, now + MOST_OFFER_SECONDS)

    def wants(self, transfer_id: str) -> bool:
        """Whether somebody may still want what is offered; a chunk that is one too many nobody does."""
        transfer = self._transfers.get(transfer_id)
        return transfer is not None and not transfer.left and len(transfer.confirmed) < MOST_CHUNKS

    def follower_left(self, transfer_id: str) -> bool:
        """Whether there was a follower who wants nothing any more."""
        transfer = self._transfers.get(transfer_id)
        return transfer is not None and transfer.left

    def offer(self, transfer_id: str, reference: OfferReference, final: bool) -> Sends:
        """A new offer is there; tells the follower."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None or transfer.left:
            return ()
        earlier = transfer.newest
        if earlier is not None and earlier.offer in transfer.chunks:
            transfer.confirmed = (*transfer.confirmed, earlier.generation)[-MOST_CHUNKS:]
        transfer.newest = reference
        transfer.sequence += 1
        if final:
            transfer.final = reference.offer
            self._finals[reference.offer] = transfer_id
        else:
            transfer.chunks.append(reference.offer)
        return self._tell(transfer)

    def retract(self, transfer_id: str) -> tuple[OfferKey, ...]:
        """The request's blocks are given up: no earlier offer holds any more; those to withdraw."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return ()
        chunks, transfer.chunks, transfer.confirmed = tuple(transfer.chunks), [], ()
        transfer.newest = None
        return chunks

    def abandon(self, transfer_id: str, reason: RefusalReason) -> tuple[Sends, tuple[OfferKey, ...]]:
        """No final offer will come: what to tell the follower, and the offers to withdraw."""
        transfer = self._transfers.get(transfer_id)
        if transfer is None:
            return (), ()
        told = () if transfer.left or transfer.final is not None else _farewell(transfer.follower, reason)
        return told, self._end(transfer_id, reason)

    def released(self, key: OfferKey) -> tuple[OfferKey, ...]:
        """An offer has ended; with a final one its transfer does, and those of its offers that are to be withdrawn."""
        transfer_id = self._finals.get(key)
        return () if transfer_id is None else self._end(transfer_id, RefusalReason.RELEASED)

    def receive(
        self, now: float, connection: Hashable, guest: Guest, message: Follow | Leave
    ) -> tuple[Sends, tuple[OfferKey, ...]]:
        """What a follower causes: what to tell him, and offers to withdraw."""
        if isinstance(message, Leave):
            return self._leave(now, connection, guest, message)
        transfer = self._transfers.get(message.transfer_id)
        if transfer is None:
            return self._wait_for(now, _Follower(guest, message.follow, connection), message.transfer_id), ()
        follower = transfer.follower
        if follower is not None and not follower.is_of(guest, message):
            return _ended(connection, message.follow, RefusalReason.ALREADY_CLAIMED), ()
        if transfer.left:
            return _ended(connection, message.follow, RefusalReason.RELEASED), ()
        transfer.follower = _Follower(guest, message.follow, connection)
        return self._tell(transfer) if message.seen < transfer.sequence else (), ()

    def get_timer(self) -> float | None:
        """When ``handle_timer`` should be called next."""
        return self._timers.next()

    def handle_timer(self, now: float) -> tuple[Sends, tuple[OfferKey, ...]]:
        """Ends what took too long."""
        told: Sends = ()
        withdrawn: tuple[OfferKey, ...] = ()
        for transfer_id in self._timers.due(now):
            begun = self._transfers[transfer_id].begun
            reason = RefusalReason.TOO_OLD if begun else RefusalReason.UNKNOWN_REQUEST
            farewell, keys = self.abandon(transfer_id, reason)
            told, withdrawn = told + farewell, withdrawn + keys
        return told, withdrawn

    def close(self) -> Sends:
        """Ends all, because the engine does; the offers are withdrawn by whoever closes them."""
        told: Sends = ()
        for transfer_id in list(self._transfers):
            told += self.abandon(transfer_id, RefusalReason.CLOSING)[0]
        return told

    def _wait_for(self, now: float, follower: _Follower, transfer_id: str) -> Sends:
        if transfer_id in self._ended:
            return _ended(follower.connection, follower.follow, self._ended[transfer_id])
        holder = self._holder_of(follower.connection)
        if self._waiting[holder] >= MOST_FOLLOWED:
            return _ended(follower.connection, follower.follow, RefusalReason.TOO_MANY)
        self._waiting[holder] += 1
        self._transfers[transfer_id] = _Transfer(begun=False, follower=follower, waiting_for=holder)
        self._timers.set(transfer_id, now + UNSEEN_SECONDS)
        return ()

    def _leave(
        self, now: float, connection: Hashable, guest: Guest, message: Leave
    ) -> tuple[Sends, tuple[OfferKey, ...]]:
        """Whoever leaves is told that it was heard. A transfer that was not begun yet is remembered as left."""
        confirmed = _ended(connection, message.follow, RefusalReason.RELEASED)
        leaving = _Follower(guest, message.follow, connection)
        if message.transfer_id not in self._transfers and self._wait_for(now, leaving, message.transfer_id):
            return confirmed, ()
        transfer = self._transfers[message.transfer_id]
        transfer.follower = transfer.follower or leaving
        if not transfer.follower.is_of(guest, message):
            return confirmed, ()
        transfer.left = True
        keys = (*transfer.chunks, *(() if transfer.final is None else (transfer.final,)))
        transfer.chunks = []
        return confirmed, keys

    def _wait_no_longer(self, transfer: _Transfer) -> None:
        if transfer.begun:
            return
        transfer.begun = True
        self._waiting[transfer.waiting_for] -= 1
        if not self._waiting[transfer.waiting_for]:
            del self._waiting[transfer.waiting_for]

    def _tell(self, transfer: _Transfer) -> Sends:
        follower, newest = transfer.follower, transfer.newest
        if follower is None or newest is None:
            return ()
        offered = Offered(
            follower.follow, transfer.sequence, newest.offer == transfer.final, newest.offer, newest.num_tokens,
            dict(newest.tables), transfer.confirmed, transfer.prompt,
        )  # fmt: skip
        return (Send(follower.connection, offered),)

    def _end(self, transfer_id: str, reason: RefusalReason) -> tuple[OfferKey, ...]:
        transfer = self._transfers.pop(transfer_id)
        self._timers.cancel(transfer_id)
        if transfer.final is not None:
            self._finals.pop(transfer.final, None)
        self._wait_no_longer(transfer)
        self._ended[transfer_id] = reason
        while len(self._ended) > REMEMBERED_TRANSFERS:
            self._ended.popitem(last=False)
        return tuple(transfer.chunks)


def _ended(connection: Hashable, follow: int, reason: RefusalReason) -> Sends:
    return (Send(connection, Ended(follow, reason, f"the prefill engine offers nothing more: {reason.value}")),)


def _farewell(follower: _Follower | None, reason: RefusalReason) -> Sends:
    return () if follower is None else _ended(follower.connection, follower.follow, reason)
